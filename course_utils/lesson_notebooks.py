"""Lessons as notebooks: finding and reading them, and the experiments in their cells. None of this runs a lesson."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from course_utils.files import clone_root, package_root
from course_utils.show.suggestions import did_you_mean

NEEDS = {"cuda": "a CUDA GPU", "two-gpus": "two CUDA GPUs", "compiler": "a C++ compiler"}
"""What an experiment may need to run live, in words. The tag of its cell is ``needs-`` and the key."""
_COMMENT_LINE = re.compile(r"^\s*#.*", re.MULTILINE)
_EXPERIMENT = re.compile(r"""(?:\bname\s*=\s*|\bceilings\(\s*)(["'])([a-z]\w*/\w+)\1""")
_FILE_NAME = re.compile(r"(?P<number>\d\d)_(?P<slug>[a-z][a-z0-9_]*)\.ipynb")
_TITLE = re.compile(r"#\s+(?:\d+\s*·\s*)?(?P<title>.+?)\s*")


class LessonError(ValueError):
    """A lesson that cannot be found, read or put into normal form. The message says what to do."""


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


def find_lessons() -> list[Lesson]:
    """Returns all lessons in `notebooks_root`, in order: the files named ``NN_slug.ipynb``.

    Raises:
        LessonError: if two lessons share a number or a slug, or a notebook cannot be read.
    """
    lessons: dict[int | str, Lesson] = {}
    for path in sorted(notebooks_root().glob("*.ipynb")):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            continue
        title = _title_of(path.read_bytes(), path.name) or match["slug"].replace("_", " ").capitalize()
        lesson = Lesson(int(match["number"]), match["slug"], title, path)
        for key in (lesson.number, lesson.slug):
            other = lessons.setdefault(key, lesson)
            if other is not lesson:
                raise LessonError(f"{other.path.name} and {path.name} share a number or a slug. Rename one of them.")
    return sorted(set(lessons.values()))


def find_lesson(name: str | int) -> Lesson:
    """Returns the lesson with a number (``"04"`` or ``4``), a slug (``"pinned_memory"``) or a file name.

    Raises:
        LessonError: if there is no such lesson. The message lists those that there are.
    """
    lessons = find_lessons()
    wanted = re.split(r"[\\/]", str(name).strip().removesuffix(".ipynb"))[-1]
    for lesson in lessons:
        if wanted in (lesson.slug, lesson.name) or (wanted.isdecimal() and int(wanted) == lesson.number):
            return lesson
    choices = [lesson.name for lesson in lessons]
    nearest = did_you_mean(wanted, choices) or did_you_mean(wanted, [lesson.slug for lesson in lessons])
    raise LessonError(f"There is no lesson {name!r}{nearest}. The lessons are: {', '.join(choices) or 'none'}.")


def question(lesson: Lesson) -> str:
    """Returns what a lesson asks, as its lesson.yml has it; empty where there is none."""
    import yaml

    path = package_root() / "lessons" / lesson.slug / "lesson.yml"
    if not path.is_file():
        return ""
    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))["question"]


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


# Their files


def read_notebook(path: Path | str) -> dict[str, Any]:
    """Reads a notebook (format 4), with multi-line texts joined."""
    path = Path(path)
    return _parsed(path.read_bytes(), path.name)


def dumped(notebook: dict[str, Any]) -> str:
    """Returns a notebook as text, exactly as JupyterLab saves it: keys sorted, indented by one space, lines split."""
    import nbformat

    return nbformat.v4.writes(nbformat.from_dict(notebook)) + "\n"


def _parsed(content: bytes, file_name: str) -> dict[str, Any]:
    import nbformat  # it takes longer to load than all of the course, and measuring does without

    try:
        return nbformat.v4.reads(content.decode("utf-8"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LessonError(f"{file_name} is damaged: it is no notebook ({error}). Restore it from git.") from error


def _measuring_cells(lesson: Lesson) -> tuple[tuple[str, dict[str, Any]], ...]:
    return _in_notebook(lesson.path.read_bytes(), lesson.path.name, lesson.slug)


@lru_cache(maxsize=64)
def _in_notebook(content: bytes, file_name: str, slug: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Each experiment of a lesson with its cell."""
    return tuple(
        (name, cell)
        for cell in _parsed(content, file_name)["cells"]
        if cell["cell_type"] == "code"
        for name in named_experiments(cell["source"])
        if name.startswith(f"{slug}/")
    )


@lru_cache(maxsize=64)  # every look at a record asks for the lessons
def _title_of(content: bytes, file_name: str) -> str:
    for cell in _parsed(content, file_name)["cells"]:
        if cell["cell_type"] == "markdown" and (match := _TITLE.fullmatch(cell["source"].split("\n", 1)[0])):
            return match["title"]
    return ""
