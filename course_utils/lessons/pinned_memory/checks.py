"""The check of the lesson's exercise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from course_utils.lessons.answers import NotRight, ask, exercise, listed, number, recognise

# Work, copy, pin and transfer in ms; the longest is the work, the thread, the copy.
_STEPS = ((100, 2, 3, 0.5), (1, 3, 6, 0.7), (10, 4, 9, 3.5), (2, 9, 11, 8))
# What people write for the two numbers; None is what is right.
_FIRST: Mapping[str | None, Callable[..., float]] = {
    None: lambda w, c, p, t: c + w,
    "transfer_twice": lambda w, c, p, t: c + t + w,
}
_SECOND: Mapping[str | None, Callable[..., float]] = {
    None: lambda w, c, p, t: max(p, t + w),
    "all_in_a_row": lambda w, c, p, t: p + t + w,
    "thread_forgotten": lambda w, c, p, t: t + w,
}


@exercise
def check_step_times(answer: Any) -> str | None:
    given = []
    for step in _STEPS:
        numbers = listed(ask(answer, *step))
        if len(numbers) != 2:
            raise NotRight(f"Return two numbers, one for each loader; you return {len(numbers)}.")
        given.append([number(each, "A number of ms") for each in numbers])
    says = (
        " number: of work, copy, pin and transfer of {}, {}, {}, {} ms you make {:.4g} ms; {:.4g} is right. "
        "What comes one after the other, and what runs beside it?"
    )
    first, second = zip(*given, strict=True)
    key = recognise(first, _FIRST, _STEPS, ("The first" + says).format)
    return key or recognise(second, _SECOND, _STEPS, ("The second" + says).format)
