"""The one list of lessons, ``lessons.yml``, and the table of contents that follows from it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from authoring.pages.generated import BOOK, ROOT, BookError, markdown_table

TOC = BOOK / "_toc.yml"


@dataclass(frozen=True)
class Lesson:
    """One lesson of ``lessons.yml``.

    Attributes:
        number: its place in the course.
        slug: the name that its notebook, its records and its exercises share.
        title: what the lesson is called.
        question: what a reader would ask.
        part: title of the part of the course that it belongs to.
        finding: what the tables of lessons show of it: the id of a claim and labels of the claim's numbers. By default
            the first number with an interval, or the first, of the first claim that is decided.
    """

    number: int
    slug: str
    title: str
    question: str
    part: str
    finding: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """File name of the notebook, without its suffix."""
        return f"{self.number:02d}_{self.slug}"

    @property
    def notebook(self) -> Path:
        """Where the notebook is, or will be."""
        return ROOT / "notebooks" / f"{self.stem}.ipynb"

    @property
    def built(self) -> bool:
        """Whether the lesson can be taken: its notebook exists."""
        return self.notebook.is_file()


def load_lessons() -> list[Lesson]:
    """Read ``lessons.yml``.

    Returns:
        All lessons, built and planned, in order.

    Raises:
        BookError: if numbers do not count up from 0, or if a notebook is missing from the list.
    """
    parts = yaml.safe_load((BOOK / "lessons.yml").read_text(encoding="utf-8"))["parts"]
    lessons = [
        Lesson(**{**lesson, "finding": tuple(lesson.get("finding", ()))}, part=part["title"])
        for part in parts
        for lesson in part["lessons"]
    ]
    if [lesson.number for lesson in lessons] != list(range(len(lessons))):
        raise BookError("the numbers in book/lessons.yml must count up from 0 without a gap")
    unlisted = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} - {lesson.stem for lesson in lessons}
    if unlisted:
        raise BookError(f"add {', '.join(sorted(unlisted))} to book/lessons.yml: every notebook is listed there")
    return lessons


def lessons_table(lessons: Iterable[Lesson], findings: Mapping[str, str], notebooks: str = "notebooks") -> str:
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
            shown = (
                f"[{lesson.title}]({notebooks}/{lesson.stem}.ipynb)" if lesson.built else f"{lesson.title} *(planned)*"
            )
            rows.append([f"{lesson.number:02d}", lesson.question, shown, findings.get(lesson.slug, "")])
    return markdown_table(["", "Your question", "Lesson", "Found so far"], rows)


def table_of_contents(lessons: Sequence[Lesson]) -> str:
    """What ``_toc.yml`` has to contain: our own pages, and the lessons that are built."""
    lines = [
        "# The table of contents of the book. `make refresh` writes it from lessons.yml and from the notebooks and",
        "# pages that exist; a build stops when it is out of date.",
        "format: jb-book",
        "root: book/intro",
        "parts:",
        "  - caption: Before you start",
        "    chapters:",
        "      - file: book/how_we_measure",
        "      - file: book/claims",
    ]
    built = [lesson for lesson in lessons if lesson.built]
    for part, members in itertools.groupby(built, key=lambda lesson: lesson.part):
        lines += [f"  - caption: {part}", "    chapters:"]
        for lesson in members:
            lines += [
                f"      - file: notebooks/{lesson.stem}",
                f'        title: "{lesson.number:02d} · {lesson.title}"',
            ]
    lines += [
        "  - caption: Look things up",
        "    chapters:",
        "      - file: book/glossary",
        "      - file: book/limits",
        "      - file: book/status",
    ]
    if (BOOK / "instructors.md").is_file():
        lines += [
            "  - caption: Teach it",
            "    chapters:",
            "      - file: book/instructors",
        ]
    return "\n".join(lines) + "\n"


def check_toc(lessons: Sequence[Lesson]) -> None:
    """Stop when ``_toc.yml`` and the notebooks part.

    Raises:
        BookError: if they do.
    """
    if not TOC.is_file() or TOC.read_text(encoding="utf-8") != table_of_contents(lessons):
        raise BookError("book/_toc.yml is out of date: run `make refresh` and commit it")
