"""The five-minute path of a lesson: a notebook of its own, opened in JupyterLab with large type.

The cells tagged ``demo`` are on the path, as they are. What they need of other cells comes along: the statements that
define the names they use, in folded cells. A kernel runs them when it starts, with what else its measurements need, so
that the room waits for no import, and each measurement runs alone: at once, and after "Restart kernel". What shows an
earlier measurement's result needs that measurement. Nothing of the user's own settings of JupyterLab or IPython is read
or changed.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from authoring.dependencies import needed, statements
from authoring.excerpts import NOT_FOR_A_ROOM, excerpt, opening, verdict_alone
from authoring.normal_form import KERNEL_ARGUMENTS, KERNELSPEC
from course_utils.records.lessons import Lesson, LessonError, notebooks_root
from course_utils.records.notebook_files import dumped, parsed_cells, read_notebook
from course_utils.records.store import RecordError, package_root

FOLDER = "demo"
_BLOCKS = (ast.Try, ast.For, ast.While, ast.With)
SET_UP_ID = "set-up"
KIND = "demo_seconds"
# The path has no room for the case in which the technique does not help: the lesson and the slides have it.
_DROPPED = (*NOT_FOR_A_ROOM, "When it does not help")
_AS_MADE = "course_demo"  # the notebook's metadata say what it was when it was made
_TITLE_ENDS = "**You will be able to"

LARGE_TYPE = {"code-font-size": "20px", "content-font-size1": "22px", "ui-font-size1": "15px"}
"""Type sizes of the JupyterLab that shows a demo."""
SETTINGS = {
    "@jupyterlab/notebook-extension:tracker": {
        "windowingMode": "none",
        "scrollPastEnd": True,
        "codeCellConfig": {"lineNumbers": False, "lineWrap": True},  # a long line is read, not cut off
    },
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/extensionmanager-extension:plugin": {"enabled": False},
}
"""Its other settings: it works offline, and all cells are in the page."""
# Figures are stored for a page; on a projector they fill the width. Results and controls are read from the last row.
_STYLE = """
.jp-OutputArea-output img { width: min(100%, 68rem); height: auto; }
.jp-OutputArea-output { --jp-ui-font-size1: 20px; --jp-widgets-font-size: 20px; --jp-widgets-inline-height: 38px; }
"""


@dataclass(frozen=True)
class DemoTime:
    """How long the code of a five-minute path took on one machine.

    Attributes:
        machine: the machine's name.
        caption: machine, versions and date, in words.
        set_up_s: seconds of the folded cell, which has run before the notebook opens.
        cells_s: seconds of each other code cell, by its id, in order.
        as_it_is: whether the path's code is still what was timed.
    """

    machine: str
    caption: str
    set_up_s: float
    cells_s: dict[str, float]
    as_it_is: bool

    @property
    def seconds(self) -> float:
        """Seconds of all cells that the room waits for."""
        return sum(self.cells_s.values())


def demo_notebook(lesson: Lesson, notes: str = "") -> dict[str, Any]:
    """Returns the five-minute path of a lesson as a notebook that runs alone.

    Args:
        lesson: the lesson.
        notes: Markdown for the instructor, which comes first and folded. Without it there are no such cells.

    Raises:
        LessonError: if no cell is tagged ``demo``, or if a cell is not valid Python.

    Example:
        >>> from course_utils.records.lessons import find_lesson
        >>> path = demo_notebook(find_lesson("pinned_memory"))
        >>> path["cells"][0]["source"].splitlines()[0]
        '# 04 · Pinned memory'
        >>> path["cells"][1]["id"]
        'set-up'
    """
    notebook = read_notebook(lesson.path)
    trees = dict(parsed_cells(notebook, lesson.path.name))
    cells = dict(enumerate(notebook["cells"], start=1))
    chosen = {number for number, cell in cells.items() if "demo" in cell["metadata"].get("tags", [])}
    if not chosen:
        raise LessonError(f"{lesson.name} has no five-minute path: tag its cells demo (CONTRIBUTING.md says which).")
    imports = min(trees)
    extra = needed(trees, chosen | {imports})
    early, late = _hoisted(trees, chosen, extra)
    sources = {number: cell["source"].split("\n") for number, cell in cells.items()}
    title = opening(excerpt(cells[1]["source"]), _TITLE_ENDS)
    about = "> **Five minutes.** This is a copy: change what you like. `course demo --new` makes it anew."
    made = [
        _markdown("title", f"{title}\n\n{about}"),
        _folded(SET_UP_ID, "\n\n".join([cells[imports]["source"], *_source(early, sources)]), "# Set-up"),
    ]
    for number, cell in cells.items():
        if number in late and number != imports:
            before = [(number, node) for node in late[number]]
            made.append(_folded(f"set-up-{number}", "\n\n".join(_source(before, sources)), "# From the lesson"))
        if number not in chosen or number in (1, imports):
            continue
        if cell["cell_type"] == "markdown":
            text = excerpt(cell["source"], _DROPPED)
            text = verdict_alone(text) if text.startswith("## Verdict") else text
            made += [_markdown(cell["id"], text)] if text else []
        else:
            tags = [tag for tag in cell["metadata"].get("tags", []) if tag in ("experiment", "stable")]
            live = {"cell_type": "code", "id": cell["id"], "metadata": {"tags": tags}, "execution_count": None}
            made.append({**live, "source": cell["source"], "outputs": cell["outputs"]})
    if notes:
        made = [*_notes(notes), *made]
    metadata = {"kernelspec": dict(KERNELSPEC), "language_info": {"name": "python"}}
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _hoisted(
    trees: dict[int, ast.Module], chosen: set[int], extra: dict[int, list[ast.stmt]]
) -> tuple[list[tuple[int, ast.stmt]], dict[int, list[ast.stmt]]]:
    """What can run at the start, with its cell, and the rest by cell: what needs or changes a name of the path."""
    wanted = {id(node) for nodes in extra.values() for node in nodes}
    early: list[tuple[int, ast.stmt]] = []
    late: dict[int, list[ast.stmt]] = {}
    of_the_path: set[str] = set()
    for part in statements(trees):
        names = part.binds | part.changes
        if part.cell in chosen:
            of_the_path |= names
        elif id(part.node) in wanted:
            if (part.reads | names) & of_the_path:
                late.setdefault(part.cell, []).append(part.node)
                of_the_path |= names
            else:
                early.append((part.cell, part.node))
    return early, late


def start_up(notebook: dict[str, Any]) -> str:
    """Returns what a kernel of a five-minute path runs when it starts: the code that makes each measurement run alone.

    That is the folded set-up, and of the other cells the statements that a measuring cell needs. What the room is to
    see is left out: measurements, which are calls with ``name=``, what is made of them, and the blocks (``try``,
    ``for``, ``with``) of the cells that run live.

    Args:
        notebook: what `demo_notebook` made, as it is or edited.

    Example:
        >>> from course_utils.records.lessons import find_lesson
        >>> "asked = predict(" in start_up(demo_notebook(find_lesson("pinned_memory")))
        True
    """
    cells = dict(enumerate(notebook["cells"], start=1))
    set_up = next((number for number, cell in cells.items() if cell.get("id") == SET_UP_ID), None)
    begin = [cells[set_up]["source"]] if set_up else []
    try:
        trees = dict(parsed_cells(notebook, "the path"))
    except LessonError:
        return "\n\n".join(begin)  # an edited cell does not parse: its author sees that when it runs
    wanted: set[int] = set()
    for number, cell in cells.items():
        if number in trees and "experiment" in cell["metadata"].get("tags", []):
            before = {earlier: tree for earlier, tree in trees.items() if earlier <= number}
            wanted |= {id(node) for nodes in needed(before, {number}).values() for node in nodes}
    sources = {number: cell["source"].split("\n") for number, cell in cells.items()}
    parts: list[tuple[int, ast.stmt]] = []
    measured: set[str] = set()
    for part in statements(trees):
        is_live = "experiment" in cells[part.cell]["metadata"].get("tags", [])
        if _measures(part.node) or part.reads & measured or (is_live and isinstance(part.node, _BLOCKS)):
            measured |= part.binds | part.changes
        elif id(part.node) in wanted and part.cell != set_up:
            parts.append((part.cell, part.node))
    return "\n\n".join([*begin, *_source(parts, sources)])


def _measures(statement: ast.stmt) -> bool:
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(keyword.arg == "name" for call in calls for keyword in call.keywords)


def _source(parts: Sequence[tuple[int, ast.stmt]], sources: dict[int, list[str]]) -> list[str]:
    """The text of statements, as it stands in their cells."""
    texts = []
    for number, node in parts:
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        texts.append("\n".join(sources[number][first - 1 : node.end_lineno]))
    return texts


def _markdown(identifier: str, source: str, **metadata: Any) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": identifier, "metadata": metadata, "source": source}


def _folded(identifier: str, source: str, heading: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "id": identifier,
        "metadata": {"jupyter": {"source_hidden": True}},
        "source": f"{heading}\n{source}",
        "execution_count": None,
        "outputs": [],
    }


def _notes(notes: str) -> list[dict[str, Any]]:
    """A heading that is folded, and what is under it. The next heading of its level, the title, ends the fold."""
    heading = _markdown("notes-heading", "# Notes for the instructor", **{"jp-MarkdownHeadingCollapsed": True})
    return [heading, _markdown("notes", notes)]


def code_of(notebook: dict[str, Any]) -> str:
    """Returns a hash of the code of a notebook: what its times belong to."""
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]


def write_demo(
    lesson: Lesson, folder: Path, notes: str = "", new: bool = False, say: Callable[[str], None] = lambda _: None
) -> Path:
    """Writes the five-minute path of a lesson into a folder, with the programs that its cells start.

    Args:
        lesson: the lesson.
        folder: made if it is not there. An earlier copy of the same lesson is kept if its text or code was edited;
            outputs do not count. So is a program in ``scripts/`` that is not the lesson's.
        notes: as for `demo_notebook`.
        new: replace what was edited, too.
        say: is told what is kept.

    Returns:
        The notebook.

    Raises:
        LessonError: if an earlier copy cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = []
    scripts = lesson.path.parent / "scripts"
    for script in sorted(path for path in scripts.glob("*") if path.is_file()):
        copy = folder / "scripts" / script.name
        if copy.is_file() and copy.read_bytes() != script.read_bytes() and not new:
            kept.append(f"scripts/{copy.name}")
        else:
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(script, copy)
    path = folder / lesson.path.name
    if path.is_file() and not new and _is_edited(path):
        kept.insert(0, path.name)
    else:
        made = demo_notebook(lesson, notes)
        made["metadata"][_AS_MADE] = _text_of(made)
        path.write_text(dumped(made), encoding="utf-8", newline="\n")
    if kept:
        say(f"Kept as you edited it: {', '.join(kept)}. `course demo {lesson.number:02d} --new` makes it anew.")
    return path


