"""Lessons: finding them, and what experiments they hold.

`find_lessons` and `find_lesson` turn ``notebooks/NN_slug.ipynb`` into `Lesson` objects, `experiments` names what a
lesson measures, and `fingerprint` says which code and problem sizes an experiment has. None of them runs a lesson.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from course_utils.records.fingerprints import Fingerprint, experiment_names, fingerprint, tagged_experiments
from course_utils.records.notebook_files import NEEDS, LessonError, notebook_bytes, parsed_notebook, read_notebook

__all__ = [
    "NEEDS",
    "Fingerprint",
    "Lesson",
    "LessonError",
    "experiments",
    "find_lesson",
    "find_lessons",
    "fingerprint",
    "needs",
    "notebooks_root",
    "read_notebook",
]

_FILE_NAME = re.compile(r"(?P<number>\d\d)_(?P<slug>[a-z][a-z0-9_]*)\.ipynb")
_TITLE = re.compile(r"#\s+(?:\d+\s*·\s*)?(?P<title>.+?)\s*")


@dataclass(frozen=True, order=True)
class Lesson:
    """One lesson.

    Attributes:
        number: its place in the course, for example 4.
        slug: its short name, for example ``pinned_memory``. Experiments are named ``slug/experiment``.
        title: the title in its first heading, without the number.
        path: the notebook.
    """

    number: int
    slug: str
    title: str
    path: Path

    @property
    def name(self) -> str:
        """The file name without its suffix, for example ``04_pinned_memory``."""
        return self.path.stem


def notebooks_root() -> Path:
    """Returns the folder that holds the notebooks.

    It is ``notebooks/`` beside the package; the environment variable ``COURSE_NOTEBOOKS`` names another one.

    Raises:
        LessonError: if there is no such folder.
    """
    chosen = os.environ.get("COURSE_NOTEBOOKS")
    root = Path(chosen) if chosen else Path(__file__).resolve().parents[2] / "notebooks"
    if not root.is_dir():
        advice = (
            "Correct or unset COURSE_NOTEBOOKS."
            if chosen
            else "Work in a clone of the repository, or set COURSE_NOTEBOOKS to the folder that holds the lessons."
        )
        raise LessonError(f"There is no notebooks folder at {root}. {advice}")
    return root


def find_lessons(root: Path | str | None = None) -> list[Lesson]:
    """Returns all lessons, in order.

    Args:
        root: the folder to look in; `notebooks_root` by default. Files not named ``NN_slug.ipynb`` are no lessons.

    Raises:
        LessonError: if two lessons share a number or a slug, or a notebook cannot be read.
    """
    folder = notebooks_root() if root is None else Path(root)
    lessons: list[Lesson] = []
    for path in sorted(folder.glob("*.ipynb")):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            continue
        title = _title_of(notebook_bytes(path), path.name, match["slug"])
        lesson = Lesson(int(match["number"]), match["slug"], title, path)
        for other in lessons:
            if other.number == lesson.number or other.slug == lesson.slug:
                raise LessonError(f"{other.path.name} and {path.name} share a number or a slug. Rename one of them.")
        lessons.append(lesson)
    return sorted(lessons)


def find_lesson(name: str | int, root: Path | str | None = None) -> Lesson:
    """Returns the one lesson that is meant.

    Args:
        name: its number (``"04"`` or ``4``), its slug (``"pinned_memory"``) or its file name.
        root: the folder to look in; `notebooks_root` by default.

    Raises:
        LessonError: if there is no such lesson; the message lists the lessons there are.
    """
    lessons = find_lessons(root)
    wanted = re.split(r"[\\/]", str(name).strip().removesuffix(".ipynb"))[-1]
    for lesson in lessons:
        if wanted in (lesson.slug, lesson.name) or (wanted.isdecimal() and int(wanted) == lesson.number):
            return lesson
    if not lessons:
        raise LessonError(f"There is no lesson {name!r}: the folder holds no lessons at all.")
    spellings = {spelling: lesson for lesson in lessons for spelling in (lesson.slug, lesson.name)}
    close = difflib.get_close_matches(wanted, spellings, n=1)
    hint = f" Did you mean {spellings[close[0]].name}?" if close else ""
    choices = ", ".join(lesson.name for lesson in lessons)
    raise LessonError(f"There is no lesson {name!r}.{hint} The lessons are: {choices}.")


def experiments(lesson: Lesson) -> list[str]:
    """Returns the names of a lesson's experiments, ``slug/experiment`` each, in notebook order.

    An experiment is a call with a keyword ``name=`` whose value is a string literal that begins with the slug;
    ``ceilings("slug/experiment")`` is one, too.

    Raises:
        LessonError: if a name is used twice, or a cell is not valid Python.
    """
    names = [name for name in experiment_names(lesson.path) if name.startswith(f"{lesson.slug}/")]
    for name in names:
        if names.count(name) > 1:
            raise LessonError(f"{lesson.path.name} has two experiments named {name!r}. Give each its own name.")
    return names


def needs(lesson: Lesson) -> dict[str, tuple[str, ...]]:
    """Returns what each experiment of a lesson needs to run live: its cell has a tag such as ``needs-cuda``.

    Returns:
        Keys of `NEEDS` by experiment; an experiment that runs anywhere is left out.

    Raises:
        LessonError: if the notebook cannot be read, a cell is not valid Python, or a tag names another need.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, tags in tagged_experiments(lesson.path):
        needed = tuple(tag.removeprefix("needs-") for tag in tags if tag.startswith("needs-"))
        if unknown := sorted(set(needed) - set(NEEDS)):
            raise LessonError(
                f"{lesson.path.name} says that {name!r} needs {unknown[0]!r}; a notebook may need: {', '.join(NEEDS)}"
            )
        if needed and name.startswith(f"{lesson.slug}/"):
            found[name] = needed
    return found


@lru_cache(maxsize=64)  # every look at a record asks for the lessons
def _title_of(content: bytes, file_name: str, slug: str) -> str:
    for cell in parsed_notebook(content, file_name)["cells"]:
        if cell.get("cell_type") == "markdown":
            match = _TITLE.fullmatch(cell["source"].split("\n", 1)[0])
            if match is not None:
                return match["title"]
    return slug.replace("_", " ").capitalize()
