"""The check of the exercise: it runs the answer on ``meta``, where whatever needs a value raises an error."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from course_utils.lessons.answers import NotRight, ask, exercise


class _CopiesToDevice(TorchFunctionMode):
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
        with _CopiesToDevice() as copies:
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
    long = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    clipped, kept, still = (_tensor(ask(answer, each.clone(), 1.0), each) for each in (long, long / 10, 0 * long))
    if still.isnan().any():
        return "zero"
    if torch.equal(clipped, long):
        return "never"
    if torch.equal(clipped, long.clamp(-1, 1)):
        return "each_number"
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
