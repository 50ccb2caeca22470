"""The front of the course: README and the landing page, the page *What to use when*, and the table of contents."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

from authoring.course_texts import ANCHOR
from authoring.lesson_answers import answer_text
from authoring.lesson_files import LessonFile, UseWhen
from authoring.pages.generated import BOOK, ROOT, BookError, fill, page
from authoring.reference_pages import reference_pages
from course_utils.lesson_notebooks import read_notebook
from course_utils.results.store import recorded
from course_utils.show.cards import Card

README = ROOT / "README.md"
TOC = BOOK / "_toc.yml"
USE_WHEN = BOOK / "what_to_use_when.md"
CARD = "your_own_program/card"
_FIRST_ROW = re.compile(r"^## In your own program\n(?:(?!## ).*\n)*?\|[ :|-]+\|\n\|(?P<cells>.+)\|$", re.M)
_UNSHOWN = re.compile(rf"<!--.*?-->|{ANCHOR}", re.S)
_LINK = re.compile(r"\[([^\[\]]*)\]\([^()\s]*\)")


def readme(lessons: Sequence[LessonFile]) -> str:
    """README.md with its generated parts as they have to be."""
    text = fill(README.read_text(encoding="utf-8"), "card", card_text())
    return fill(text, "lessons", lessons_table(lessons))


def for_the_book() -> str:
    """README as the landing page includes it, from a folder further down."""
    return README.read_text(encoding="utf-8").replace("](./", "](../")


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
    """A symptom, and what to try, for each lesson that is built and says it."""
    rows = [(lesson, use_when(lesson)) for lesson in lessons if lesson.built]
    return page("what_to_use_when.md", rows=[(lesson, use) for lesson, use in rows if use])


def use_when(lesson: LessonFile) -> UseWhen | None:
    """What leads to a lesson: its lesson.yml says it, or the first row of the table *In your own program*.

    Raises:
        BookError: if a lesson in the newer form, which has a reference page, has neither.
    """
    if lesson.use_when or lesson.slug not in {path.stem for path in reference_pages(ROOT)}:
        return lesson.use_when
    cells = read_notebook(lesson.notebook)["cells"]
    text = "\n\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
    row = _FIRST_ROW.search(_UNSHOWN.sub("", text))
    if row is None:
        raise BookError(f"{lesson.stem}.ipynb has no table under '## In your own program', nor lesson.yml a use_when")
    symptom, try_ = (_LINK.sub(r"\1", cell).strip() for cell in row["cells"].split("|")[:2])
    return UseWhen(symptom, try_)


def _by_part(lessons: Iterable[LessonFile]) -> list[tuple[str, list[LessonFile]]]:
    built = (lesson for lesson in lessons if lesson.built)
    return [(part, list(members)) for part, members in itertools.groupby(built, key=lambda lesson: lesson.part)]


def table_of_contents(lessons: Sequence[LessonFile]) -> str:
    """What ``_toc.yml`` has to contain: our own pages, and the lessons that are built."""
    references = [path.stem for path in reference_pages(ROOT)]
    return page("_toc.yml", parts=_by_part(lessons), references=references)
