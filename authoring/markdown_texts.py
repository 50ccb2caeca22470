"""The texts that people read: README, the pages of the book, and the Markdown cells of the lessons.

`passages` gives the texts of a file, and `prose_only` blanks what is not prose (code, addresses, comments, generated
parts) without moving a character, so that a place found in one is the same in the other. The Markdown that the course
uses is plain, so a few regular expressions are enough.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from authoring.reference_pages import reference_pages
from course_utils.lesson_notebooks import read_notebook

# Pages that follow from other files as a whole.
GENERATED_PAGES = ("claims.md", "what_to_use_when.md")
BLANK = "\x00"
_ROOT = Path(__file__).resolve().parent.parent

# Directives such as {note} hold prose between their fences; those that include a file hold none.
_FENCED = re.compile(r"^ *(?P<fence>`{3,}|~{3,})(?! *\{(?!include))[^\n`]*\n.*?^ *(?P=fence)[^\S\n]*$", re.M | re.S)
_FENCE_OF_PROSE = re.compile(r"^ *(?:`{3,}|~{3,})[^\n]*$", re.M)
_INLINE_CODE = re.compile(r"(?<!`)(`+)(?!`)(?:.|\n(?!\s*\n))+?(?<!`)\1(?!`)")
_MATH = re.compile(r"\$\$.*?\$\$|(?<![\w$])\$(?=\S)[^$\n]*\S\$(?![\w$])", re.S)
_GENERATED = re.compile(r"<!-- generated:.*?<!-- /generated -->", re.S)
ANCHOR = r'<a id="[^"]*"></a>\n?'  # where a link leads to: a line of its own above a heading
_COMMENT = re.compile(rf"<!--.*?-->|{ANCHOR}", re.S)
_LINK = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\([^()\s]*(?:\([^()]*\)[^()\s]*)*(?:\s+\"[^\"]*\")?\)|<?https?://[^\s>)]+>?"
)


@dataclass(frozen=True)
class Passage:
    file: str  # its path from the root of the repository, with slashes
    cell: int | None  # its number among all cells, from 1; None for a page
    text: str

    @property
    def where(self) -> str:
        return self.file if self.cell is None else f"{self.file}, cell {self.cell}"


def text_files(folder: Path = _ROOT) -> list[Path]:
    """The files whose texts are written by people: README.md, the book's pages and the lessons."""
    pages = [path for path in sorted((folder / "book").glob("*.md")) if path.name not in GENERATED_PAGES]
    return [folder / "README.md", *pages, *reference_pages(folder), *sorted((folder / "notebooks").glob("*.ipynb"))]


def passages(path: Path, folder: Path = _ROOT) -> list[Passage]:
    """The texts of a file; ``folder`` is the root that messages name it from."""
    folder = folder.resolve()
    file = path.resolve().relative_to(folder).as_posix() if path.resolve().is_relative_to(folder) else path.name
    if path.suffix != ".ipynb":
        return [Passage(file, None, path.read_text(encoding="utf-8"))]
    cells = enumerate(read_notebook(path)["cells"], start=1)
    return [Passage(file, number, cell["source"]) for number, cell in cells if cell.get("cell_type") == "markdown"]


def blank(text: str, pattern: re.Pattern[str]) -> str:
    """Blanks what a pattern matches, but not line ends: every character keeps its place."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", BLANK, match[0]), text)


def code_blanked(text: str) -> str:
    for pattern in (_FENCED, _FENCE_OF_PROSE, _INLINE_CODE, _MATH):
        text = blank(text, pattern)
    return text


def prose_only(text: str) -> str:
    """The text with code, formulas, comments, generated parts and links blanked."""
    # Comments first: an expression in one may hold a backtick.
    return blank(code_blanked(blank(blank(text, _GENERATED), _COMMENT)), _LINK)


def one_line(text: str) -> str:
    return " ".join(text.split())


def sentence_at(text: str, position: int) -> str:
    """The sentence that stands at a place, without comments."""
    hidden = re.sub(r"<!--.*?-->", lambda comment: BLANK * len(comment[0]), text, flags=re.S)
    start = max(match.end() for match in re.finditer(r"^|[.!?] |\n", hidden[:position]))
    end = re.search(r"[.!?](?=\s|$)|\n|$", hidden[position:]).end() + position
    return one_line(hidden[start:end].replace(BLANK, ""))
