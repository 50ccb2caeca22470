"""Code that a lesson gives to paste: cells of its notebook, and blocks of its reference page."""

from __future__ import annotations

from typing import Any

from authoring.reference_pages import code_blocks, reference_pages
from course_utils.lesson_notebooks import find_lesson, read_notebook


def source(slug: str, which: str) -> str:
    """The cell with this id; else the first cell, or block of the page, that holds these words."""
    cells = {cell["id"]: cell["source"] for cell in read_notebook(find_lesson(slug).path)["cells"]}
    blocks = [block for page in reference_pages() if page.stem == slug for block in code_blocks(page)]
    return cells[which] if which in cells else next(text for text in (*cells.values(), *blocks) if which in text)


def pasted(slug: str, *which: str, **names: Any) -> dict[str, Any]:
    """The names that these pieces of code make, run one after the other beside ``names``."""
    for each in which:
        exec(source(slug, each), names)
    return names
