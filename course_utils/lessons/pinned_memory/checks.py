"""The check of the lesson's exercise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from course_utils.lessons.answers import UNKNOWN, NotRight, ask, exercise, listed, number, recognise

# Work, copy, pin and transfer in ms; the longest is the work, the thread, the copy.
_STEPS = ((100, 2, 3, 0.5), (1, 3, 6, 0.7), (10, 4, 9, 3.5), (2, 9, 11, 8))
# What people write for both numbers; None is what is right.
_NUMBERS: tuple[Mapping[str | None, Callable[..., float]], ...] = (
    {
        None: lambda w, c, p, t: c + w,
        "transfer_twice": lambda w, c, p, t: c + t + w,
    },
    {
        None: lambda w, c, p, t: max(p, t + w),
        "all_in_a_row": lambda w, c, p, t: p + t + w,
        "thread_forgotten": lambda w, c, p, t: t + w,
    },
)


@exercise
def check_step_times(answer: Any) -> str | None:
    given = []
    for step in _STEPS:
        numbers = listed(ask(answer, *step))
        if len(numbers) != len(_NUMBERS):
            raise NotRight(f"Return two numbers, one for each loader; you return {len(numbers)}.")
        given.append([number(each, "A number of ms") for each in numbers])
    for place, ways in enumerate(_NUMBERS):
        key = recognise([numbers[place] for numbers in given], ways, _STEPS)
        if key == UNKNOWN:
            pairs = [(numbers[place], ways[None](*step), step) for numbers, step in zip(given, _STEPS, strict=True)]
            said, right, step = next(each for each in pairs if not math.isclose(*each[:2], rel_tol=1e-6))
            raise NotRight(
                f"The {('first', 'second')[place]} number: of work, copy, pin and transfer of "
                f"{', '.join(map(str, step))} ms you make {said:.4g} ms; {right:.4g} is right. "
                "What comes one after the other, and what runs beside it?"
            )
        if key is not None:
            return key
    return None
