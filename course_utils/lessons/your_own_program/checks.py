"""Check of the lesson: what is saved where a bound speaks of all the loading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from course_utils.lessons.answers import ask, exercise, number, recognise

# Seconds of a batch: its loading and its computing; workers; and the seconds that handing it over takes.
_LOOPS = ((0.016, 0.02, 1, 0.002), (0.06, 0.02, 2, 0.004), (0.09, 0.01, 3, 0.002), (0.03, 0.02, 3, 0.005))
WAYS: Mapping[str | None, Callable[[float, float, int, float], float]] = {
    None: lambda load, compute, workers, handing: 1 - max(compute + handing, load / workers) / (load + compute),
    "bound": lambda load, compute, workers, handing: load / (load + compute),
    "free_handing": lambda load, compute, workers, handing: 1 - max(compute, load / workers) / (load + compute),
    "one_worker": lambda load, compute, workers, handing: 1 - max(compute + handing, load) / (load + compute),
    "seconds": lambda load, compute, workers, handing: load + compute - max(compute + handing, load / workers),
    "percent": lambda *loop: 100 * WAYS[None](*loop),
    "what_is_left": lambda *loop: 1 - WAYS[None](*loop),
}


@exercise
def check_saved_share(answer: Any) -> str | None:
    """Compares with the shares that people work out, for loops where computing or loading is the limit."""
    given = [number(ask(answer, *loop), "A share from 0 to 1") for loop in _LOOPS]
    says = (
        "With {} s to load, {} s to compute, {} workers and {} s to hand a batch over you return {:.3g}, and {:.3g} is "
        "saved. How long is a step, if both run side by side?"
    )
    return recognise(given, WAYS, _LOOPS, says.format)
