"""Checks of lesson 15. All run on the CPU: models that note how they are called, and a cache that outlives a mode."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.lessons.answers import NotRight, ask, effect, exercise, number

# An evaluation to mend


class _Watched(nn.Module):
    """A classifier with dropout and a frozen batch normalization, that notes its mode at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
        self.body[1].eval()
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.body(x)
        self.seen.append((self.body[2].training, logits.requires_grad))
        return logits


def _watched() -> tuple[_Watched, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A model in training, one of whose layers is not, and batches of which the last is smaller and harder."""
    rng = torch.random.get_rng_state()
    torch.manual_seed(15)
    model = _Watched()
    inputs, targets = torch.randn(22, 4), torch.randint(3, (22,))
    inputs[20:] *= 20
    torch.random.set_rng_state(rng)
    return model, list(zip(inputs.split(10), targets.split(10), strict=True))


def _mean_loss(model: nn.Module, batches: Any, by_batch: bool = False) -> float:
    losses = []
    with torch.no_grad():
        for inputs, targets in batches:
            loss = functional.cross_entropy(model(inputs), targets, reduction="mean" if by_batch else "none")
            losses.append(loss.reshape(-1))
    return torch.cat(losses).mean().item()


@exercise
def check_evaluate(answer: Any) -> str | None:
    """Looks at the modes in which the model is called, at what is left behind, and at the mean."""
    model, batches = _watched()
    modes = [module.training for module in model.modules()]
    before = torch.is_grad_enabled()
    try:
        result = ask(answer, model, batches)
        grad_left_off = torch.is_grad_enabled() != before or torch.is_inference_mode_enabled()
    finally:
        torch.set_grad_enabled(before)
    if not model.seen:
        raise NotRight("You never call the model.")
    if any(training for training, _ in model.seen):
        return "dropout"
    if any(graph for _, graph in model.seen):
        return "graph"
    if isinstance(result, torch.Tensor):
        return "tensor"
    if grad_left_off:
        return "grad_left_off"
    left = [module.training for module in model.modules()]
    if left != modes:
        return "frozen_woken" if left[0] else "left_in_eval"
    given = number(result, "The mean loss")
    model.eval()
    if math.isclose(given, _mean_loss(model, batches), rel_tol=1e-4):
        return None
    if math.isclose(given, _mean_loss(model, batches, by_batch=True), rel_tol=1e-4):
        return "mean_of_means"
    raise NotRight(f"The mean loss of all samples is {_mean_loss(model, batches):.6g}, and you return {given:.6g}.")


# A cache to mend


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
        longer = [evaluate(16), train(16)]
    except _StillInference:
        return "inference"
    except NotRight as problem:
        return "too_short" if "must match" in str(problem) else _again(problem)
    if any(error.abs().max() > 1e-5 for error in (*errors, *longer)):
        raise NotRight("What your module returns is not x times the cosine of each position.")
    with _Cosines() as cosines:
        evaluate(16), train(16), evaluate(16), train(16)
    # `_expected` computes one in each call.
    return "rebuilds" if cosines.count > 4 else None


class _StillInference(Exception):  # noqa: N818
    """Autograd refused an inference tensor."""


def _again(problem: NotRight) -> str:
    raise problem
