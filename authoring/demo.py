"""The five-minute path of a lesson: a notebook of its own. `authoring.demo_lab` opens it.

The cells tagged ``demo`` are on the path, as they are. What they need of other cells comes along: the statements that
define the names they use, in folded cells. A kernel runs them when it starts, with what else its measurements need, so
that the room waits for no import, and each measurement runs alone: at once, and after "Restart kernel". What shows an
earlier measurement's result needs that measurement.
"""

from __future__ import annotations

import ast
import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from authoring.execution import KERNELSPEC, executed, seconds_of
from authoring.room_text import NOT_FOR_A_ROOM, excerpt, opening, verdict_alone
from course_utils.records.files import write_whole
from course_utils.records.fingerprint import code_of, hash_of
from course_utils.records.kinds.environment import Environment
from course_utils.records.lessons import Lesson, LessonError
from course_utils.records.notebook_files import dumped, parsed_cells, read_notebook
from course_utils.records.statements import Statement, needed, statements
from course_utils.show.page import dressed

SET_UP_ID = "set-up"
TIMES = Path(__file__).resolve().parents[1] / "benchmarks" / "records" / "demo_seconds"
"""One file for each machine that ``benchmarks/demo_seconds.py`` has run on."""

_BLOCKS = (ast.Try, ast.For, ast.While, ast.With)
# The path has no room for the case in which the technique does not help: the lesson and the slides have it.
_DROPPED = (*NOT_FOR_A_ROOM, "When it does not help")
_AS_MADE = "course_demo"  # the notebook's metadata say what it was when it was made
ANEW = '`make demo ARGS="{:02d} --new"` makes it anew.'
_TITLE_ENDS = "**You will be able to"


@dataclass(frozen=True)
class DemoTime:
    """Seconds of each code cell of a path that the room waits for, and whether the path still is what was timed."""

    environment: Environment
    cells_s: dict[str, float]
    as_it_is: bool

    @property
    def seconds(self) -> float:
        """Seconds of all these cells."""
        return sum(self.cells_s.values())