def _is_edited(path: Path) -> bool:
    try:
        notebook = read_notebook(path)
        return notebook["metadata"].get(_AS_MADE) != _text_of(notebook)
    except (LessonError, KeyError, TypeError, AttributeError) as error:
        raise LessonError(f"{path} is no notebook any more ({error!r}). `course demo --new` makes it anew.") from error


def _text_of(notebook: dict[str, Any]) -> str:
    """A hash of text and code. Outputs, and what JupyterLab keeps about a cell, are not in it."""
    text = [[cell["cell_type"], cell["source"]] for cell in notebook["cells"]]
    return hashlib.sha256(json.dumps(text).encode()).hexdigest()[:16]


def time_demo(lesson: Lesson, timeout_s: float = 300) -> tuple[float, dict[str, float]]:
    """Runs the five-minute path of a lesson in a kernel of its own.

    Args:
        lesson: the lesson.
        timeout_s: how long one cell may take.

    Returns:
        Seconds of the folded set-up cells, and those of each other code cell by its id.

    Raises:
        LessonError: if a cell fails. The message says which.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    with tempfile.TemporaryDirectory(prefix="course-demo-") as folder:
        running = nbformat.read(write_demo(lesson, Path(folder)), as_version=nbformat.NO_CONVERT)
        client = NotebookClient(
            running,
            timeout=timeout_s,
            kernel_name=KERNELSPEC["name"],
            extra_arguments=list(KERNEL_ARGUMENTS),
            resources={"metadata": {"path": folder}},
        )
        taken: dict[str, float] = {}
        try:
            with client.setup_kernel():
                for index, cell in enumerate(running.cells):
                    started = time.perf_counter()
                    client.execute_cell(cell, index)
                    if cell.cell_type == "code":
                        taken[cell.id] = time.perf_counter() - started
        except CellExecutionError as error:
            raise LessonError(f"The five-minute path of {lesson.name} fails in cell {cell.id}.\n{error}") from error
    set_up_s = sum(seconds for name, seconds in taken.items() if name.startswith(SET_UP_ID))
    return set_up_s, {name: seconds for name, seconds in taken.items() if not name.startswith(SET_UP_ID)}


def demo_times(lesson: Lesson, root: Path | None = None) -> list[DemoTime]:
    """Returns how long a lesson's five-minute path took, on each machine that timed it.

    Args:
        lesson: the lesson.
        root: the folder with one file for each machine; by default the committed one, which
            ``benchmarks/demo_seconds.py`` writes.

    Raises:
        RecordError: if a file is damaged.
    """
    from course_utils.records.kinds.environment import Environment

    code = code_of(demo_notebook(lesson))
    found = []
    for path in sorted((root or package_root().parent / "benchmarks" / "records" / KIND).glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            here = Environment.from_record(record["environment"])
            timed = record["lessons"].get(lesson.slug)
            if timed:
                as_it_is = timed["code"] == code
                found.append(DemoTime(here.machine, here.caption, timed["set_up_s"], timed["cells_s"], as_it_is))
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordError(
                f"{path.name} is damaged ({error!r}). Restore it from git, or run `python benchmarks/demo_seconds.py`."
            ) from error
    return found


# JupyterLab


def open_demo(path: Path, arguments: Sequence[str] = (), say: Callable[[str], None] = print) -> int:
    """Opens a demo in JupyterLab: one document, large type, set-up done. Returns when JupyterLab ends.

    Args:
        path: the notebook that `write_demo` wrote.
        arguments: for JupyterLab, such as ``--no-browser``.
        say: is told what a presenter wants to know.

    Returns:
        JupyterLab's exit status.

    Raises:
        LessonError: if JupyterLab is not installed.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise LessonError("JupyterLab is not installed here. `make setup` installs it.")
    with _settings_of_its_own(path) as variables:
        root = path.parent.parent
        command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}", "--LabApp.custom_css=True"]
        command += [f"--LabApp.default_url=/doc/tree/{path.relative_to(root).as_posix()}"]
        command += ["--ServerApp.answer_yes=True"]  # Ctrl-C ends the demo without a question
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.append("--allow-root")  # in a container there is often no other user
        say(f"Opening {path.name}. Set-up runs while the page loads. Ctrl-C ends the demo.")
        return _run([*command, *arguments], variables, root)


