"""What an instructor wants to know: routes and their minutes, and notes on the five-minute path of each lesson.

Routes and questions are in ``book/instructors.yml``. Everything else comes from records, lessons and
their checks.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import yaml

from authoring.demo import ANEW, demo_notebook, demo_times, live_cells
from authoring.figures_in_text import figure, reading_minutes
from authoring.lesson_answers import answer_of
from authoring.predictions import prediction_of, recorded_answer
from authoring.rendering import rendered
from authoring.room_text import headings_above
from course_utils.lesson_notebooks import Lesson, find_lesson, read_notebook
from course_utils.lessons.answers import Exercise
from course_utils.results.store import package_root

_PLANS = package_root().parent / "book" / "instructors.yml"
_HALF_A_DAY = 300  # minutes; a longer day has lunch


class Stop(NamedTuple):
    """A lesson of a route: all of it, or its five-minute path."""

    lesson: Lesson
    is_whole: bool
    minutes: int


class Day(NamedTuple):
    stops: tuple[Stop, ...]
    minutes: int  # with discussions, breaks, lunch, welcome and wrap-up


class Route(NamedTuple):
    """A way through the course: how long the room is free on each day, and what goes first if that is too short."""

    name: str
    minutes: int
    about: str
    first_to_go: Lesson
    days: tuple[Day, ...]


@cache
def plans() -> dict[str, Any]:
    """What ``book/instructors.yml`` holds."""
    return yaml.safe_load(_PLANS.read_text(encoding="utf-8"))


def demo_minutes(lesson: Lesson) -> float:
    """How long a five-minute path takes: its words at reading speed, and its cells as they were timed."""
    path = demo_notebook(lesson)
    live = live_cells(path)
    shown = [cell["source"] for cell in path["cells"] if cell["cell_type"] == "markdown" or cell["id"] in live]
    return reading_minutes(shown) + sum(demo_times()[lesson.slug]["cells_s"].values()) / 60


def routes() -> list[Route]:
    """The routes, with the minutes that lessons and five-minute paths take now."""
    return [
        Route(each["name"], each["minutes"], each["about"], find_lesson(each["first_to_go"]), tuple(_days(each)))
        for each in plans()["routes"]
    ]


def _days(route: dict[str, Any]) -> Iterator[Day]:
    plan = plans()["plan"]
    for number, day in enumerate(route["days"], start=1):
        stops = [
            Stop(lesson, True, int(figure(f"time {lesson.slug}").split()[0]))
            if lesson.slug in day["lessons"]
            else Stop(lesson, False, math.ceil(demo_minutes(lesson)))
            for lesson in sorted(map(find_lesson, [*day["lessons"], *day.get("demos", ())]))
        ]
        sitting = sum(stop.minutes + plan["discussion"] * stop.is_whole for stop in stops)
        sitting += plan["welcome"] * (number == 1) + plan["wrap_up"] * (number == len(route["days"]))
        breaks = math.ceil(sitting / plan["without_break"]) - 1
        lunch = plan["lunch"] - plan["break"] if route["minutes"] > _HALF_A_DAY else 0
        yield Day(tuple(stops), sitting + breaks * plan["break"] + lunch)


def wrong_turns(lesson: Lesson) -> list[Exercise]:
    """The checks of a lesson that recognise misconceptions: each has them by name, with the hint that it gives."""
    checks = vars(importlib.import_module(f"course_utils.lessons.{lesson.slug}.checks")).values()
    return [check for check in checks if isinstance(check, Exercise) and check.hints]


def presenter_notes(lesson: Lesson) -> str:
    """Markdown for whoever gives the five-minute path: times, what to expect, where people go wrong."""
    prediction, expected = prediction_of(lesson), recorded_answer(lesson.slug)
    timed = demo_times()[lesson.slug]
    return rendered(
        "presenter_notes.md",
        timed=timed,
        seconds=sum(timed["cells_s"].values()),
        lesson=lesson,
        anew=ANEW.format(lesson.number),
        headings=headings_above(read_notebook(lesson.path)["cells"]),
        expected=expected and (expected.words(prediction), expected.result.caption),
        # The path lies in workspace/demo/.
        answer=answer_of(lesson.slug, "../.."),
        wrong_turns=wrong_turns(lesson),
    )
