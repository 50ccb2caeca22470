"""Checks of the lesson. All run on the CPU: a model that notes how it is called, and a cache that outlives a mode."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.lessons.answers import NotRight, ask, effect, exercise

# Features to collect


class _Notes(list[tuple[bool, bool]]):
    """What calls of a model noted; a copy of the model notes in the same place."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Notes:
        return self


class _Watched(nn.Module):
    """A backbone with dropout and a frozen batch normalization, that notes its mode at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
        self.body[1].eval()
        self.seen = _Notes()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.body(x)
        self.seen.append((self.body[2].training, features.requires_grad))
        return features


def _watched() -> tuple[_Watched, list[torch.Tensor]]:
    """A model in training, one of whose layers is not, and batches of which the last is smaller."""
    rng = torch.random.get_rng_state()
    torch.manual_seed(15)
    model, inputs = _Watched(), torch.randn(22, 4)
    torch.random.set_rng_state(rng)
    return model, list(inputs.split(10))


def _modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def _gradients_after(answer: Any, model: nn.Module, batches: Any) -> bool:
    """Whether gradients are on after a call; they are put back."""
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        with contextlib.suppress(NotRight):
            ask(answer, model, batches)
        return torch.is_grad_enabled()


def _is_left_changed(answer: Any) -> str | None:
    """What is not as it was after a call: with gradients on, with gradients off, and after a batch that raises."""
    model, batches = _watched()
    before = _modes(model)
    if not _gradients_after(answer, model, batches):
        return "grad_left_off"
    if (after := _modes(model)) != before:
        return "frozen_woken" if after[0] else "left_in_eval"
    with torch.no_grad():
        if _gradients_after(answer, model, batches):
            return "grad_left_on"
    broken = [*batches, torch.ones(2, 3)]
    if not _gradients_after(answer, model, broken) or _modes(model) != before:
        return "after_an_error"
    return None


@exercise
def check_features(answer: Any) -> str | None:
    """Looks at the modes in which the backbone is called, at what is left behind, and trains on what comes out."""
    model, batches = _watched()
    with torch.enable_grad():  # it puts back what an answer leaves
        result = ask(answer, model, batches)
    if not model.seen:
        raise NotRight("You never call the backbone.")
    if any(training for training, _ in model.seen):
        return "dropout"
    if any(graph for _, graph in model.seen):
        return "graph"
    if not isinstance(result, torch.Tensor):
        raise NotRight(f"One tensor is asked for, and you return {type(result).__name__}.")
    if result.is_inference():
        return "inference"
    model.eval()
    with torch.no_grad():
        expected = model(torch.cat(batches))
    if result.shape != expected.shape:
        raise NotRight(f"{list(expected.shape)} is the shape that is asked for; yours is {list(result.shape)}.")
    if not torch.allclose(result, expected, atol=1e-5):
        raise NotRight("What you return is not what the backbone gives for these batches, in their order.")
    return _is_left_changed(answer)


# A cache to mend

_LONG = 10_000  # longer than what somebody would make in advance


class _Cosines(TorchDispatchMode):
    """Counts how often cosines are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket in (torch.ops.aten.cos, torch.ops.aten.cos_)
        return func(*args, **(kwargs or {}))


def _expected(x: torch.Tensor) -> torch.Tensor:
    return x * torch.arange(x.shape[1], dtype=torch.float32).cos()[:, None]


@exercise
def check_positions(answer: Any) -> str | None:
    """Evaluates under ``inference_mode`` first and trains afterwards, with lengths that grow, and counts cosines."""
    made = ask(answer)
    if not isinstance(made, nn.Module):
        raise NotRight(f"Your function is to return a module, and it returns {type(made).__name__}.")
    layer = nn.Linear(2, 2)

    def evaluate(length: int) -> torch.Tensor:
        with torch.inference_mode():
            x = torch.ones(1, length, 2)
            return effect(made, x) - _expected(x)

    def train(length: int) -> torch.Tensor:
        x = layer(torch.ones(1, length, 2))
        try:
            y = made(x)
            y.sum().backward()
        except RuntimeError as error:
            if "nference" in str(error):
                raise _StillInference from error
            raise NotRight(f"In training, this was raised: {error}") from error
        return (y - _expected(x)).detach()

    try:
        errors = [evaluate(8), train(8), evaluate(8), train(8)]
        longer = [evaluate(_LONG), train(_LONG)]
    except _StillInference:
        return "inference"
    except NotRight as problem:
        return "too_short" if "must match" in str(problem) else _again(problem)
    if any(error.abs().max() > 1e-5 for error in (*errors, *longer)):
        raise NotRight("What your module returns is not x times the cosine of each position.")
    with _Cosines() as cosines:
        evaluate(16), train(16), evaluate(16), train(16)
    if cosines.count > 4:  # `_expected` computes one in each call
        return "rebuilds"
    with torch.no_grad():
        return "graph" if made(nn.Parameter(torch.ones(1, 2 * _LONG, 2))).requires_grad else None


class _StillInference(Exception):  # noqa: N818
    """Autograd refused an inference tensor."""


def _again(problem: NotRight) -> str:
    raise problem
