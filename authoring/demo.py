"""The five-minute path of a lesson: a notebook of its own, and JupyterLab for it.

The cells tagged ``demo`` are on the path, as they are. The cells tagged ``set-up`` are what it needs beside them: they
run when a kernel starts, so that the room waits for no import, and each measurement runs alone: at once, and after
"Restart kernel". On the path they are folded, unless they are tagged ``demo`` as well. What shows an earlier
measurement's result needs that measurement.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from authoring.classroom_text import excerpt, opening
from authoring.notebook_form import KERNELSPEC
from course_utils.files import write_whole
from course_utils.lesson_notebooks import Lesson, LessonError, dumped, read_notebook
from course_utils.show.page import dressed
from tools.jupyter_settings import OFFLINE, jupyter_variables, open_jupyterlab, trust, write_settings

ANEW = '`make demo ARGS="{:02d} --new"` makes it anew.'
LARGE_TYPE = {"code-font-size": "20px", "content-font-size1": "22px", "ui-font-size1": "15px"}
"""Type sizes of the JupyterLab that shows a demo."""
_SET_UP = "set-up"
_FOLDED = {"source_hidden": True, "outputs_hidden": True}
_AS_MADE = "course_demo"  # the notebook's metadata say what it was when it was made
_TRACKER = "@jupyterlab/notebook-extension:tracker"
_SETTINGS = {**OFFLINE, _TRACKER: {**OFFLINE[_TRACKER], "scrollPastEnd": True}}
_STYLE = Path(__file__).parent / "templates" / "demo.css"


def tags_of(cell: dict[str, Any]) -> list[str]:
    return cell["metadata"].get("tags", [])


def demo_notebook(lesson: Lesson) -> dict[str, Any]:
    cells = read_notebook(lesson.path)["cells"]
    if not any("demo" in tags_of(cell) for cell in cells):
        raise LessonError(f"{lesson.name} has no five-minute path: tag its cells demo (CONTRIBUTING.md says which).")
    path = [new_markdown_cell(opening(excerpt(cells[0]["source"])), id="title")]
    for cell in cells[1:]:
        tags = [tag for tag in tags_of(cell) if tag in ("demo", _SET_UP, "experiment", "stable")]
        if cell["cell_type"] == "code" and {"demo", _SET_UP} & {*tags}:
            metadata = {"tags": tags} | ({} if "demo" in tags else {"jupyter": dict(_FOLDED)})
            outputs = [_dressed(output) for output in cell["outputs"]]
            path.append(new_code_cell(cell["source"], id=cell["id"], metadata=metadata, outputs=outputs))
        elif "demo" in tags:
            path.append(new_markdown_cell(excerpt(cell["source"]), id=cell["id"]))
    return new_notebook(cells=path, metadata={"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})


def _dressed(output: dict[str, Any]) -> dict[str, Any]:
    """An output that is shown before anything has run, so that no other one brings style and scripts."""
    data = output.get("data", {})
    return {**output, "data": {**data, "text/html": dressed(data["text/html"])}} if "text/html" in data else output


def start_up(notebook: dict[str, Any]) -> list[str]:
    """What a kernel of a five-minute path runs when it starts: the source of each cell tagged ``set-up``, in order."""
    return [cell["source"] for cell in notebook["cells"] if _SET_UP in tags_of(cell)]


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
    texts = [[cell["cell_type"], cell["source"]] for cell in cells]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


# JupyterLab: one document, large type, set-up done. The user's own settings are left alone.


def open_demo(path: Path, arguments: Sequence[str] = ()) -> int:
    root = path.parent.parent
    options = [f"--ServerApp.root_dir={root}", "--LabApp.custom_css=True"]
    options += [f"--LabApp.default_url=/doc/tree/{path.relative_to(root).as_posix()}"]
    options += ["--ServerApp.answer_yes=True"]  # Ctrl-C ends the demo without a question
    variables = settings_of_its_own(path)
    print(f"Opening {path.name}. Set-up runs while the page loads. Ctrl-C ends the demo.")
    return open_jupyterlab(sys.executable, [*options, *arguments], variables)


def settings_of_its_own(path: Path) -> dict[str, str]:
    """Writes settings for a demo's JupyterLab beside the demo, and returns the environment variables that name them."""
    home = path.parent / ".jupyter" / path.stem
    shutil.rmtree(home, ignore_errors=True)  # of the last time
    # Every kernel runs them first: also after "Restart kernel", the live cell is ready. One that fails, since somebody
    # edited it, stops no other.
    write_settings(home, _STYLE.read_text(encoding="utf-8"), start_up(read_notebook(path)), _SETTINGS)
    # The theme takes its type sizes only from what counts as the user's own choice.
    themes = home / "settings" / "@jupyterlab" / "apputils-extension" / "themes.jupyterlab-settings"
    themes.parent.mkdir(parents=True)
    themes.write_text(json.dumps({"overrides": LARGE_TYPE}), encoding="utf-8")
    variables = jupyter_variables(home)
    trust(sys.executable, path.parent, variables)  # else JupyterLab shows no scripts of stored explorers
    return variables
