"""The generated parts of the instructor's guide, and the slides that it links."""

from __future__ import annotations

from pathlib import Path

from authoring.demo import demo_times
from authoring.lesson_answers import answer_of
from authoring.rendering import rendered
from authoring.slides import write_slides
from authoring.teaching import demo_minutes, expectations, routes, wrong_turns
from course_utils.records.kinds.environment import Environment, titles
from course_utils.records.lessons import find_lessons

SLIDES = "slides"


def generated() -> dict[str, str]:
    """The parts that ``book/instructors.md`` includes, by file name."""
    lessons = find_lessons()
    environments: dict[str, Environment] = {}
    demos = []
    for lesson in lessons:
        times = {each.environment.machine: each for each in demo_times(lesson)}
        environments |= {machine: each.environment for machine, each in times.items()}
        demos.append({"lesson": lesson, "minutes": demo_minutes(lesson), "times": times})
    timed_on = {"titles": titles(environments.values()), "captions": [each.caption for each in environments.values()]}
    expected = {lesson: expectations(lesson) for lesson in lessons}
    answers = {lesson: answer_of(lesson.slug, "..") for lesson in lessons}
    values = {
        "routes": {"routes": routes()},
        "demos": {"demos": demos, "slides": SLIDES, **timed_on},
        "expectations": {"expectations": expected, "answers": answers},
        "wrong_turns": {"wrong_turns": {lesson: wrong_turns(lesson) for lesson in lessons}},
    }
    return {f"instructors_{part}.md": rendered(f"instructors_{part}.md", **given) for part, given in values.items()}


def add_slides(html: Path) -> None:
    """Write the slides beside the pages of the book, where they share its copy of reveal.js and MathJax."""
    write_slides(find_lessons(), html / SLIDES, assets="../_static")
