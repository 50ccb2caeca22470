"""Small notebooks that tests write, as an editor would leave them: not in normal form."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from course_utils.lesson_notebooks import Lesson


def code(source: str, *tags: str, outputs: list | None = None, **more: Any) -> dict[str, Any]:
    """A code cell."""
    cell = {"cell_type": "code", "source": source, "metadata": {"tags": list(tags)} if tags else {}}
    return {**cell, "outputs": outputs or [], "execution_count": None, **more}


def text(source: str, *tags: str, **more: Any) -> dict[str, Any]:
    """A Markdown cell."""
    return {"cell_type": "markdown", "source": source, "metadata": {"tags": list(tags)} if tags else {}, **more}


def stream(words: str, name: str = "stdout") -> dict[str, Any]:
    """What a cell has printed."""
    return {"output_type": "stream", "name": name, "text": words}


def save(path: Path, *cells: dict[str, Any] | str, **metadata: Any) -> Path:
    """Writes a notebook; a text is a code cell without tags."""
    made = [code(cell) if isinstance(cell, str) else cell for cell in cells]
    made = [{"id": f"c{number}", **cell} for number, cell in enumerate(made)]
    content = {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def lesson_of(folder: Path, *cells: dict[str, Any] | str) -> Lesson:
    """Writes a lesson 05, Things."""
    return Lesson(5, "things", "Things", save(folder / "05_things.ipynb", *cells))


def parsed_cells(notebook: dict[str, Any], file_name: str) -> dict[int, ast.Module]:
    """The syntax tree of each code cell by its position, which counts all cells from 1."""
    return {
        number: ast.parse(cell["source"], f"{file_name}, cell {number}")
        for number, cell in enumerate(notebook["cells"], start=1)
        if cell["cell_type"] == "code"
    }
