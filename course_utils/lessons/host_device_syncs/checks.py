"""Checks of the lesson. The second runs the answer on ``meta``, where whatever needs a value raises an error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from course_utils.lessons.answers import UNKNOWN, NotRight, ask, exercise, number, recognise

# (seconds to prepare, seconds of the GPU, steps from one read to the next)
_LOOPS = ((0.001, 0.004, 5), (0.004, 0.001, 5), (0.003, 0.003, 10), (0.002, 0.005, 1))
_WAYS: Mapping[str | None, Callable[[float, float, int], float]] = {
    None: lambda p, g, n: max(p, g) + min(p, g) / n,
    "every_step": lambda p, g, n: p + g,
    "never": lambda p, g, n: max(p, g),
    "gpu_free": lambda p, g, n: p + g / n,
    "whole_wait": lambda p, g, n: max(p, g) + g / n,
    "all_shared": lambda p, g, n: (p + g) / n,
}


@exercise
def check_step_s(answer: Any) -> str | None:
    """Compares the time of a step with what people write, on loops where the formulas differ."""
    given = [number(ask(answer, *loop), "A number of seconds") for loop in _LOOPS]
    key = recognise(given, _WAYS, _LOOPS)
    if key == UNKNOWN:
        right = [_WAYS[None](*loop) for loop in _LOOPS]
        wrong = next(at for at, value in enumerate(given) if not math.isclose(value, right[at], rel_tol=1e-6))
        prepare_s, gpu_s, read_every = _LOOPS[wrong]
        raise NotRight(
            f"With {prepare_s} s to prepare, {gpu_s} s of the GPU and a read every {read_every} steps you return "
            f"{given[wrong]:.4g} s; {right[wrong]:.4g} s is right. What runs side by side between two reads?"
        )
    return key


class _Copies(TorchFunctionMode):
    """Notes what sends values to the gradient's device: ``meta`` takes them without a wait, and a GPU does not."""

    found = False

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(result, "is_meta", False):
            moves = func.__name__ in ("to", "copy_", "type_as") and any(getattr(each, "is_cpu", False) for each in args)
            self.found |= moves or func.__name__ in ("tensor", "as_tensor", "asarray", "new_tensor")
        return result


@exercise
def check_clip(answer: Any) -> str | None:
    """Runs the answer on ``meta``, for its waits; then on the CPU, for its values."""
    try:
        with _Copies() as copies:
            ask(answer, torch.empty(3, 2, device="meta"), 1.0)
    except NotRight as problem:
        words = str(problem)
        if "on the expected device" in words or "on the same device" in words:
            return "mixes"
        if "meta" not in words.lower():
            raise
        raise NotRight(
            f"{words.rstrip('.')}. On a GPU, Python would wait there, since it needs a value. "
            "Which operation of tensors bounds a factor?"
        ) from problem
    if copies.found:
        return "copies"
    # Both columns and both rows are too long by themselves, so that a norm of each shows.
    long = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    clipped, kept, still = (
        _tensor(ask(answer, gradient.clone(), 1.0), gradient) for gradient in (long, long / 10, 0 * long)
    )
    if still.isnan().any():
        return "zero"
    if torch.equal(clipped, long):
        return "never"
    if torch.equal(clipped, long.clamp(-1, 1)):
        return "each_number"
    if any(_close(clipped, long / long.norm(dim=dim, keepdim=True)) for dim in (0, 1)):
        return "each_part"
    if not _close(kept, long / 10):
        return "enlarges"
    if not (_close(clipped, long / 5) and _close(still, 0 * long)):
        norm = clipped.norm().item()
        raise NotRight(f"A gradient of norm 5 has the norm {norm:.3g} afterwards, and was to have 1, in its direction.")
    return None


def _tensor(value: Any, like: torch.Tensor) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.shape != like.shape:
        raise NotRight("Return the gradient: a tensor of the same shape.")
    return value


def _close(value: torch.Tensor, expected: torch.Tensor) -> bool:
    # torch's own clipping divides by the norm plus 1e-6.
    return torch.allclose(value, expected, rtol=1e-4, atol=1e-6)
