"""The normal form of a notebook: live outputs are never stored, outputs that follow from committed files always are.

`check` says what is not in normal form, `write` mends it. Only `write` with ``execute`` needs more than the standard
library: it runs the notebook with nbclient.
"""

from __future__ import annotations

import argparse
import copy
import difflib
import getpass
import hashlib
import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from course_utils.records.lessons import notebooks_root
from course_utils.records.notebook_files import NEEDS, LessonError, dumped, read_notebook

INSTRUCTOR_TAGS = ("demo", "slide", "subslide")
"""What the instructor's kit uses: the five-minute path, and where slides begin (`authoring.slides`)."""
TAGS = (
    *("experiment", "hide-cell", "nbval-ignore-output", *(f"needs-{need}" for need in NEEDS), "stable"),
    *INSTRUCTOR_TAGS,
)
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
# Else each kernel that is started warns in the terminal that it talks over TCP, on this machine, without encryption.
KERNEL_ARGUMENTS = ("--IPKernelApp.log_level=ERROR",)

_CELL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NBVAL_MARKER = re.compile(r"^\s*#\s*(NBVAL_\w+|PYTEST_VALIDATE_\w+)\s*$", re.MULTILINE)
_ABSOLUTE_PATH = re.compile(
    r"(?<![\w.:/<>-])/(?:home|root|Users|tmp|work|workspace|usr|opt|var|private|mnt|etc|srv|data|content|nix|run)/[\w.+-]+"
    r"|\b[A-Za-z]:\\[\w.]+"
)
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_NO_OUTPUT = "a stable cell without output. Run: python -m authoring.normal_form --write"


