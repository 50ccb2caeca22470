"""The check of the exercise: what each gap of `pictures.four_gaps` waits for."""

from __future__ import annotations

from typing import Any

from course_utils.lessons.answers import NotRight, exercise, listed

WAITS = "Python", "data", "a sync", "another stream"
_RIGHT = ["data", "a sync", "another stream", "Python"]
# What people say of a gap instead, by its place, and the hint that answers it.
_HINTS = {"Python": {0: "loader", 1: "backward", 2: "straight_up"}, "another stream": {3: "nccl_is_done"}}


@exercise
def check_gaps(answer: Any) -> str | None:
    if isinstance(answer, str):
        raise NotRight("One text is no list: write the four between brackets, with commas.")
    said = [str(each).strip() for each in listed(answer)]
    if unknown := [each for each in said if each not in WAITS]:
        raise NotRight(f"{unknown[0]!r} is none of the four: {', '.join(WAITS)}.")
    if len(said) != len(_RIGHT):
        raise NotRight(f"There are four gaps, and you name {len(said)}.")
    wrong = [place for place, (mine, right) in enumerate(zip(said, _RIGHT, strict=True)) if mine != right]
    for place in wrong:
        if hint := _HINTS.get(said[place], {}).get(place):
            return hint
    if wrong:
        raise NotRight(f"Gap {wrong[0] + 1} does not wait for: {said[wrong[0]]}. When was its next kernel launched?")
    return None
