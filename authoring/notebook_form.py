"""The form of a notebook: live outputs are never stored, outputs that follow from committed files always are."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from authoring.predictions import stored_outputs
from course_utils.files import write_whole
from course_utils.lesson_notebooks import NEEDS, LessonError, dumped, notebooks_root, read_notebook
from course_utils.show.page import bare

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
STARTS = ("slide", "subslide")
"""Tags of Markdown cells that begin a slide (`authoring.slides`)."""
_OF_CODE = ("experiment", "stable", "standalone", "set-up", "nbval-ignore-output")
TAGS = (*_OF_CODE, *(f"needs-{need}" for need in NEEDS), "hide-cell", "demo", *STARTS)

SOLUTION = "# Solution"
"""The first line of a solution: JupyterLab shows it while the cell is folded."""
_HEADING = re.compile(r"^##+ .+", re.MULTILINE)
_TIMEOUT_S = 300
_OF_THIS_MACHINE = re.compile(
    r"(?<![\w.:/<>-])/(?:home|root|Users|tmp|work|workspace|usr|opt|var|private|mnt|etc|srv|data|content|nix|run)/[\w.+-]+"
    r"|\b[A-Za-z]:\\[\w.]+|\b0x[0-9a-fA-F]{6,16}\b"
)


def tidied(notebook: dict[str, Any], file_name: str) -> tuple[dict[str, Any], list[str]]:
    """A notebook in its form, and one message, with ``file_name``, for each thing that a person has to mend.

    Code cells tagged ``experiment`` have no output and no execution count, and nbval ignores what they show; only a
    question for a prediction has one, for the book. Cells tagged ``stable`` keep their outputs. All others have an
    execution count alone: nbval compares nothing in a cell without one, so that a cell that prints would pass.
    """
    cells: list[dict[str, Any]] = []
    problems: list[str] = []
    code_cells = 0
    heading = ""
    for number, cell in enumerate(notebook["cells"], start=1):
        kind = cell["cell_type"]
        source = "\n".join(line.rstrip() for line in cell["source"].split("\n")).rstrip("\n")
        if not source.strip():
            continue
        tags = set(cell["metadata"].get("tags", []))
        reasons = [*_refused_tags(kind, tags)]
        tags &= set(TAGS)
        heading = ([heading, *_HEADING.findall(source)] if kind == "markdown" else [heading])[-1]
        folded = {"source_hidden": True} if "hide-cell" in tags else {}
        if folded and heading.lstrip("#").startswith(" Exercise"):
            folded["outputs_hidden"] = True
            source = source if source.startswith(f"{SOLUTION}\n") else f"{SOLUTION}\n{source}"
        identifier = cell.get("id", "")
        if identifier in ["", *(each["id"] for each in cells)]:
            identifier = uuid.uuid4().hex[:8]
        clean: dict[str, Any] = {"cell_type": kind, "id": identifier, "metadata": {}, "source": source}
        if kind == "code":
            code_cells += 1
            tags |= {"nbval-ignore-output"} if "experiment" in tags else set()
            clean["metadata"] = {"jupyter": folded} if folded else {}
            clean |= {"execution_count": code_cells, "outputs": []}
            if "experiment" in tags:
                clean["outputs"] = stored_outputs(source, file_name)
                clean["execution_count"] = code_cells if clean["outputs"] else None
            elif "stable" in tags:
                clean["outputs"] = [_clean_output(output, code_cells) for output in cell["outputs"]]
                reasons += _refused_outputs(clean["outputs"])
        if tags:
            clean["metadata"]["tags"] = sorted(tags)
        problems += [f"{file_name}, cell {number} ({source.strip()[:40]!r}): {reason}" for reason in reasons]
        cells.append(clean)
    metadata = {"kernelspec": dict(KERNELSPEC), "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, problems


def check(path: Path) -> list[str]:
    """What keeps a notebook from being in its form: one message for each thing, empty if it is."""
    clean, problems = tidied(read_notebook(path), path.name)
    before, after = path.read_text(encoding="utf-8").splitlines(), dumped(clean).splitlines()
    if before != after:
        difference = list(difflib.unified_diff(before, after, "stored", "as it has to be", n=1, lineterm=""))[2:18]
        advice = f"{path.name} is not as it has to be. Run: make lint ARGS=--fix"
        problems.append("\n    ".join([advice, *(line[:110] for line in difference)]))
    return problems


def write(path: Path, execute: bool = True) -> bool:
    """Put a notebook into its form and, with ``execute``, make the outputs of its stable cells anew.

    The whole notebook is executed, at smoke size, because a stable cell may use what earlier cells import or define;
    only the outputs of stable cells are kept. A notebook that fails, or has something for a person to mend, is left as
    it was. Returns whether the file changed.
    """
    notebook = read_notebook(path)
    if execute and any("stable" in cell["metadata"].get("tags", []) for cell in notebook["cells"]):
        try:
            notebook = _executed(notebook, path.parent)
        except LessonError as error:
            raise LessonError(f"{path.name} failed, and was left as it was.\n{error}") from error
    clean, problems = tidied(notebook, path.name)
    if problems:
        raise LessonError("\n".join(problems))
    text = dumped(clean)
    if text == path.read_text(encoding="utf-8"):
        return False
    write_whole(path, text)
    return True


def _executed(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A notebook with new outputs in all of its code cells, run in a kernel of its own. An error names the cell."""
    running = nbformat.from_dict(notebook)
    client = NotebookClient(
        running,
        timeout=_TIMEOUT_S,
        kernel_name=KERNELSPEC["name"],
        # Else each kernel that is started warns in the terminal that it talks over TCP without encryption.
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
        store_widget_state=False,
        coalesce_streams=True,  # how a text arrives in pieces is a matter of timing
    )
    ran = []
    client.on_cell_execute = lambda cell, cell_index: ran.append(f"Cell {cell_index + 1} ({cell.id})")
    try:
        client.execute(env=os.environ | {"COURSE_SIZE": "smoke"})
    except CellTimeoutError as error:
        raise LessonError(f"{ran[-1]} took more than {_TIMEOUT_S} s.") from error
    except (CellExecutionError, DeadKernelError) as error:
        raise LessonError(f"{ran[-1]} raised:\n{error}") from error
    return running


