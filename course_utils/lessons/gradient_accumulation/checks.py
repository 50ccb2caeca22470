"""The check of the lesson: what each step of a mended loop sees, held against loops with known mistakes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from course_utils.lessons.answers import NotRight, effect, exercise

Batch = tuple[torch.Tensor, torch.Tensor]
# Batches of so many samples, in groups of so many. The last group is short, and its last batch is smaller.
_EPOCHS = (((4, 4, 4, 4, 2), 3), ((3, 3, 3, 3, 1), 2))
_MOST_NORM = 1.5
# The share of a group's mean that a batch gets: of its samples, and the samples of the group's batches.
_SHARES = {
    "right": lambda own, group, parts: own / sum(group),
    "divides_by_parts": lambda own, group, parts: 1 / parts,
    "mean_of_means": lambda own, group, parts: 1 / len(group),
    "divides_twice": lambda own, group, parts: 1 / sum(group),
    "not_divided": lambda own, group, parts: 1.0,
}
# Each with its mistakes, in the order in which they are told.
_CLIPS, _ZEROES = ("right", "clips_each_part", "no_clip"), ("right", "keeps_gradients", "zeroes_each_part")
_CHOICES = ("right", "drops_last"), tuple(_SHARES), _CLIPS, _ZEROES


class _NotedSteps(torch.optim.SGD):
    """Its learning rate is 0: the weights stay, and gradients can be held against each other."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.0)
        self.seen: list[torch.Tensor] = []

    def step(self, closure: Any = None) -> None:
        gradients = [w * 0 if w.grad is None else w.grad for w in self.param_groups[0]["params"]]
        self.seen.append(torch.cat([each.flatten() for each in gradients]).detach())


def _epoch(sizes: Sequence[int]) -> tuple[nn.Module, list[Batch]]:
    torch.manual_seed(len(sizes) + sizes[0])
    model = nn.Linear(3, 1).double()
    drawn = [torch.randn(samples, 4).double() for samples in sizes]
    return model, [(each[:, :3] * 2 / (1 + place), each[:, 3:]) for place, each in enumerate(drawn)]


def _steps(model: nn.Module, batches: Sequence[Batch], parts: int, made: Sequence[str]) -> list[torch.Tensor]:
    last, divisor, clip, zero = made
    watched = _NotedSteps(model)
    watched.zero_grad()
    for start in range(0, len(batches) - (len(batches) % parts if last == "drops_last" else 0), parts):
        group = batches[start : start + parts]
        for inputs, targets in group:
            if zero == "zeroes_each_part":
                watched.zero_grad()
            share = _SHARES[divisor](len(targets), [len(each) for _, each in group], parts)
            (mse_loss(model(inputs), targets) * share).backward()
            if clip == "clips_each_part" or (clip == "right" and targets is group[-1][1]):
                nn.utils.clip_grad_norm_(model.parameters(), _MOST_NORM)
        watched.step()
        if zero != "keeps_gradients":
            watched.zero_grad()
    return watched.seen


@exercise
def check_train(answer: Any) -> str | None:
    runs, held = [], []
    for sizes, parts in _EPOCHS:
        model, batches = _epoch(sizes)
        optimizer, waiting = _NotedSteps(model), []  # samples whose activations wait for the backward pass

        def look(_: nn.Module, inputs: Any, output: torch.Tensor, waiting=waiting, sizes=sizes) -> None:
            if len(output) + sum(waiting) > max(sizes):
                held.append("one_backward" if waiting else "joins_batches")
            if output.requires_grad:
                waiting.append(len(output))
                output.register_hook(lambda _: waiting.clear())

        with model.register_forward_hook(look):
            effect(answer, model, list(batches), optimizer, parts, _MOST_NORM)
        runs.append((model, batches, parts, optimizer.seen))
    if not any(seen for *_, seen in runs):
        raise NotRight("Your loop never calls `optimizer.step()`.")
    for made in sorted(itertools.product(*_CHOICES), key=lambda made: len(made) - made.count("right")):
        tried = [(seen, _steps(model, batches, parts, made)) for model, batches, parts, seen in runs]
        if all(len(seen) == len(each) and all(map(torch.allclose, seen, each)) for seen, each in tried):
            return next((each for each in (*made, *held) if each != "right"), None)
    steps = f"5 batches in groups of 3 you take {len(runs[0][-1])} steps; 2 are right"
    raise NotRight(f"With {steps}. Their gradients are not those of a group's mean over its samples, clipped once.")
