"""README, and what tells of all lessons: their table with what each answers, and the book's table of contents."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from authoring.claims import Judgement
from authoring.evidence import NotRecordedError
from authoring.figures_in_text import lesson_minutes, shown_minutes
from authoring.lesson_answers import AnswerText, answer_text
from authoring.lesson_files import LessonFile
from authoring.pages.evidence_pages import address_of
from authoring.pages.front import front_text
from authoring.pages.generated import BOOK, ROOT, fill, page
from authoring.reference_pages import reference_pages
from course_utils.records.lessons import find_lesson, needs

README = ROOT / "README.md"
TOC = BOOK / "_toc.yml"


class LessonRow(NamedTuple):
    lesson: LessonFile
    answer: AnswerText
    minutes: int | None  # None as long as no machine has recorded it
    gpu: str  # whether it takes a GPU, in words


def lessons_table(lessons: Sequence[LessonFile], root: str) -> str:
    """The table of lessons with their answers, and the planned ones below.

    ``root`` is the way from the page to the root of the repository, such as ``..``.
    """
    rows = [_row(lesson, lessons, root) for lesson in lessons if lesson.built]
    planned = [lesson for lesson in lessons if not lesson.built]
    return page("lessons.md", rows=rows, planned=planned, notebooks=f"{root}/notebooks")


def _row(lesson: LessonFile, lessons: Sequence[LessonFile], root: str) -> LessonRow:
    found = find_lesson(lesson.slug)
    needed = {need for tags in needs(found).values() for need in tags}
    gpu = "two GPUs for a part" if "two-gpus" in needed else "a GPU for a part" if "cuda" in needed else "no GPU needed"
    minutes = None
    with contextlib.suppress(NotRecordedError):
        minutes = shown_minutes(lesson_minutes(found))
    return LessonRow(lesson, answer_text(lesson, lessons, root), minutes, gpu)


def _by_part(lessons: Iterable[LessonFile]) -> list[tuple[str, list[LessonFile]]]:
    return [(part, list(members)) for part, members in itertools.groupby(lessons, key=lambda lesson: lesson.part)]


def readme(lessons: Sequence[LessonFile], judgements: Sequence[Judgement]) -> str:
    """README.md with its generated parts as they have to be."""
    text = fill(README.read_text(encoding="utf-8"), "findings", front_text(judgements, "."))
    return fill(text, "lessons", lessons_table(lessons, "."))


def table_of_contents(lessons: Sequence[LessonFile]) -> str:
    """What ``_toc.yml`` has to contain: our own pages, and the lessons that are built."""
    parts = _by_part(lesson for lesson in lessons if lesson.built)
    evidence = [lesson for lesson in lessons if lesson.claims and address_of(lesson).startswith("evidence")]
    return page("_toc.yml", parts=parts, evidence=evidence, references=[path.stem for path in reference_pages(ROOT)])
