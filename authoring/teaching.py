"""What an instructor wants to know: routes and their minutes, and notes on the five-minute path of each lesson.

Routes and questions are in ``book/instructors.yml``. Everything else comes from records, lessons and their checks.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import yaml

from authoring.demo import ANEW, demo_notebook, tags_of
from authoring.figures_in_text import lesson_minutes, reading_minutes, running_minutes, shown_minutes
from authoring.lesson_answers import answer_text
from authoring.lesson_files import load_lessons
from authoring.pages.generated import BookError
from authoring.predictions import prediction_of, recorded_answer
from authoring.rendering import rendered
from course_utils.lesson_notebooks import Lesson, find_lesson, find_lessons
from course_utils.lessons.answers import Exercise
from course_utils.results.store import package_root

_PLANS = package_root().parent / "book" / "instructors.yml"
_HALF_A_DAY = 300  # minutes; a longer day has lunch
SLIDES = "slides"  # where the book has them


@cache
def plans() -> dict[str, Any]:
    return yaml.safe_load(_PLANS.read_text(encoding="utf-8"))


def demo_minutes(lesson: Lesson) -> float:
    """How long a five-minute path takes at most: its words at reading speed, and a run of the whole lesson."""
    cells = demo_notebook(lesson)["cells"]
    shown = [cell["source"] for cell in cells if cell["cell_type"] == "markdown" or "demo" in tags_of(cell)]
    return reading_minutes(shown) + running_minutes(lesson)


def routes() -> list[dict[str, Any]]:
    """The routes, with the minutes that lessons and five-minute paths take now.

    A route's ``days`` have their ``minutes``, with discussions, breaks, lunch, welcome and wrap-up, and their
    ``stops``: a ``lesson``, its ``minutes``, and whether it ``is_whole`` or its five-minute path.
    """
    return [
        {**route, "first_to_go": find_lesson(route["first_to_go"]), "days": [*_days(route)]}
        for route in plans()["routes"]
    ]


def _days(route: dict[str, Any]) -> Iterator[dict[str, Any]]:
    plan = plans()["plan"]
    for number, day in enumerate(route["days"], start=1):
        stops = []
        for lesson in sorted(map(find_lesson, [*day["lessons"], *day.get("demos", ())])):
            is_whole = lesson.slug in day["lessons"]
            minutes = shown_minutes(lesson_minutes(lesson)) if is_whole else math.ceil(demo_minutes(lesson))
            stops.append({"lesson": lesson, "minutes": minutes, "is_whole": is_whole})
        sitting = sum(stop["minutes"] + plan["discussion"] * stop["is_whole"] for stop in stops)
        sitting += plan["welcome"] * (number == 1) + plan["wrap_up"] * (number == len(route["days"]))
        breaks = math.ceil(sitting / plan["without_break"]) - 1
        lunch = plan["lunch"] - plan["break"] if route["minutes"] > _HALF_A_DAY else 0
        yield {"stops": stops, "minutes": sitting + breaks * plan["break"] + lunch}


def parts_of_the_guide() -> dict[str, str]:
    """The parts that ``book/instructors.md`` includes, by file name."""
    if without := [lesson.slug for lesson in find_lessons() if lesson.slug not in plans()["questions"]]:
        raise BookError(f"book/instructors.yml has no questions for {', '.join(without)}: put three there")
    return {
        "instructors_routes.md": rendered("instructors_routes.md", routes=routes()),
        "instructors_questions.md": rendered(
            "instructors_questions.md", lessons=find_lessons(), questions=plans()["questions"], slides=SLIDES
        ),
    }


def wrong_turns(lesson: Lesson) -> list[Exercise]:
    """The checks of a lesson that recognise misconceptions: each has them by name, with the hint that it gives."""
    checks = vars(importlib.import_module(f"course_utils.lessons.{lesson.slug}.checks")).values()
    return [check for check in checks if isinstance(check, Exercise) and check.hints]


def presenter_notes(lesson: Lesson) -> str:
    expected, lessons = recorded_answer(lesson.slug), load_lessons()
    file = next(each for each in lessons if each.slug == lesson.slug)
    return rendered(
        "presenter_notes.md",
        lesson=lesson,
        minutes=math.ceil(demo_minutes(lesson)),
        anew=ANEW.format(lesson.number),
        expected=expected and (expected.words(prediction_of(lesson)), expected.result.caption),
        answer=answer_text(file, lessons, "../.."),  # the path lies in workspace/demo/
        wrong_turns=wrong_turns(lesson),
    )
