"""Check of the exercise, on the CPU: gradients are compared, and what autograd keeps is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from course_utils.lessons.answers import NotRight, ask, exercise
from course_utils.materials.step_memory import kept_bytes


def _reference(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
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
        if "does not require grad" in str(error):
            return "silent"
        if "modified by an inplace operation" not in str(error):
            raise NotRight(f"The backward pass raises: {error}") from None
        if "output 0 of Sigmoid" in str(error):
            return "raises"
        raise NotRight(
            "`backward()` raises: a line writes over something that is kept. The message names the operation that "
            f"keeps its result, or the one that wrote over it: {error}"
        ) from None
    if not all(map(_close, gradients, _gradients(_reference))):
        return "silent"
    inputs = _inputs()
    two = 2 * inputs[0].nbytes  # what LeakyReLU wrote over, and the sigmoid
    return "copies" if kept_bytes(lambda: answer(*inputs), inputs) > two else None
