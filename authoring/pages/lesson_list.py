"""The table of lessons, and the book's table of contents."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from authoring.lesson_files import LessonFile
from authoring.pages.generated import BOOK, BookError, markdown_table, page

TOC = BOOK / "_toc.yml"


def lessons_table(lessons: Iterable[LessonFile], findings: Mapping[str, str], notebooks: str = "notebooks") -> str:
    """The table from questions to lessons and to what they found, as Markdown.

    Args:
        lessons: the lessons to list.
        findings: what a lesson found, in a phrase, by slug.
        notebooks: path of the notebooks, relative to the page that the table stands on.

    Returns:
        The table. Built lessons are links, the others are marked as planned.
    """
    rows = []
    for part, members in itertools.groupby(lessons, key=lambda lesson: lesson.part):
        rows.append(["", f"**{part}**", "", ""])
        for lesson in members:
            link = f"[{lesson.title}]({notebooks}/{lesson.stem}.ipynb)"
            shown = link if lesson.built else f"{lesson.title} *(planned)*"
            rows.append([f"{lesson.number:02d}", lesson.question, shown, findings.get(lesson.slug, "")])
    return markdown_table(["", "Your question", "Lesson", "Found so far"], rows)


def table_of_contents(lessons: Sequence[LessonFile]) -> str:
    """What ``_toc.yml`` has to contain: our own pages, and the lessons that are built."""
    built = [lesson for lesson in lessons if lesson.built]
    parts = itertools.groupby(built, key=lambda lesson: lesson.part)
    return page("_toc.yml", parts=[(part, list(members)) for part, members in parts])


def check_toc(lessons: Sequence[LessonFile]) -> None:
    """Stop when ``_toc.yml`` and the notebooks part.

    Raises:
        BookError: if they do.
    """
    if not TOC.is_file() or TOC.read_text(encoding="utf-8") != table_of_contents(lessons):
        raise BookError("book/_toc.yml is out of date: run `make refresh` and commit it")