def demo_notebook(lesson: Lesson, notes: str = "") -> dict[str, Any]:
    """The five-minute path of a lesson as a notebook that runs alone; ``notes``, if any, come first and folded.

    Raises:
        LessonError: if no cell is tagged ``demo``, or if a cell is not valid Python.
    """
    notebook = read_notebook(lesson.path)
    trees = parsed_cells(notebook, lesson.path.name)
    cells = dict(enumerate(notebook["cells"], start=1))
    chosen = {number for number, cell in cells.items() if "demo" in _tags(cell)}
    if not chosen:
        raise LessonError(f"{lesson.name} has no five-minute path: tag its cells demo (CONTRIBUTING.md says which).")
    imports = min(trees)
    early, late = _hoisted(statements(trees), chosen, imports)
    title = opening(excerpt(cells[1]["source"]), _TITLE_ENDS)
    about = "> **Five minutes.** This is a copy: change what you like. " + ANEW.format(lesson.number)
    set_up = "\n\n".join(["# Set-up\n" + cells[imports]["source"], *(_source(part, cells) for part in early)])
    folded = {"jupyter": {"source_hidden": True}}
    path = [new_markdown_cell(f"{title}\n\n{about}", id="title"), new_code_cell(set_up, id=SET_UP_ID, metadata=folded)]
    for number, cell in cells.items():
        before = [_source(part, cells) for part in late if part.cell == number]
        if before:
            source = "# From the lesson\n" + "\n\n".join(before)
            path.append(new_code_cell(source, id=f"{SET_UP_ID}-{number}", metadata=folded))
        if number not in chosen or number in (1, imports):
            continue
        if cell["cell_type"] == "code":
            tags = [tag for tag in _tags(cell) if tag in ("experiment", "stable")]
            outputs = [_dressed(output) for output in cell["outputs"]]
            path.append(new_code_cell(cell["source"], id=cell["id"], metadata={"tags": tags}, outputs=outputs))
        elif text := excerpt(cell["source"], _DROPPED):
            text = verdict_alone(text) if text.startswith("## Verdict") else text
            path.append(new_markdown_cell(text, id=cell["id"]))
    if notes:
        # The next heading of its level, the title, ends the fold.
        collapsed = {"jp-MarkdownHeadingCollapsed": True}
        heading = new_markdown_cell("# Notes for the instructor", id="notes-heading", metadata=collapsed)
        path = [heading, new_markdown_cell(notes, id="notes"), *path]
    return new_notebook(cells=path, metadata={"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})


def _hoisted(parts: list[Statement], chosen: set[int], imports: int) -> tuple[list[Statement], list[Statement]]:
    """What the path needs of other cells: what can run at the start, and what needs or changes a name of the path."""
    wanted = {id(part) for part in needed(parts, chosen | {imports})}
    early, late = [], []
    of_the_path: set[str] = set()
    for part in parts:
        names = part.binds | part.changes
        is_late = id(part) in wanted and bool((part.reads | names) & of_the_path)
        if part.cell in chosen or is_late:
            of_the_path |= names
        if id(part) in wanted:
            (late if is_late else early).append(part)
    return early, late


def start_up(notebook: dict[str, Any]) -> str:
    """What a kernel of a five-minute path runs when it starts: the code that makes each measurement run alone.

    That is the folded set-up, and of the other cells the statements that a measuring cell needs. What the room is to
    see is left out: measurements, which are calls with ``name=``, what is made of them, and the blocks (``try``,
    ``for``, ``with``) of the cells that run live.
    """
    cells = dict(enumerate(notebook["cells"], start=1))
    set_up = next((number for number, cell in cells.items() if cell.get("id") == SET_UP_ID), None)
    texts = [cells[set_up]["source"]] if set_up else []
    try:
        parts = statements(parsed_cells(notebook, "the path"))
    except LessonError:
        return "\n\n".join(texts)  # an edited cell does not parse: its author sees that when it runs
    live = {number for number, cell in cells.items() if "experiment" in _tags(cell)}
    wanted: set[int] = set()
    for number in live:
        wanted |= {id(part) for part in needed([part for part in parts if part.cell <= number], {number})}
    measured: set[str] = set()
    for part in parts:
        if _measures(part.node) or part.reads & measured or (part.cell in live and isinstance(part.node, _BLOCKS)):
            measured |= part.binds | part.changes
        elif id(part) in wanted and part.cell != set_up:
            texts.append(_source(part, cells))
    return "\n\n".join(texts)


def _measures(statement: ast.stmt) -> bool:
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(keyword.arg == "name" for call in calls for keyword in call.keywords)


def _tags(cell: dict[str, Any]) -> list[str]:
    return cell["metadata"].get("tags", [])


def _dressed(output: dict[str, Any]) -> dict[str, Any]:
    """An output that is shown before anything has run, so that no other one brings style and scripts."""
    data = output.get("data", {})
    return {**output, "data": {**data, "text/html": dressed(data["text/html"])}} if "text/html" in data else output


def _source(part: Statement, cells: dict[int, dict[str, Any]]) -> str:
    """The text of a statement, as it stands in its cell."""
    first = min([part.node, *getattr(part.node, "decorator_list", [])], key=lambda node: node.lineno).lineno
    return "\n".join(cells[part.cell]["source"].split("\n")[first - 1 : part.node.end_lineno])


def write_demo(lesson: Lesson, folder: Path, notes: str = "") -> Path:
    """Write the five-minute path of a lesson, and the programs that its cells start, and return the notebook."""
    path = folder / lesson.path.name
    notebook = demo_notebook(lesson, notes)
    notebook["metadata"][_AS_MADE] = _text_of(notebook["cells"])
    write_whole(path, dumped(notebook))
    scripts = lesson.path.parent / "scripts"
    if scripts.is_dir():
        shutil.copytree(scripts, folder / "scripts", ignore=shutil.ignore_patterns("__*"), dirs_exist_ok=True)
    return path


def is_edited(path: Path) -> bool:
    """Whether the text or code of a demo is no longer what `write_demo` wrote. Outputs do not count."""
    notebook = read_notebook(path)
    return notebook["metadata"].get(_AS_MADE) != _text_of(notebook["cells"])


def _text_of(cells: Iterable[dict[str, Any]]) -> str:
    """A hash of text and code. Outputs, and what JupyterLab keeps about a cell, are not in it."""
    return hash_of(f"{cell['cell_type']} {cell['source']}" for cell in cells)


def code_hash(notebook: dict[str, Any]) -> str:
    """A hash of the code of a notebook: what its times belong to."""
    return hash_of(code_of(statements(parsed_cells(notebook, "the path"))))


def time_demo(lesson: Lesson) -> tuple[float, dict[str, float]]:
    """Run a five-minute path; gives seconds of its folded set-up cells, and of each other code cell by its id."""
    with tempfile.TemporaryDirectory(prefix="course-demo-") as name:
        path = write_demo(lesson, Path(name))
        cells = executed(read_notebook(path), path.parent)["cells"]
    taken = {cell["id"]: seconds_of(cell) for cell in cells if cell["cell_type"] == "code"}
    set_up_s = sum(seconds for identifier, seconds in taken.items() if identifier.startswith(SET_UP_ID))
    return set_up_s, {key: seconds for key, seconds in taken.items() if not key.startswith(SET_UP_ID)}


def demo_times(lesson: Lesson, folder: Path = TIMES) -> list[DemoTime]:
    """How long a lesson's five-minute path took, on each machine that timed it."""
    code = code_hash(demo_notebook(lesson))
    times = []
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        here = Environment.from_record(record["environment"])
        if timed := record["lessons"].get(lesson.slug):
            times.append(DemoTime(here, timed["cells_s"], timed["code"] == code))
    return times
