"""The front of the course: README and the landing page, the page *What to use when*, and the table of contents."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from authoring.lesson_answers import answer_text
from authoring.lesson_files import LessonFile
from authoring.pages.generated import BOOK, ROOT, fill, page
from authoring.reference_pages import reference_pages
from course_utils.results.store import recorded
from course_utils.show.cards import Card

README = ROOT / "README.md"
TOC = BOOK / "_toc.yml"
USE_WHEN = BOOK / "what_to_use_when.md"
CARD = "your_own_program/card"


def readme(lessons: Sequence[LessonFile]) -> str:
    text = fill(README.read_text(encoding="utf-8"), "card", card_text())
    return fill(text, "lessons", lessons_table(lessons))


def lessons_table(lessons: Sequence[LessonFile]) -> str:
    """A question and its answer for each lesson that is built, by the parts of the course."""
    parts = [
        (part, [(lesson, answer_text(lesson, lessons, ".")) for lesson in members])
        for part, members in _by_part(lessons)
    ]
    return page("lessons.md", parts=parts)


def card_text() -> str:
    """What `diagnose` said of a recorded step, without its reasons and remarks."""
    reading = recorded(CARD)
    shown = Card("".join(part.text for part in reading.said), reading.rows[:3], reading.axis, reading.heads)
    return page("card.md", card=shown, plan=reading.plan, where=reading.caption)


def use_when_page(lessons: Iterable[LessonFile]) -> str:
    return page("what_to_use_when.md", lessons=[lesson for lesson in lessons if lesson.built])


def _by_part(lessons: Iterable[LessonFile]) -> list[tuple[str, list[LessonFile]]]:
    built = (lesson for lesson in lessons if lesson.built)
    return [(part, list(members)) for part, members in itertools.groupby(built, key=lambda lesson: lesson.part)]


def table_of_contents(lessons: Sequence[LessonFile]) -> str:
    return page("_toc.yml", parts=_by_part(lessons), references=[path.stem for path in reference_pages()])
