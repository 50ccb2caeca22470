"""What an instructor wants to know: routes and their minutes, and notes on the five-minute path of each lesson.

Routes are in ``book/instructors.yml``. Everything else comes from records, from the lessons and from their checks.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from authoring.demo import ANEW, demo_notebook, demo_times, live_cells
from authoring.figures_in_text import figure, reading_minutes
from authoring.lesson_answers import answer_of
from authoring.predictions import prediction_of, recorded_answers
from authoring.rendering import rendered
from authoring.room_text import headings_above
from course_utils.lessons.answers import Exercise
from course_utils.records.lessons import Lesson, find_lesson
from course_utils.records.notebook_files import read_notebook
from course_utils.records.store import package_root

_PLANS = package_root().parent / "book" / "instructors.yml"
_HALF_A_DAY = 300  # minutes; a longer day has lunch


@dataclass(frozen=True)
class Stop:
    """One part of a route: a break or the like, or how a lesson is taught."""

    what: str
    lesson: Lesson | None
    minutes: int


@dataclass(frozen=True)
class Route:
    """A way through the course: how long the room is free on each day, and the parts of each day with their breaks."""

    name: str
    minutes: int
    about: str
    days: tuple[tuple[Stop, ...], ...]

    @property
    def planned_minutes(self) -> tuple[int, ...]:
        """Minutes of each day."""
        return tuple(sum(stop.minutes for stop in day) for day in self.days)

    @property
    def spare_minutes(self) -> tuple[int, ...]:
        """Minutes of each day for which nothing is planned."""
        return tuple(self.minutes - minutes for minutes in self.planned_minutes)


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
    return [Route(each["name"], each["minutes"], each["about"], tuple(_days(each))) for each in plans()["routes"]]


def _days(route: dict[str, Any]) -> Iterator[tuple[Stop, ...]]:
    plan = plans()["plan"]
    discussion = route.get("discussion", plan["discussion"])
    for number, day in enumerate(route["days"], start=1):
        stops = [Stop("Welcome", None, plan["welcome"])] if number == 1 else []
        for lesson in sorted(map(find_lesson, [*day["lessons"], *day["demos"]])):
            if lesson.slug in day["lessons"]:
                # Of the minutes that the lesson itself states: reading, exercises and one run.
                stated = int(figure(f"time {lesson.slug}").split()[0])
                stops.append(Stop("with discussion", lesson, stated + discussion))
            else:
                stops.append(Stop("five-minute path", lesson, math.ceil(demo_minutes(lesson))))
        if number == len(route["days"]):
            stops.append(Stop("What will you measure in your own program?", None, plan["wrap_up"]))
        yield tuple(_with_breaks(stops, plan, has_lunch=route["minutes"] > _HALF_A_DAY))


def _with_breaks(stops: Sequence[Stop], plan: dict[str, int], has_lunch: bool) -> Iterator[Stop]:
    """Breaks where the room would sit for too long. Lunch is the one that is nearest to the middle."""
    sitting = passed = 0
    before: dict[int, int] = {}  # the minutes before each stop that comes after a break
    for index, stop in enumerate(stops):
        if index and sitting + stop.minutes > plan["without_break"]:
            before[index], sitting = passed, 0
        sitting += stop.minutes
        passed += stop.minutes
    lunch = min(before, key=lambda index: abs(before[index] - passed / 2), default=None) if has_lunch else None
    for index, stop in enumerate(stops):
        if index in before:
            yield Stop("Lunch", None, plan["lunch"]) if index == lunch else Stop("Break", None, plan["break"])
        yield stop


def wrong_turns(lesson: Lesson) -> list[Exercise]:
    """The checks of a lesson that recognise misconceptions: each has them by name, with the hint that it gives."""
    checks = vars(importlib.import_module(f"course_utils.lessons.{lesson.slug}.checks")).values()
    return [check for check in checks if isinstance(check, Exercise) and check.hints]


def presenter_notes(lesson: Lesson) -> str:
    """Markdown for whoever gives the five-minute path: times, what to expect, where people go wrong."""
    prediction = prediction_of(lesson)
    timed = demo_times()[lesson.slug]
    return rendered(
        "presenter_notes.md",
        timed=timed,
        seconds=sum(timed["cells_s"].values()),
        lesson=lesson,
        anew=ANEW.format(lesson.number),
        headings=headings_above(read_notebook(lesson.path)["cells"]),
        expected=[(answer.words(prediction), answer.result) for answer in recorded_answers(lesson.slug)],
        # The path lies in workspace/demo/.
        answer=answer_of(lesson.slug, "../.."),
        wrong_turns=wrong_turns(lesson),
    )