def normalised(notebook: dict[str, Any], file_name: str) -> tuple[dict[str, Any], list[str]]:
    """Returns the normal form of a notebook, and what stands in its way.

    Code cells tagged ``experiment`` have no output and no execution count, and nbval ignores what they show. Cells
    tagged ``stable`` keep their outputs. All other code cells have none, but an execution count: nbval compares nothing
    at all in a cell without one, so that a cell that prints would pass.

    Args:
        notebook: as `read_notebook` gives it; not changed.
        file_name: for messages.

    Returns:
        The normal form, and one message for each thing that a person has to mend.
    """
    cells: list[dict[str, Any]] = []
    problems: list[str] = []
    identifiers: set[str] = set()
    code_cells = 0
    for number, cell in enumerate(notebook["cells"], start=1):
        kind = cell.get("cell_type")
        source = "\n".join(line.rstrip() for line in cell["source"].split("\n")).rstrip("\n")
        if not source.strip():
            continue
        where = f"{file_name}, cell {number} ({_shortened(source.strip().splitlines()[0], 40)!r})"
        if kind not in ("code", "markdown"):
            problems.append(f"{where}: a {kind} cell. Use Markdown or code.")
            continue
        clean: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": source}
        clean["id"] = _identifier(cell.get("id"), kind, source, identifiers)
        tags = _tags(cell, where, problems)
        if tags:
            clean["metadata"]["tags"] = tags
        if kind == "markdown":
            if cell.get("attachments"):
                problems.append(f"{where}: a picture is attached to the cell. Store it as a file and link to it.")
        else:
            code_cells += 1
            if "hide-cell" in tags:
                clean["metadata"]["jupyter"] = {"source_hidden": True}
            clean["execution_count"] = None if "experiment" in tags else code_cells
            clean["outputs"] = []
            if _NBVAL_MARKER.search(source):
                problems.append(f"{where}: an NBVAL comment. Use the tag 'experiment' or 'stable' instead.")
            if "stable" in tags:
                clean["outputs"] = [_clean_output(output, code_cells) for output in _merged_streams(cell)]
                problems += [f"{where}: {reason}" for reason in _refused_outputs(clean["outputs"])]
        cells.append(clean)
    result = {
        "cells": cells,
        "metadata": {"kernelspec": dict(KERNELSPEC), "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return result, problems


def check(path: Path | str) -> list[str]:
    """Returns what keeps a notebook from being in normal form: one message for each thing, empty if it is."""
    path = Path(path)
    clean, problems = normalised(read_notebook(path), path.name)
    before, after = path.read_text(encoding="utf-8"), dumped(clean)
    if before != after:
        difference = difflib.unified_diff(
            before.splitlines(), after.splitlines(), "stored", "normal form", "", "", 1, ""
        )
        lines = [_shortened(line, 110) for line in difference][2:]
        shown = "\n".join(f"    {line}" for line in lines[:16])
        more = f"\n    ... and {len(lines) - 16} more lines" if len(lines) > 16 else ""
        problems.append(
            f"{path.name} is not in normal form. Run: python -m authoring.normal_form --write --no-execute\n"
            f"{shown}{more}"
        )
    return problems


def write(path: Path | str, execute: bool = True, timeout_s: float = 300) -> bool:
    """Puts a notebook into normal form and, with ``execute``, makes the outputs of its stable cells anew.

    The whole notebook is executed, at smoke size, because a stable cell may use what earlier cells import or define;
    only the outputs of stable cells are kept. A notebook that cannot be put into normal form is left as it was.

    Args:
        path: the notebook.
        execute: whether to run it. A notebook without stable cells is not run.
        timeout_s: how long one cell may take.

    Returns:
        Whether the file changed.

    Raises:
        LessonError: if a cell fails or takes too long, or if something has to be mended by a person first.
    """
    path = Path(path)
    notebook = read_notebook(path)
    if execute:
        notebook = _without_outputs(notebook)
        clean, problems = normalised(notebook, path.name)
        problems = [problem for problem in problems if not problem.endswith(_NO_OUTPUT)]
        if any("stable" in cell["metadata"].get("tags", []) for cell in clean["cells"]) and not problems:
            _execute(clean, path, timeout_s)
            clean, problems = normalised(clean, path.name)
    else:
        clean, problems = normalised(notebook, path.name)
    if problems:
        raise LessonError("\n".join(problems))
    text = dumped(clean)
    if text == path.read_text(encoding="utf-8"):
        return False
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, path.stat().st_mode & 0o777)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return True


def _without_outputs(notebook: dict[str, Any]) -> dict[str, Any]:
    notebook = copy.deepcopy(notebook)
    for cell in notebook["cells"]:
        if cell.get("cell_type") == "code":
            cell["outputs"] = []
    return notebook


def _execute(notebook: dict[str, Any], path: Path, timeout_s: float) -> None:
    """Runs a notebook and puts the new outputs into it."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    running = nbformat.from_dict(notebook)
    client = NotebookClient(
        running,
        timeout=timeout_s,
        kernel_name=KERNELSPEC["name"],
        extra_arguments=list(KERNEL_ARGUMENTS),
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,
    )
    try:
        client.execute(env={**os.environ, "COURSE_SIZE": "smoke"})
    except CellExecutionError as error:
        raise LessonError(f"{path.name} failed, and was left as it was.\n{_failed_cell(running)}\n{error}") from error
    except CellTimeoutError as error:
        raise LessonError(
            f"{path.name}: a cell took more than {timeout_s:g} s. The notebook was left as it was."
        ) from error
    except DeadKernelError as error:
        raise LessonError(f"{path.name}: the kernel died. The notebook was left as it was.") from error
    for cell, executed in zip(notebook["cells"], running.cells, strict=True):
        if cell["cell_type"] == "code":
            cell["outputs"] = json.loads(json.dumps(executed.outputs))


def _failed_cell(notebook: Any) -> str:
    for number, cell in enumerate(notebook.cells, start=1):
        if any(output.output_type == "error" for output in cell.get("outputs", [])):
            return f"Cell {number} raised:"
    return "A cell raised:"


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _identifier(given: Any, kind: str, source: str, taken: set[str]) -> str:
    """The cell's own id if it is valid and unique, or else one that follows from its content."""
    identifier = given if isinstance(given, str) and _CELL_ID.fullmatch(given) and given not in taken else ""
    attempt = 0
    while not identifier or identifier in taken:
        identifier = hashlib.sha256(f"{kind} {attempt} {source}".encode()).hexdigest()[:8]
        attempt += 1
    taken.add(identifier)
    return identifier


def _tags(cell: dict[str, Any], where: str, problems: list[str]) -> list[str]:
    tags = set(cell.get("metadata", {}).get("tags", []))
    unknown = sorted(tags - set(TAGS))
    if unknown:
        problems.append(f"{where}: unknown tag {', '.join(unknown)}. The tags are {', '.join(TAGS)}.")
    if cell.get("cell_type") == "markdown":
        for tag in sorted(tags & {"experiment", "stable", "nbval-ignore-output"}):
            problems.append(f"{where}: a Markdown cell tagged {tag}. Remove the tag.")
        if {"slide", "subslide"} <= tags:
            problems.append(f"{where}: tagged both slide and subslide. Keep one: subslide goes below the slide before.")
    elif tags & {"slide", "subslide"}:
        problems.append(f"{where}: a slide begins with Markdown. Tag the cell before; this one follows it by itself.")
    elif {"experiment", "stable"} <= tags:
        problems.append(f"{where}: tagged both experiment and stable. Keep one: experiment if it measures.")
    elif "experiment" in tags:
        tags.add("nbval-ignore-output")
    elif "nbval-ignore-output" in tags:
        problems.append(f"{where}: tagged nbval-ignore-output but not experiment. Its output would never be checked.")
    return sorted(tags & set(TAGS))


def _merged_streams(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs, with consecutive pieces of one stream joined: how a text arrives in pieces is a matter of timing."""
    outputs: list[dict[str, Any]] = []
    for output in cell.get("outputs", []):
        last = outputs[-1] if outputs else {}
        if output.get("output_type") == "stream" == last.get("output_type") and output["name"] == last["name"]:
            outputs[-1] = {**last, "text": last["text"] + output["text"]}
        else:
            outputs.append(output)
    return outputs


def _clean_output(output: dict[str, Any], execution_count: int) -> dict[str, Any]:
    kind = output.get("output_type")
    if kind in ("display_data", "execute_result"):
        data = output.get("data", {})
        # Sizes of pictures are kept by type; what JupyterLab notes beside them is not.
        metadata = {key: value for key, value in output.get("metadata", {}).items() if key in data}
        clean = {"output_type": kind, "data": data, "metadata": metadata}
        return {**clean, "execution_count": execution_count} if kind == "execute_result" else clean
    if kind == "stream":
        return {"output_type": kind, "name": output.get("name"), "text": output.get("text", "")}
    return dict(output)


def _refused_outputs(outputs: Sequence[dict[str, Any]]) -> list[str]:
    """Why these cannot be the stored outputs of a stable cell."""
    if not outputs:
        return [_NO_OUTPUT]
    reasons = []
    for output in outputs:
        kind = output.get("output_type")
        if kind == "error":
            reasons.append(f"the stored output is an error, {output.get('ename')}. Mend the cell and run it again.")
        elif kind == "stream" and output["name"] == "stderr":
            text = _shortened(output["text"].strip(), 60)
            reasons.append(f"the stored output holds a warning or log on stderr ({text!r}). Mend what causes it.")
        elif _WIDGET_VIEW in output.get("data", {}):
            reasons.append("a widget in a stable cell: nothing of it can be stored. Tag the cell experiment.")
        for text in _texts(output):
            for what, found in _private(text):
                reasons.append(f"the stored output holds {what} ({found!r}). It is not the same on every machine.")
    return list(dict.fromkeys(reasons))


def _texts(output: dict[str, Any]) -> list[str]:
    data = output.get("data", {})
    texts = [value for kind, value in data.items() if isinstance(value, str) and not kind.startswith("image/p")]
    return [*texts, output["text"]] if isinstance(output.get("text"), str) else texts


def _private(text: str) -> Iterator[tuple[str, str]]:
    for what, pattern in (("an absolute path", _ABSOLUTE_PATH), ("a memory address", _ADDRESS)):
        match = pattern.search(text)
        if match:
            yield what, match[0]
    for what, name in (("this machine's name", socket.gethostname()), ("your user name", _user())):
        # A plain word, such as "gpu" or "runner", may well stand in an output for another reason.
        if re.search(r"[\d.-]", name) and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text):
            yield what, name


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such user in this container
        return ""


def _notebook_paths(given: Sequence[str]) -> list[Path]:
    paths: list[Path] = []
    for path in [Path(text) for text in given] or [notebooks_root()]:
        if path.is_dir():
            paths += sorted(path.glob("*.ipynb"))
        elif path.is_file():
            paths.append(path)
        else:
            raise LessonError(f"There is no notebook or folder {path}.")
    return paths


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks notebooks or puts them into normal form, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m authoring.normal_form", description="Keep the notebooks in one normal form."
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "--check", action="store_true", help="say what is not in normal form, and exit 1 if anything is"
    )
    action.add_argument("--write", action="store_true", help="run the notebooks and store them in normal form")
    parser.add_argument(
        "--no-execute", action="store_true", help="with --write: keep the stored outputs of stable cells"
    )
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS", help="longest time for one cell (300)")
    parser.add_argument("paths", nargs="*", help="notebooks or folders; all lessons by default")
    options = parser.parse_args(arguments)
    try:
        paths = _notebook_paths(options.paths)
    except LessonError as error:
        print(error, file=sys.stderr)
        return 1
    bad = 0
    for path in paths:
        try:
            if options.check:
                problems = check(path)
            else:
                changed = write(path, execute=not options.no_execute, timeout_s=options.timeout)
                print(f"{path.name}: {'written' if changed else 'unchanged'}")
                problems = []
        except LessonError as error:
            problems = [str(error)]
        if problems:
            bad += 1
            print("\n".join(problems), file=sys.stderr)
    if options.check and not bad:
        print(f"{len(paths)} notebook{'' if len(paths) == 1 else 's'} in normal form")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