def _run(command: Sequence[str], variables: dict[str, str], folder: Path) -> int:
    """Runs a program until it ends, or ends it, with what it has started, when this one is to end."""

    def leave(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    ending = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {signum: signal.signal(signum, leave) for signum in ending}
    # In a session of its own it does not get the terminal's Ctrl-C. While it starts it would answer with a traceback.
    process = subprocess.Popen(command, env=variables, cwd=folder, start_new_session=os.name != "nt")
    try:
        return process.wait()
    except KeyboardInterrupt:
        sys.stderr.write("The demo has ended.\n")
        return 0
    finally:
        if process.poll() is None:
            process.terminate()  # JupyterLab ends its kernels
            process.wait()
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def _settings_of_its_own(path: Path) -> Iterator[dict[str, str]]:
    """Environment variables for a JupyterLab whose settings lie in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="course-demo-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        folders = {
            "JUPYTER_CONFIG_DIR": home / "config",
            "JUPYTER_DATA_DIR": home / "data",
            "JUPYTER_RUNTIME_DIR": home / "runtime",
            "JUPYTERLAB_SETTINGS_DIR": home / "settings",
            "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces",
            "IPYTHONDIR": home / "ipython",
        }
        _write(home / "config" / "labconfig" / "default_setting_overrides.json", json.dumps(SETTINGS))
        # The theme takes its type sizes only from what counts as the user's own choice.
        themes = home / "settings" / "@jupyterlab" / "apputils-extension" / "themes.jupyterlab-settings"
        _write(themes, json.dumps({"overrides": LARGE_TYPE}))
        _write(home / "config" / "custom" / "custom.css", _STYLE)
        # Every kernel runs it first: also after "Restart kernel", the live cell is ready.
        _write(home / "ipython" / "profile_default" / "startup" / "00-demo.py", start_up(read_notebook(path)))
        _trust(path, home / "data")
        dropped = {"JUPYTER_PATH", "JUPYTER_CONFIG_PATH", "JUPYTERLAB_DIR"}
        kept = {key: value for key, value in os.environ.items() if key not in dropped}
        yield kept | {key: str(folder) for key, folder in folders.items()} | {"JUPYTER_PREFER_ENV_PATH": "1"}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _trust(path: Path, data: Path) -> None:
    """Signs the notebook: JupyterLab shows the scripts of stored explorers only in notebooks that are trusted."""
    import nbformat
    from nbformat.sign import NotebookNotary

    data.mkdir(parents=True, exist_ok=True)
    notary = NotebookNotary(data_dir=str(data))
    notary.sign(nbformat.read(path, as_version=nbformat.NO_CONVERT))
    notary.store.close()


def demo_folder() -> Path:
    """Returns where demos are written: ``workspace/demo`` beside the notebooks, which git ignores."""
    return notebooks_root().resolve().parent / "workspace" / FOLDER
