"""Checks of the lesson."""

from __future__ import annotations

import itertools
import math
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from course_utils.lessons.answers import UNKNOWN, NothingReturned, NotRight, ask, effect, exercise, number, recognise

Batch = tuple[torch.Tensor, torch.Tensor]
# Batches of so many samples, in groups of so many. The last group is short, and its last batch is smaller.
_EPOCHS = (((4, 4, 4, 4, 2), 3), ((3, 3, 3, 3, 1), 2))
_MOST_NORM = 1.5


class _Watched(torch.optim.SGD):
    """Notes the gradient and the learning rate of each step, and leaves the weights as they are."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=1.0)
        self.steps: list[tuple[torch.Tensor | None, float]] = []

    def step(self, closure: Any = None) -> None:
        """Note a step."""
        gradients = [weight.grad for weight in self.param_groups[0]["params"]]
        missing = any(gradient is None for gradient in gradients)
        vector = None if missing else torch.cat([gradient.flatten() for gradient in gradients])
        self.steps.append((vector, self.param_groups[0]["lr"]))


def _epoch(sizes: Sequence[int]) -> tuple[nn.Module, list[Batch]]:
    generator = torch.Generator().manual_seed(len(sizes) + sizes[0])
    model = nn.Linear(3, 1).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))

    def drawn(samples: int, width: int) -> torch.Tensor:
        return torch.randn(samples, width, generator=generator).double()

    return model, [(drawn(samples, 3) * 2 / (1 + place), drawn(samples, 1)) for place, samples in enumerate(sizes)]


class _Graphs:
    """Counts, while it is entered, how many samples and how many graphs a model's forward passes leave at once."""

    def __init__(self, model: nn.Module) -> None:
        self.samples = self.graphs = self._waiting = 0
        self._handle = model.register_forward_hook(self._forward)

    def __enter__(self) -> _Graphs:
        return self

    def __exit__(self, *_: Any) -> None:
        self._handle.remove()

    def _forward(self, model: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        if output.requires_grad:  # no graph under no_grad()
            self.samples = max(self.samples, len(inputs[0]))
            self._waiting += 1
            self.graphs = max(self.graphs, self._waiting)
            output.register_hook(self._backward)

    def _backward(self, gradient: torch.Tensor) -> None:
        self._waiting -= 1


def _groups(batches: Sequence[Batch], parts: int, last: str) -> Iterator[Sequence[Batch]]:
    for start in range(0, len(batches), parts):
        group = batches[start : start + parts]
        if last == "right" or len(group) == parts:
            yield group


def _gradients(
    model: nn.Module, batches: list[Batch], parts: int, last: str, divisor: str, clip: str, zero: str
) -> list[torch.Tensor]:
    """The gradients of all steps of a loop with some of the mistakes; without any where all are ``right``."""
    weights, steps = list(model.parameters()), []
    model.zero_grad()
    for group in _groups(batches, parts, last):
        samples = sum(len(targets) for _, targets in group)
        for inputs, targets in group:
            if zero == "zeroes_each_part":
                model.zero_grad()
            own = {
                "right": len(targets) / samples,
                "divides_by_parts": 1 / parts,
                "mean_of_means": 1 / len(group),
                "assumes_full_groups": len(targets) / (parts * len(batches[0][1])),
                "divides_twice": 1 / samples,
                "not_divided": 1.0,
            }[divisor]
            (nn.functional.mse_loss(model(inputs), targets) * own).backward()
            if clip == "clips_each_part":
                nn.utils.clip_grad_norm_(weights, _MOST_NORM)
        if clip == "right":
            nn.utils.clip_grad_norm_(weights, _MOST_NORM)
        steps.append(torch.cat([weight.grad.flatten().clone() for weight in weights]))
        if zero != "keeps_gradients":
            model.zero_grad()
    return steps


# Each with its mistakes, in the order in which they are told.
_MISTAKES: dict[str, tuple[str, ...]] = {
    "last": ("right", "drops_last"),
    "divisor": (
        "right",
        "divides_by_parts",
        "mean_of_means",
        "assumes_full_groups",
        "divides_twice",
        "not_divided",
    ),
    "clip": ("right", "clips_each_part", "no_clip"),
    "zero": ("right", "keeps_gradients", "zeroes_each_part"),
}


def _same(found: Sequence[torch.Tensor | None], wanted: Sequence[torch.Tensor]) -> bool:
    return len(found) == len(wanted) and all(
        a is not None and torch.allclose(a, b, rtol=1e-6, atol=1e-9) for a, b in zip(found, wanted, strict=True)
    )


@exercise
def check_train(answer: Any) -> str | None:
    """Notes what each step of an epoch sees, and compares it with loops that make known mistakes."""
    runs, joined, together = [], False, False
    for sizes, parts in _EPOCHS:
        model, batches = _epoch(sizes)
        optimizer = _Watched(model)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        # Python warns of a schedule that moves first: the check says it in its words.
        with warnings.catch_warnings(action="ignore"), _Graphs(model) as held:
            effect(answer, model, list(batches), optimizer, scheduler, parts, _MOST_NORM)
        runs.append((model, batches, parts, optimizer.steps, scheduler.last_epoch))
        joined |= held.samples > max(sizes)
        together |= held.graphs > 1
    if not any(steps for *_, steps, _ in runs):
        raise NotRight("Your loop never calls `optimizer.step()`.")

    def fits(choice: dict[str, str]) -> bool:
        return all(
            _same([gradient for gradient, _ in steps], _gradients(model, batches, parts, **choice))
            for model, batches, parts, steps, _ in runs
        )

    choices = [dict(zip(_MISTAKES, values, strict=True)) for values in itertools.product(*_MISTAKES.values())]
    choices.sort(key=lambda choice: sum(value != "right" for value in choice.values()))
    made = next((choice for choice in choices if fits(choice)), None)
    if made is None:
        model, batches, parts, steps, _ = runs[0]
        right = _gradients(model, batches, parts, *("right",) * len(_MISTAKES))
        raise NotRight(
            f"With {len(batches)} batches in groups of {parts} you take {len(steps)} steps, and {len(right)} "
            "are right; their gradients are not those of the mean over all samples of a group, clipped once."
        )
    for value in made.values():
        if value != "right":
            return value
    for _, batches, parts, steps, scheduled in runs:
        if scheduled >= len(batches):
            return "schedules_each_part"
        rates = [1 / (1 + place) for place in range(math.ceil(len(batches) / parts))]
        if scheduled != len(steps) or [rate for _, rate in steps] != rates:
            raise NotRight("The gradients are right. Call `scheduler.step()` once for each step, and after it.")
    return "joins_batches" if joined else "one_backward" if together else None


# Samples in the batch, bytes of a sample, of the weights, and of the limit.
_MEMORIES = (
    (32, 100, 500, 4_700),  # fits at once, to the byte: no gradients wait
    (32, 100, 500, 2_900),
    (10, 100, 200, 1_200),  # 4 and 3 and 3
    (7, 30, 1_000, 4_065),  # 2 at a time
    (7, 100, 200, 950),  # one at a time, though the mean of 5 parts, 1.4 samples, would fit
    (16, 250, 1_000, 4_100),  # not even one
    (16, 100, 1_000, 4_000),  # without the weights it would fit at once
    (64, 10, 100, 1_000),
)
Bytes = Callable[[int, int, int, int], float]


def _fewest(batch: int, sample: int, weights: int, limit: int, at_once: int = 3, in_parts: int = 4) -> int:
    if at_once * weights + batch * sample <= limit:
        return 1
    room = (limit - in_parts * weights) // sample
    return 0 if room < 1 else math.ceil(batch / min(room, batch))


def _rounded_down(batch: int, sample: int, weights: int, limit: int) -> int:
    if 3 * weights + batch * sample <= limit:
        return 1
    room = (limit - 4 * weights) // sample
    return 0 if room < 1 else batch // min(room, batch)


def _tried(batch: int, sample: int, weights: int, limit: int, part: Callable[[int, int], float]) -> int:
    """One number of parts after the other, with another idea of how many samples the largest part has."""
    if 3 * weights + batch * sample <= limit:
        return 1
    counts = range(2, batch + 1)
    return next((count for count in counts if 4 * weights + part(batch, count) * sample <= limit), 0)


def _in_proportion(batch: int, sample: int, weights: int, limit: int) -> int:
    """As if the weights and what belongs to them shrank with the part, too."""
    whole = 4 * weights + batch * sample
    return max(1, math.ceil(whole / limit))


@exercise
def check_fewest_parts(answer: Any) -> str | None:
    """Compares numbers of parts with those of formulas that forget a kind of memory."""
    given = []
    for case in _MEMORIES:
        try:
            given.append(number(ask(answer, *case), "A number of parts"))
        except NothingReturned:
            if given and not _fewest(*case):
                raise NotRight(
                    "Your function returned None where not even parts of one sample fit: return 0."
                ) from None
            raise
    ways: dict[str | None, Bytes] = {
        None: _fewest,
        "no_gradients": lambda *case: _fewest(*case, in_parts=3),
        "gradients_at_once": lambda *case: _fewest(*case, at_once=4),
        "no_weights": lambda *case: _fewest(*case, at_once=2, in_parts=3),
        "no_state": lambda *case: _fewest(*case, at_once=1, in_parts=2),
        "only_activations": lambda *case: _fewest(*case, at_once=0, in_parts=0),
        "below_the_limit": lambda batch, sample, weights, limit: _fewest(batch, sample, weights, limit - 1),
        "rounds_down": _rounded_down,
        "smallest_part": lambda *case: _tried(*case, part=operator.floordiv),
        "mean_part": lambda *case: _tried(*case, part=operator.truediv),
        "in_proportion": _in_proportion,
    }
    key = recognise(given, ways, _MEMORIES)
    if key == UNKNOWN:
        case, value = next(
            (case, value) for case, value in zip(_MEMORIES, given, strict=True) if value != _fewest(*case)
        )
        batch, sample, weights, limit = case
        raise NotRight(
            f"For {batch} samples of {sample} bytes, {weights:,} bytes of weights and a limit of {limit:,} you return "
            f"{value:g}; {_fewest(*case)} is right. What lies in memory when a forward pass ends?"
        )
    return key
