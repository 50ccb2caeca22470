"""Notebooks as files: plain JSON in, plain JSON out, and the Python in their cells. Needs no Jupyter package."""

from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NEEDS = {"cuda": "a CUDA GPU", "two-gpus": "two CUDA GPUs", "compiler": "a C++ compiler"}
"""What an experiment may need to run live, in words. The tag of its cell is ``needs-`` and the key."""


class LessonError(ValueError):
    """A lesson that cannot be found, read, fingerprinted or put into normal form. The message says what to do."""


def read_notebook(path: Path | str) -> dict[str, Any]:
    """Reads a notebook (format 4) as plain dictionaries, with multi-line texts joined.

    Raises:
        LessonError: if the file is missing, is not JSON, or is not a notebook of format 4.
    """
    path = Path(path)
    return parsed_notebook(notebook_bytes(path), path.name)


def notebook_bytes(path: Path) -> bytes:
    """Returns what is in a notebook's file. What is made of a notebook is remembered by this, not by a time or a path.

    Raises:
        LessonError: if the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise LessonError(f"{path.name} cannot be read: {error.strerror}.") from error


def parsed_notebook(content: bytes, file_name: str) -> dict[str, Any]:
    """Returns a notebook as `read_notebook` does, from what is in its file.

    Raises:
        LessonError: if that is not JSON, or not a notebook of format 4.
    """
    try:
        notebook = json.loads(content.decode("utf-8"))
    except ValueError as error:
        raise LessonError(f"{file_name} is damaged: it is not valid JSON ({error}). Restore it from git.") from error
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4 or not isinstance(notebook.get("cells"), list):
        raise LessonError(f"{file_name} is not a notebook of format 4. Open it in JupyterLab and save it again.")
    for cell in notebook["cells"]:
        cell["source"] = _joined(cell.get("source", ""))
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = _joined(output["text"])
            for kind, value in output.get("data", {}).items():
                if isinstance(value, list) and all(isinstance(line, str) for line in value):
                    output["data"][kind] = _joined(value)
    return notebook


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def dumped(notebook: dict[str, Any]) -> str:
    """Returns a notebook as text, exactly as JupyterLab saves it: keys sorted, indented by one space, lines split."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook["cells"]:
        cell["source"] = cell["source"].splitlines(True)
        for output in cell.get("outputs", []):
            if isinstance(output.get("text"), str):
                output["text"] = output["text"].splitlines(True)
            for kind, value in output.get("data", {}).items():
                split = kind.startswith("text/") or kind in ("image/svg+xml", "application/javascript")
                if split and isinstance(value, str):
                    output["data"][kind] = value.splitlines(True)
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False, separators=(",", ": ")) + "\n"


def parsed_cells(notebook: dict[str, Any], file_name: str) -> Iterator[tuple[int, ast.Module]]:
    """Yields the position (from 1, among all cells) and the syntax tree of each code cell, without IPython magics.

    Raises:
        LessonError: if a cell is not valid Python.
    """
    for number, cell in enumerate(notebook["cells"], start=1):
        if cell.get("cell_type") != "code":
            continue
        try:
            yield number, _parse(cell["source"])
        except (SyntaxError, ValueError) as error:
            raise LessonError(f"{file_name}, cell {number} is not valid Python: {error}") from error


def _parse(source: str) -> ast.Module:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        return compile(source, "<cell>", "exec", flags, dont_inherit=True)
    except SyntaxError:
        # Only a cell that is not plain Python can hold magics, so a '%' at the start of a line of a string is safe.
        plain = _without_magics(source)
        if plain == source:
            raise
        return compile(plain, "<cell>", "exec", flags, dont_inherit=True)


def _without_magics(source: str) -> str:
    lines = source.split("\n")
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    cell_magic = re.match(r"%%(\w+)", lines[first].lstrip())
    if cell_magic:
        if cell_magic[1] not in ("time", "timeit", "capture", "prun"):
            return ""  # another language, or a file
        lines[first] = ""
    plain = []
    for line in lines:
        line = re.sub(r"^(\s*)(?:[%!].*|\?.*|[\w.]+\?{1,2}\s*)$", r"\1pass", line)
        plain.append(re.sub(r"^(\s*[\w, ]+=\s*)[%!].*$", r"\1None", line))
    return "\n".join(plain)
