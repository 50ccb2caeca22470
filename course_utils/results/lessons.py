"""Lessons: finding them, and what experiments they hold. None of this runs a lesson."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from course_utils import lesson_order
from course_utils.results.files import clone_root, package_root
from course_utils.results.notebook_files import NEEDS, LessonError, notebook_bytes, parsed_notebook
from course_utils.show.suggestions import did_you_mean

__all__ = ["NEEDS", "LessonError"]  # from here, too

_COMMENT_LINE = re.compile(r"^\s*#.*", re.MULTILINE)
_EXPERIMENT = re.compile(r"""(?:\bname\s*=\s*|\bceilings\(\s*)(["'])([a-z]\w*/\w+)\1""")
_FILE_NAME = re.compile(r"(?P<number>\d\d)_(?P<slug>[a-z][a-z0-9_]*)\.ipynb")
_TITLE = re.compile(r"#\s+(?:\d+\s*·\s*)?(?P<title>.+?)\s*")


class PlannedLessonError(LessonError):
    """A lesson that is planned: it has a lesson.yml, and no notebook yet."""


@dataclass(frozen=True, order=True)
class Lesson:
    """One lesson."""

    number: int  # its place in the course, for example 4
    slug: str  # its short name, for example ``pinned_memory``. Experiments are named ``slug/experiment``.
    title: str  # the title in its first heading, without the number
    path: Path

    @property
    def name(self) -> str:
        """The file name without its suffix, ``NN_slug``."""
        return self.path.stem

    def is_called(self, wanted: str) -> bool:
        """Whether a text is this lesson's slug, name or number."""
        return wanted in (self.slug, self.name) or (wanted.isdecimal() and int(wanted) == self.number)


def notebooks_root() -> Path:
    """Returns ``notebooks/`` of the clone or, in an installed package, the package's own.

    ``COURSE_NOTEBOOKS`` names another folder. It must be there.
    """
    chosen = os.environ.get("COURSE_NOTEBOOKS")
    root = Path(chosen) if chosen else (clone_root() or package_root()) / "notebooks"
    if not root.is_dir():
        advice = "Correct or unset COURSE_NOTEBOOKS." if chosen else "Work in a clone of the repository."
        raise LessonError(f"There is no notebooks folder at {root}. {advice}")
    return root


def find_lessons(root: Path | str | None = None) -> list[Lesson]:
    """Returns all lessons in a folder (`notebooks_root` by default), in order: the files named ``NN_slug.ipynb``.

    Raises:
        LessonError: if two lessons share a number or a slug, or a notebook cannot be read.
    """
    folder = notebooks_root() if root is None else Path(root)
    lessons: dict[int | str, Lesson] = {}
    for path in sorted(folder.glob("*.ipynb")):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            continue
        title = _title_of(notebook_bytes(path), path.name, match["slug"])
        lesson = Lesson(int(match["number"]), match["slug"], title, path)
        for key in (lesson.number, lesson.slug):
            other = lessons.setdefault(key, lesson)
            if other is not lesson:
                raise LessonError(f"{other.path.name} and {path.name} share a number or a slug. Rename one of them.")
    return sorted(set(lessons.values()))


def find_lesson(name: str | int, root: Path | str | None = None) -> Lesson:
    """Returns the lesson with a number (``"04"`` or ``4``), a slug (``"pinned_memory"``) or a file name.

    Raises:
        PlannedLessonError: if it has no notebook yet. This message, too, lists the lessons there are.
        LessonError: if there is no such lesson.
    """
    lessons = find_lessons(root)
    wanted = re.split(r"[\\/]", str(name).strip().removesuffix(".ipynb"))[-1]
    for lesson in lessons:
        if lesson.is_called(wanted):
            return lesson
    if not lessons:
        raise LessonError(f"There is no lesson {name!r}: the folder holds no lessons at all.")
    choices = [lesson.name for lesson in lessons]
    for slug in lesson_order.slugs():
        if slug not in {each.slug for each in lessons} and (lesson := _planned(slug)).is_called(wanted):
            raise PlannedLessonError(
                f"Lesson {lesson.number:02d} ({lesson.title}) is planned and not written yet; "
                f"there are: {', '.join(choices)}."
            )
    nearest = did_you_mean(wanted, choices) or did_you_mean(wanted, [lesson.slug for lesson in lessons])
    raise LessonError(f"There is no lesson {name!r}{nearest}. The lessons are: {', '.join(choices)}.")


def question(lesson: Lesson) -> str:
    """Returns what a lesson asks, as its lesson.yml has it; empty where there is none."""
    path = package_root() / "lessons" / lesson.slug / "lesson.yml"
    return _entry(path)["question"] if path.is_file() else ""


def _planned(slug: str) -> Lesson:
    """The lesson that a lesson.yml promises, with the name that its notebook will have."""
    title = _entry(package_root() / "lessons" / slug / "lesson.yml")["title"]
    return Lesson(lesson_order.number(slug), slug, title, Path(f"{lesson_order.file_name(slug)}.ipynb"))


@lru_cache(maxsize=64)
def _entry(path: Path) -> dict[str, Any]:
    import yaml

    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def experiments(lesson: Lesson) -> list[str]:
    """Returns the names of a lesson's experiments in notebook order; none is used twice."""
    names = [name for name, _ in _measuring_cells(lesson)]
    for name in names:
        if names.count(name) > 1:
            raise LessonError(f"{lesson.path.name} has two experiments named {name!r}. Give each its own name.")
    return names


def needs(lesson: Lesson) -> dict[str, tuple[str, ...]]:
    """Returns keys of `NEEDS` by experiment: its cell has a tag such as ``needs-cuda``. What needs none is left out."""
    needed: dict[str, tuple[str, ...]] = {}
    for name, cell in _measuring_cells(lesson):
        tags = cell["metadata"].get("tags", [])
        for key in (tag.removeprefix("needs-") for tag in tags if tag.startswith("needs-")):
            needed[name] = (*needed.get(name, ()), key)
    return needed


def measuring_cell(lesson: Lesson, name: str) -> str:
    """Returns the source of the cell that measures an experiment.

    Raises:
        LessonError: if the lesson has no such experiment. The message lists those that it has.
    """
    cells = dict(_measuring_cells(lesson))
    if name not in cells:
        choices = ", ".join(cells) or "none"
        raise LessonError(
            f"{lesson.path.name} has no experiment {name!r}{did_you_mean(name, cells)}. It has: {choices}."
        )
    return cells[name]["source"]


def named_experiments(source: str) -> list[str]:
    """Returns the names of the experiments in a cell, in order.

    A name is a keyword ``name=`` with a plain string of the form ``slug/experiment``; ``ceilings("slug/experiment")``
    has one, too.

    Example:
        >>> named_experiments('compare(cases, name="pinned_memory/copy", budget_s=2)')
        ['pinned_memory/copy']
    """
    return [match[2] for match in _EXPERIMENT.finditer(_COMMENT_LINE.sub("", source))]


def _measuring_cells(lesson: Lesson) -> tuple[tuple[str, dict[str, Any]], ...]:
    return _in_notebook(notebook_bytes(lesson.path), lesson.path.name, lesson.slug)


@lru_cache(maxsize=64)
def _in_notebook(content: bytes, file_name: str, slug: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Each experiment of a lesson with its cell."""
    return tuple(
        (name, cell)
        for cell in parsed_notebook(content, file_name)["cells"]
        if cell["cell_type"] == "code"
        for name in named_experiments(cell["source"])
        if name.startswith(f"{slug}/")
    )


@lru_cache(maxsize=64)  # every look at a record asks for the lessons
def _title_of(content: bytes, file_name: str, slug: str) -> str:
    for cell in parsed_notebook(content, file_name)["cells"]:
        if cell["cell_type"] == "markdown" and (match := _TITLE.fullmatch(cell["source"].split("\n", 1)[0])):
            return match["title"]
    return slug.replace("_", " ").capitalize()
