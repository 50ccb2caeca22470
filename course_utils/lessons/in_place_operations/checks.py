"""Checks of the lesson. All run on the CPU: gradients are compared, and what autograd keeps is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from course_utils.lessons.answers import NotRight, ask, exercise
from course_utils.lessons.in_place_operations.cases import OPERATIONS, named_in

_ASKED = ("LeakyReLU", "ReLU", "SiLU", "times 2", "ELU", "ReLU6")
_SAVES = {"LeakyReLU", "ELU"}
# Answers that hold one sign for the whole rule.
_WAYS = {
    "always": set(_ASKED),
    "never": set(),
    "no_copy": {"LeakyReLU", "ReLU", "times 2", "ELU"},
    "keeps_input": {"LeakyReLU", "SiLU", "ELU", "ReLU6"},
    "forward_peak": {"LeakyReLU", "times 2", "ELU"},
}


@exercise
def check_saves(answer: Any) -> str | None:
    """Asks about six operations, of all four kinds."""
    given = set()
    for name in _ASKED:
        torch.manual_seed(0)
        value = ask(answer, *OPERATIONS[name])
        if not isinstance(value, bool):
            raise NotRight(f"Return True or False; for {name} you return {type(value).__name__}.")
        given |= {name} if value else set()
    if given == _SAVES:
        return None
    for key, names in _WAYS.items():
        if given == names:
            return key
    name = min(given ^ _SAVES)
    raise NotRight(
        f"For {name} you say {name in given}. Put it between two linear layers: what do these keep, both ways?"
    )


def _reference(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """What the block of exercise 2 is to compute."""
    hidden = functional.leaky_relu(x @ first)
    return torch.sigmoid(hidden @ second) * hidden + x


def _inputs() -> list[torch.Tensor]:
    torch.manual_seed(3)
    x, first, second = (torch.randn(size, 32) for size in (64, 32, 32))
    return [x, first.requires_grad_(), second.requires_grad_()]


def _gradients(block: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    inputs = _inputs()
    block(*inputs).square().sum().backward()
    return [each.grad for each in inputs if each.requires_grad]


def _close(ours: torch.Tensor | None, reference: torch.Tensor) -> bool:
    return ours is not None and torch.allclose(ours, reference, rtol=1e-4, atol=1e-5)


@exercise
def check_block(answer: Any) -> str | None:
    """Compares values and gradients, looks whether ``x`` was changed, and counts the bytes that are kept."""
    inputs = _inputs()
    value = ask(answer, *inputs)
    if not isinstance(value, torch.Tensor) or not _close(value.detach(), _reference(*_inputs()).detach()):
        raise NotRight("The block no longer computes the same. Its result is sigmoid(hidden @ second) * hidden + x.")
    if not torch.equal(inputs[0], _inputs()[0]):
        return "caller"
    try:
        gradients = _gradients(answer)
    except RuntimeError as error:
        if "modified by an inplace operation" in str(error):
            if "output 0 of Sigmoid" in str(error):
                return "raises"
            raise NotRight(
                f"`backward()` raises: a line writes over something that is kept. The message names {named_in(error)}: "
                "either that operation keeps its result, or it wrote over what another line had kept."
            ) from None
        if "does not require grad" in str(error):
            return "silent"
        raise NotRight(f"The backward pass raises: {error}") from None
    if not all(map(_close, gradients, _gradients(_reference))):
        return "silent"
    kept = _kept(answer)
    if len(kept) == 2:  # what LeakyReLU wrote over, and the sigmoid
        return None
    x, first, _ = _inputs()
    return "all_out" if len(kept) == 3 and any(_close(each, (x @ first).detach()) for each in kept) else "copies"


def _kept(block: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """What autograd keeps besides the inputs, each storage once."""
    inputs = _inputs()
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.detach()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        result = block(*inputs)
    del result
    given = {each.untyped_storage()._cdata for each in inputs}
    return [tensor for place, tensor in kept.items() if place not in given]
