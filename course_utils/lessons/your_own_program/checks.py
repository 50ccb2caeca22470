"""Check of the lesson: what is saved where a bound speaks of all the loading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from course_utils.lessons.answers import UNKNOWN, NotRight, ask, exercise, number, recognise

# Seconds of a batch: its loading and its computing; and workers.
_LOOPS = ((0.016, 0.02, 1), (0.06, 0.02, 2), (0.09, 0.01, 3), (0.03, 0.02, 3))
_SHARES: Mapping[str | None, Callable[[float, float, int], float]] = {
    None: lambda load, compute, workers: 1 - max(compute, load / workers) / (load + compute),
    "bound": lambda load, compute, workers: load / (load + compute),
    "no_overlap": lambda load, compute, workers: 1 - (compute + load / workers) / (load + compute),
    "one_worker": lambda load, compute, workers: 1 - max(compute, load) / (load + compute),
    "seconds": lambda load, compute, workers: load + compute - max(compute, load / workers),
    "percent": lambda load, compute, workers: 100 - 100 * max(compute, load / workers) / (load + compute),
    "what_is_left": lambda load, compute, workers: max(compute, load / workers) / (load + compute),
}


@exercise
def check_saved_share(answer: Any) -> str | None:
    """Compares with the shares that people work out, for loops where computing or loading is the limit."""
    given = [number(ask(answer, *loop), "A share from 0 to 1") for loop in _LOOPS]
    key = recognise(given, _SHARES, _LOOPS)
    if key != UNKNOWN:
        return key
    load, compute, workers = _LOOPS[1]
    right = _SHARES[None](load, compute, workers)
    raise NotRight(
        f"With {load} s to load, {compute} s to compute and {workers} workers you return {given[1]:.3g}, and "
        f"{right:.3g} is saved. How long is a step then, if loading and computing run side by side?"
    )
