"""The five-minute path of a lesson: a notebook of its own. `authoring.demo_lab` opens it.

The cells tagged ``demo`` are on the path, as they are. The cells tagged ``set-up`` are what it needs beside them: they
run when a kernel starts, so that the room waits for no import, and each measurement runs alone: at once, and after
"Restart kernel". On the path they are folded, unless they are tagged ``demo`` as well. What shows an earlier
measurement's result needs that measurement.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from authoring.execution import KERNELSPEC, executed, seconds_of
from authoring.room_text import NOT_FOR_A_ROOM, excerpt, opening
from course_utils.commands.recording import environment_here
from course_utils.files import write_whole
from course_utils.lesson_notebooks import Lesson, LessonError, dumped, read_notebook
from course_utils.show.page import dressed

SET_UP = "set-up"
"""The tag of cells that run when the kernel of a demo starts."""
TIMES = Path(__file__).resolve().parents[1] / "benchmarks" / "records" / "demo_seconds.json"
"""What ``make demo ARGS="LESSON --time"`` has timed."""

# The path has no room for the case in which the technique does not help: the lesson and the slides have it.
_DROPPED = (*NOT_FOR_A_ROOM, "When it does not help", "Recap")
_AS_MADE = "course_demo"  # the notebook's metadata say what it was when it was made
ANEW = '`make demo ARGS="{:02d} --new"` makes it anew.'
_FOLDED = {"source_hidden": True, "outputs_hidden": True}


def demo_notebook(lesson: Lesson) -> dict[str, Any]:
    """The five-minute path of a lesson as a notebook that runs alone.

    Raises:
        LessonError: if no cell is tagged ``demo``.
    """
    cells = read_notebook(lesson.path)["cells"]
    if not any("demo" in tags_of(cell) for cell in cells):
        raise LessonError(f"{lesson.name} has no five-minute path: tag its cells demo (CONTRIBUTING.md says which).")
    path = [new_markdown_cell(opening(excerpt(cells[0]["source"])), id="title")]
    for cell in cells[1:]:
        tags = [tag for tag in tags_of(cell) if tag in ("demo", SET_UP, "experiment", "stable")]
        if cell["cell_type"] == "code" and {"demo", SET_UP} & {*tags}:
            metadata = {"tags": tags} | ({} if "demo" in tags else {"jupyter": dict(_FOLDED)})
            outputs = [_dressed(output) for output in cell["outputs"]]
            path.append(new_code_cell(cell["source"], id=cell["id"], metadata=metadata, outputs=outputs))
        elif "demo" in tags and (text := excerpt(cell["source"], _DROPPED)):
            path.append(new_markdown_cell(text, id=cell["id"]))
    return new_notebook(cells=path, metadata={"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})


def start_up(notebook: dict[str, Any]) -> list[str]:
    """What a kernel of a five-minute path runs when it starts: the source of each cell tagged ``set-up``, in order."""
    return [cell["source"] for cell in notebook["cells"] if SET_UP in tags_of(cell)]


def tags_of(cell: dict[str, Any]) -> list[str]:
    """The tags of a notebook's cell."""
    return cell["metadata"].get("tags", [])


def live_cells(notebook: dict[str, Any]) -> list[str]:
    """The ids of the code cells of a path for which the room waits."""
    return [cell["id"] for cell in notebook["cells"] if cell["cell_type"] == "code" and "demo" in tags_of(cell)]


def _dressed(output: dict[str, Any]) -> dict[str, Any]:
    """An output that is shown before anything has run, so that no other one brings style and scripts."""
    data = output.get("data", {})
    return {**output, "data": {**data, "text/html": dressed(data["text/html"])}} if "text/html" in data else output


def write_demo(lesson: Lesson, folder: Path) -> Path:
    """Write the five-minute path of a lesson, and the programs that its cells start, and return the notebook."""
    path = folder / lesson.path.name
    notebook = demo_notebook(lesson)
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
    texts = [[cell["cell_type"], cell["source"]] for cell in cells]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


# How long it takes


def time_demo(lesson: Lesson) -> str:
    """Run a five-minute path, keep its seconds in `TIMES`, and return them in words."""
    with tempfile.TemporaryDirectory(prefix="course-demo-") as name:
        path = write_demo(lesson, Path(name))
        notebook = executed(read_notebook(path), path.parent)
    taken = {cell["id"]: seconds_of(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"}
    live = {identifier: round(taken.pop(identifier), 2) for identifier in live_cells(notebook)}
    timed = {"set_up_s": round(sum(taken.values()), 2), "cells_s": live, "timed_on": environment_here().caption}
    times = demo_times() | {lesson.slug: timed}
    write_whole(TIMES, json.dumps(times, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    return f"{lesson.name}: set-up {timed['set_up_s']} s, cells {sum(live.values()):.1f} s"


@cache
def demo_times() -> dict[str, dict[str, Any]]:
    """What was timed, by the lesson's slug: seconds of each code cell that the room waits for, and on which machine."""
    return json.loads(TIMES.read_text(encoding="utf-8"))
