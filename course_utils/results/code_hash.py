"""Which code an experiment has: a hash by which a record that other code has made is told apart."""

from __future__ import annotations

import hashlib
import re

from course_utils.files import package_root
from course_utils.lesson_notebooks import Lesson, measuring_cell

_NOT_MEASURED = {"checks.py", "drawings.py", "pictures.py"}  # of exercises and of figures
_NO_MATTER = ("says=", "from course_utils.")  # how a line begins that changes nothing that is measured
_PROGRAM = re.compile(r"\bscripts/\w+\.py\b")


def code_hash(lesson: Lesson, name: str) -> str:
    """Returns a short hash of the code of one experiment.

    It covers the cell that measures, the programs that it names as ``scripts/....py``, and the modules in the lesson's
    folder. Nothing is parsed: a changed comment is a change, too. The notebook's other cells, materials and measuring
    code do not count, nor does a line that begins with ``says=``, which only words the card, nor where the course keeps
    what is imported. Problem sizes stand in a result's ``parameters``.

    Args:
        lesson: the lesson that has the experiment.
        name: ``lesson/experiment``.

    Raises:
        LessonError: if the lesson has no such experiment.

    Example:
        >>> from course_utils.lesson_notebooks import find_lesson
        >>> len(code_hash(find_lesson("pinned_memory"), "pinned_memory/copy"))
        16
    """
    cell = measuring_cell(lesson, name)
    modules = sorted((package_root() / "lessons" / lesson.slug).glob("*.py"))
    programs = [lesson.path.parent / program for program in sorted(set(_PROGRAM.findall(cell)))]
    files = [path for path in modules if path.name not in _NOT_MEASURED] + [path for path in programs if path.is_file()]
    texts = {"cell": cell} | {path.name: path.read_text(encoding="utf-8") for path in files}
    parts = [f"{where}\n" + "\n".join(_lines(text)) for where, text in texts.items()]
    return hashlib.sha256("\n\n".join(parts).encode()).hexdigest()[:16]


def _lines(text: str) -> list[str]:
    """The lines that count, without what an editor strips from their ends, and with line ends of one kind."""
    return [line.rstrip() for line in text.strip().splitlines() if not line.lstrip().startswith(_NO_MATTER)]