def _refused_tags(kind: str, tags: set[str]) -> Iterator[str]:
    if kind not in ("code", "markdown"):
        yield f"a {kind} cell. Use Markdown or code."
    if unknown := sorted(tags - {*TAGS}):
        yield f"unknown tag {', '.join(unknown)}. The tags are {', '.join(sorted(TAGS))}."
    if misplaced := tags & {*(_OF_CODE if kind == "markdown" else STARTS)}:
        yield f"a {kind} cell tagged {', '.join(sorted(misplaced))}. CONTRIBUTING.md says which cells take that tag."
    if {"experiment", "stable"} <= tags:
        yield "tagged both experiment and stable. Keep one."
    if "nbval-ignore-output" in tags and "experiment" not in tags:
        yield "tagged nbval-ignore-output but not experiment. Its output would never be checked."


def _clean_output(output: dict[str, Any], execution_count: int) -> dict[str, Any]:
    clean = {key: value for key, value in output.items() if key != "metadata"}
    if "data" in output:
        # Sizes of pictures are kept by type; what JupyterLab notes beside them is not.
        clean["metadata"] = {key: value for key, value in output["metadata"].items() if key in output["data"]}
        clean["data"] = {kind: bare(form) if kind == "text/html" else form for kind, form in output["data"].items()}
    return clean | ({"execution_count": execution_count} if "execution_count" in output else {})


def _refused_outputs(outputs: Sequence[dict[str, Any]]) -> Iterator[str]:
    if not outputs:
        yield "a stable cell without output. Run: python -m authoring.notebook_form --execute"
    for output in outputs:
        data = output.get("data", {})
        if output["output_type"] == "error":
            yield f"the stored output is an error, {output['ename']}. Mend the cell and run it again."
        if output.get("name") == "stderr":
            yield f"the stored output is a warning or log ({output['text'].strip()[:60]!r}). Mend what causes it."
        if any("widget-view" in kind for kind in data):
            yield "a widget in a stable cell: nothing of it can be stored. Tag the cell experiment."
        texts = [value for kind, value in data.items() if isinstance(value, str) and not kind.startswith("image/p")]
        if match := _OF_THIS_MACHINE.search("\n".join([*texts, output.get("text", "")])):
            yield f"the stored output holds {match[0]!r}, an address or a path. It is not the same on every machine."


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m authoring.notebook_form", description="Say which notebooks are not as they have to be."
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help="mend them; the stored outputs of stable cells stay")
    action.add_argument("--execute", action="store_true", help="run them, and store the outputs of stable cells anew")
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks; all lessons by default")
    options = parser.parse_args(arguments)
    problems = []
    for path in options.paths or sorted(notebooks_root().glob("*.ipynb")):
        try:
            if not (options.write or options.execute):
                problems += check(path)
            elif write(path, execute=options.execute):
                print(f"{path.name}: written")
        except LessonError as error:
            problems.append(str(error))
    print(*problems, sep="\n", end="\n" * bool(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
