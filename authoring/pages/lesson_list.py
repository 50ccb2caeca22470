"""The table of lessons, and the book's table of contents."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from authoring.lesson_files import LessonFile
from authoring.pages.generated import BOOK, markdown_table, page

TOC = BOOK / "_toc.yml"


def lessons_table(lessons: Iterable[LessonFile], findings: Mapping[str, str], notebooks: str = "notebooks") -> str:
    """The table from questions to lessons and to what they found (by slug), as Markdown.

    Built lessons are links, by the path from the page to the notebooks; the others are marked as planned.
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
