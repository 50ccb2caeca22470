"""What an instructor wants to know: routes, times, what to expect on each machine, and where people go wrong.

Routes are in ``book/instructors.yml``, and what to expect is in each lesson.yml. Everything else comes from records,
from the lessons and from their checks.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from authoring import evidence
from authoring.demo import SET_UP_ID, demo_notebook, demo_times
from authoring.evidence import EvidenceError, evaluate, in_words, newest_environment
from authoring.figures_in_text import figure, reading_minutes
from authoring.lesson_answers import answer_of
from authoring.lesson_files import read_lesson
from authoring.predictions import prediction_of
from authoring.rendering import rendered
from course_utils.lessons.answers import Exercise
from course_utils.records.kinds.comparison import Case
from course_utils.records.kinds.environment import Environment
from course_utils.records.lessons import Lesson, find_lesson
from course_utils.records.store import package_root
from course_utils.show.prediction import Prediction
from course_utils.show.reveal import Unit

_PLANS = package_root().parent / "book" / "instructors.yml"
_HALF_A_DAY = 300  # minutes; a longer day has lunch


@dataclass(frozen=True)
class Expectation:
    """One number that the room will see: what is measured, where, and the result with its interval."""

    say: str
    environment: Environment
    words: str


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
    """How long a five-minute path takes: its words at reading speed, and its cells on the slowest machine."""
    shown = [cell["source"] for cell in demo_notebook(lesson)["cells"] if not cell["id"].startswith(SET_UP_ID)]
    return reading_minutes(shown) + max((timed.seconds for timed in demo_times(lesson)), default=0) / 60


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


def expectations(lesson: Lesson) -> list[Expectation]:
    """The numbers to expect, on each machine that has recorded them.

    Raises:
        EvidenceError: if no machine at all has a number that its lesson.yml names.
    """
    prediction = prediction_of(lesson)
    expected: list[Expectation] = []
    for each in read_lesson(package_root() / "lessons" / lesson.slug / "lesson.yml").expect:
        problems, asked = [], [machine for machine in evidence.machines() if each.is_asked(machine)]
        for machine in asked:
            try:
                words = _answer(evaluate(each.value, machine), each.unit, prediction)
                experiments = evidence.recorded(evidence.experiments_in(each.value), machine).values()
                expected.append(Expectation(each.say, newest_environment(experiments), words))
            except EvidenceError as error:  # this machine has no record of it, or one of another size
                problems.append(error)
        if len(problems) == len(asked):
            raise EvidenceError("\n".join(dict.fromkeys(map(str, problems))) or f"no machine is called {each.machine}")
    return expected


def _answer(value: Any, unit: str | None, prediction: Prediction) -> str:
    """A result as the room sees it when the prediction is revealed: with its unit."""
    if isinstance(value, Case) or unit:
        return in_words(value, unit)
    return Unit(prediction.unit).words(value)


def wrong_turns(lesson: Lesson) -> list[Exercise]:
    """The checks of a lesson that recognise misconceptions: each has them by name, with the hint that it gives."""
    checks = vars(importlib.import_module(f"course_utils.lessons.{lesson.slug}.checks")).values()
    return [check for check in checks if isinstance(check, Exercise) and check.hints]


def presenter_notes(lesson: Lesson) -> str:
    """Markdown for whoever gives the five-minute path: times, what to expect, where people go wrong."""
    return rendered(
        "presenter_notes.md",
        times=demo_times(lesson),
        first_lines={cell["id"]: cell["source"].split("\n", 1)[0] for cell in demo_notebook(lesson)["cells"]},
        expectations=expectations(lesson),
        # The path lies in workspace/demo/.
        answer=answer_of(lesson.slug, "../.."),
        wrong_turns=wrong_turns(lesson),
    )
