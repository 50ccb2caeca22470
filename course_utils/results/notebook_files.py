"""Notebooks as files: reading them, writing them as JupyterLab does, and the Python in their cells."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

NEEDS = {"cuda": "a CUDA GPU", "two-gpus": "two CUDA GPUs", "compiler": "a C++ compiler"}
"""What an experiment may need to run live, in words. The tag of its cell is ``needs-`` and the key."""


class LessonError(ValueError):
    """A lesson that cannot be found, read or put into normal form. The message says what to do."""


def read_notebook(path: Path | str) -> dict[str, Any]:
    """Reads a notebook (format 4), with multi-line texts joined."""
    path = Path(path)
    return parsed_notebook(notebook_bytes(path), path.name)


def notebook_bytes(path: Path) -> bytes:
    """Returns what is in a notebook's file: what is made of a notebook is remembered by this, not by a path."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise LessonError(f"{path.name} cannot be read: {error.strerror}.") from error


def parsed_notebook(content: bytes, file_name: str) -> dict[str, Any]:
    """Returns a notebook as `read_notebook` does, from what is in its file."""
    import nbformat  # it takes longer to load than all of the course, and measuring does without

    try:
        notebook = nbformat.v4.reads(content.decode("utf-8"))
    except (AttributeError, KeyError, TypeError):  # some other JSON
        notebook = {}
    except ValueError as error:
        raise LessonError(f"{file_name} is damaged: it is not valid JSON ({error}). Restore it from git.") from error
    if notebook.get("nbformat") != 4:
        raise LessonError(f"{file_name} is not a notebook of format 4. Open it in JupyterLab and save it again.")
    return notebook


def dumped(notebook: dict[str, Any]) -> str:
    """Returns a notebook as text, exactly as JupyterLab saves it: keys sorted, indented by one space, lines split."""
    import nbformat

    return nbformat.v4.writes(nbformat.from_dict(notebook)) + "\n"


def parsed_cells(notebook: dict[str, Any], file_name: str) -> dict[int, ast.Module]:
    """Returns the syntax tree of each code cell by its position, which counts all cells from 1."""
    trees = {}
    for number, cell in enumerate(notebook["cells"], start=1):
        if cell["cell_type"] == "code":
            try:
                trees[number] = ast.parse(cell["source"])
            except (SyntaxError, ValueError) as error:
                raise LessonError(f"{file_name}, cell {number} is not valid Python: {error}") from error
    return trees
