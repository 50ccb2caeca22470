"""The check of the lesson's exercise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from course_utils.lessons.answers import UNKNOWN, NotRight, ask, exercise, listed, number, recognise

# Work, first touch, copy, pin and transfer in ms: the longest is the work, the thread, neither alone, the transfer.
_STEPS = ((100, 1, 2, 3, 0.5), (1, 2, 3, 6, 0.7), (10, 3, 4, 9, 4), (2, 0.5, 9, 3, 8))
# What people write for each of the three times; None is what is right.
_WAYS: tuple[Mapping[str | None, Callable[..., float]], ...] = (
    {
        None: lambda w, f, c, p, t: f + c + w,
        "transfer_twice": lambda w, f, c, p, t: f + c + t + w,
    },
    {
        None: lambda w, f, c, p, t: max(f + p, t + w),
        "all_in_a_row": lambda w, f, c, p, t: f + p + t + w,
        "thread_forgotten": lambda w, f, c, p, t: t + w,
    },
    {
        None: lambda w, f, c, p, t: max(f + p, t, w),
        "still_in_turn": lambda w, f, c, p, t: max(f + p, t + w),
        "thread_forgotten": lambda w, f, c, p, t: max(t, w),
    },
)


@exercise
def check_step_times(answer: Any) -> str | None:
    given = []
    for step in _STEPS:
        times = listed(ask(answer, *step))
        if len(times) != len(_WAYS):
            raise NotRight(f"Return three times, one for each way; you return {len(times)}.")
        given.append([number(each, "A number of ms") for each in times])
    for place, ways in enumerate(_WAYS):
        key = recognise([times[place] for times in given], ways, _STEPS)
        if key == UNKNOWN:
            pairs = [(times[place], ways[None](*step), step) for times, step in zip(given, _STEPS, strict=True)]
            said, right, step = next(each for each in pairs if not math.isclose(*each[:2], rel_tol=1e-6))
            raise NotRight(
                f"The {('first', 'second', 'third')[place]} time: of work, first touch, copy, pin and transfer of "
                f"{', '.join(map(str, step))} ms you make {said:.4g} ms; {right:.4g} is right. "
                "What comes one after the other, and what runs beside it?"
            )
        if key is not None:
            return key
    return None
