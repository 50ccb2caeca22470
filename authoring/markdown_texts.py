"""The texts that people read: README, the pages of the book, and the Markdown cells of the lessons."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from authoring.reference_pages import reference_pages
from course_utils.lesson_notebooks import read_notebook

_ROOT = Path(__file__).resolve().parent.parent
ANCHOR = r'<a id="[^"]*"></a>\n?'  # where a link leads to: a line of its own above a heading


class Passage(NamedTuple):
    where: str  # its file, with slashes, and its cell's number among all cells, from 1
    text: str


def text_files() -> list[Path]:
    """The files whose texts people read: README.md, the book's pages and the lessons."""
    pages = sorted((_ROOT / "book").glob("*.md"))
    return [_ROOT / "README.md", *pages, *reference_pages(), *sorted((_ROOT / "notebooks").glob("*.ipynb"))]


def passages(path: Path) -> list[Passage]:
    file = path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else path.name
    if path.suffix != ".ipynb":
        return [Passage(file, path.read_text(encoding="utf-8"))]
    cells = [(f"{file}, cell {number}", cell) for number, cell in enumerate(read_notebook(path)["cells"], start=1)]
    return [Passage(where, cell["source"]) for where, cell in cells if cell["cell_type"] == "markdown"]


def one_line(text: str) -> str:
    return " ".join(text.split())


def sentence_at(text: str, position: int) -> str:
    """The sentence that stands at a place, without comments."""
    hidden = re.sub(r"<!--.*?-->", lambda comment: "\0" * len(comment[0]), text, flags=re.S)
    start = max(match.end() for match in re.finditer(r"^|[.!?] |\n", hidden[:position]))
    end = re.search(r"[.!?](?=\s|$)|\n|$", hidden[position:]).end() + position
    return one_line(hidden[start:end].replace("\0", ""))
