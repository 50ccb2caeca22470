"""The texts that people read, cut into sentences: README, the pages of the book, and the Markdown cells of the lessons.

`passages` gives the texts of a file, `sentences` cuts one into sentences, and `prose_only` blanks what is not prose
(code, addresses, comments, generated parts) without moving a character, so that a place found in one is the same in the
other. The Markdown that the course uses is plain, so a few regular expressions are enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course_utils.records.notebook_files import read_notebook

# Pages that follow from other files as a whole.
GENERATED_PAGES = ("claims.md", "limits.md", "status.md")
BLANK = "\x00"

# Fences of directives such as {glossary} hold prose; those that include a file hold none.
_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^ *(?P=fence)[^\S\n]*$", re.M | re.S
)
_INLINE_CODE = re.compile(r"(?<!`)(`+)(?!`)(?:.|\n(?!\s*\n))+?(?<!`)\1(?!`)")
_MATH = re.compile(r"\$\$.*?\$\$|(?<![\w$])\$(?=\S)[^$\n]*\S\$(?![\w$])", re.S)
_GENERATED = re.compile(r"<!-- generated:.*?<!-- /generated -->", re.S)
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_LINK = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\([^()\s]*(?:\([^()]*\)[^()\s]*)*(?:\s+\"[^\"]*\")?\)|<?https?://[^\s>)]+>?"
)
_NEW_BLOCK = re.compile(r"\s*(?:[-*+]\s|\d+[.)]\s|#{1,6}\s|\||>|:\s)")
_SENTENCE_END = re.compile(r"[.!?][\"')*_]*\s+(?=[\"'(*_\[]*[A-Z0-9\x00])")


@dataclass(frozen=True)
class Passage:
    """A text of a file.

    Attributes:
        file: the file's path from the root of the repository, with slashes.
        cell: number of the Markdown cell, from 1 and among all cells; None for a page.
        text: its Markdown.
    """

    file: str
    cell: int | None
    text: str

    @property
    def where(self) -> str:
        """The place in words, for messages."""
        return self.file if self.cell is None else f"{self.file}, cell {self.cell}"


@dataclass(frozen=True)
class Sentence:
    """A sentence, a heading, or a row of a table.

    Attributes:
        start: where it begins in its passage.
        end: where it ends.
        text: as it is written, on one line.
        unit: the whole entry of a list, row of a table or paragraph that it stands in, on one line.
    """

    start: int
    end: int
    text: str
    unit: str


def root() -> Path:
    """The folder that holds README.md, the book and the notebooks."""
    return Path(__file__).resolve().parent.parent


def text_files(folder: Path | None = None) -> list[Path]:
    """The files whose texts are written by people: README.md, the book's pages and the lessons.

    Args:
        folder: the repository's; by default that of this package.
    """
    folder = folder or root()
    pages = [path for path in sorted((folder / "book").glob("*.md")) if path.name not in GENERATED_PAGES]
    readme = [folder / "README.md"] if (folder / "README.md").is_file() else []
    return [*readme, *pages, *sorted((folder / "notebooks").glob("*.ipynb"))]


def passages(path: Path, folder: Path | None = None) -> list[Passage]:
    """The texts of a file.

    Args:
        path: a page or a notebook.
        folder: the root that messages name the file from; by default the repository.

    Returns:
        One for a page, one a Markdown cell for a notebook.

    Raises:
        LessonError: if a notebook cannot be read.
    """
    folder = (folder or root()).resolve()
    file = path.resolve().relative_to(folder).as_posix() if path.resolve().is_relative_to(folder) else path.name
    if path.suffix != ".ipynb":
        return [Passage(file, None, path.read_text(encoding="utf-8"))]
    cells = enumerate(read_notebook(path)["cells"], start=1)
    return [Passage(file, number, cell["source"]) for number, cell in cells if cell.get("cell_type") == "markdown"]


def _blank(text: str, start: int, end: int) -> str:
    """Blanks a part, but not its line ends: blocks must stay where they are."""
    return text[:start] + re.sub(r"[^\n]", BLANK, text[start:end]) + text[end:]


def code_blanked(text: str) -> str:
    """The text with code and formulas blanked; every character keeps its place.

    Example:
        >>> code_blanked("Run `x` now").replace(BLANK, "_")
        'Run ___ now'
    """
    for match in list(_FENCE.finditer(text)):
        parts = [match.span()]
        if match["info"].strip().startswith("{") and not match["info"].strip().startswith("{include}"):
            parts = [(match.start(), match.start("body")), (match.end("body"), match.end())]
        for start, end in parts:
            text = _blank(text, start, end)
    for pattern in (_INLINE_CODE, _MATH):
        for match in list(pattern.finditer(text)):
            text = _blank(text, *match.span())
    return text


def prose_only(text: str, links: bool = False) -> str:
    """The text with code, formulas, comments, generated parts and links blanked; every character keeps its place.

    Args:
        text: Markdown.
        links: whether links stay.

    Example:
        >>> prose_only("See [it](page.md) <!-- no --> here").replace(BLANK, "_")
        'See _____________ ___________ here'
    """
    # Comments first: an expression in one may hold a backtick.
    for pattern in (_GENERATED, _COMMENT):
        for match in list(pattern.finditer(text)):
            text = _blank(text, *match.span())
    text = code_blanked(text)
    if not links:
        for match in list(_LINK.finditer(text)):
            text = _blank(text, *match.span())
    return text


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Where paragraphs, headings, entries of lists and rows of tables begin and end."""
    start: int | None = None
    position = 0
    for line in text.splitlines(keepends=True):
        plain = line.strip()
        if start is not None and (not plain or _NEW_BLOCK.match(line)):
            yield start, position
            start = None
        if plain and start is None:
            start = position
        position += len(line)
        if plain.startswith("#") and start is not None:
            yield start, position
            start = None
    if start is not None:
        yield start, position


def one_line(text: str) -> str:
    """The text on one line, with single spaces."""
    return re.sub(r"\s+", " ", text).strip()


def sentences(text: str) -> list[Sentence]:
    r"""Cuts Markdown into sentences. A row of a table and a heading count as one.

    Args:
        text: Markdown.

    Returns:
        The sentences, in order. Full stops inside of code and comments end none.

    Example:
        >>> [one.text for one in sentences("# A title\n\nOne runs. Two `a. B`\nwalk.\n\n- Three. Four.")]
        ['# A title', 'One runs.', 'Two `a. B` walk.', '- Three.', 'Four.']
    """
    plain = prose_only(text)
    found = []
    for start, end in _blocks(plain):
        unit = one_line(text[start:end])
        row = text[start:end].lstrip().startswith("|")
        cuts = [] if row else [start + match.end() for match in _SENTENCE_END.finditer(plain[start:end])]
        # "1. First" begins with the number of its entry, not with a sentence.
        cuts = [cut for cut in cuts if not re.fullmatch(r"\s*\d+\.\s*", plain[start:cut])]
        for left, right in zip([start, *cuts], [*cuts, end], strict=True):
            if text[left:right].strip():
                found.append(Sentence(left, right, one_line(text[left:right]), unit))
    return found


def sentence_at(text: str, position: int) -> Sentence:
    """The sentence that holds a place of a text.

    Args:
        text: Markdown.
        position: the place.
    """
    return next(
        (one for one in sentences(text) if one.start <= position < one.end),
        Sentence(position, position, one_line(text[position : position + 80]), ""),
    )
