"""Tables as text for terminals and as plain HTML for notebooks.

Both are made from one description (:class:`Sheet`), so they say the same. The HTML has no style, class or id: the
notebook, the book and GitHub each dress it, and its bytes are the same in every process.
"""

from __future__ import annotations

import html as html_module
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

MAX_WIDTH = 100
# From roomy to tight: the width at which row names wrap, and whether headers wrap too.
_LAYOUTS = ((40, False), (28, True), (22, True))
_TEXT_WIDTH = 44
_NARROWEST = 12
_GAP = "  "
_UNIT_SPACE, _NO_BREAK = re.compile(r"(?<=\d) (?!to )"), "\u00a0"  # a number and its unit stay on one line


@dataclass(frozen=True)
class Column:
    """One column: its header, a cell for each row, and whether the cells are numbers (right-aligned)."""

    header: str
    cells: tuple[str, ...]
    numeric: bool = True

    @property
    def empty(self) -> bool:
        """Whether no row has anything to say here."""
        return not any(self.cells)


@dataclass(frozen=True)
class Grid:
    """A table whose first column names the rows."""

    caption: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, repr=False)
class Sheet:
    """All numbers of a result: tables, what a reader must know, and how it was measured."""

    tables: tuple[Grid, ...]
    lines: tuple[str, ...] = ()
    fine_print: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return text(self)

    def _repr_html_(self) -> str:
        return html(self)


def named_values(caption: str, values: Sequence[tuple[str, str | None]]) -> Grid:
    """A table of names and values; names without a value are left out."""
    names, texts = zip(*((name, value) for name, value in values if value), strict=True)
    return Grid(caption, (Column("", names, numeric=False), Column("", texts, numeric=False)))


def _wrap(cell: str, width: int) -> list[str]:
    return textwrap.wrap(cell, width) or [""]


def _widths(columns: Sequence[Column], label_width: int, wrap_headers: bool) -> list[int]:
    widths = []
    for i, column in enumerate(columns):
        limit = _TEXT_WIDTH if i else label_width
        cells = [line for cell in column.cells for line in _wrap(cell, limit)]
        headers = [part for word in column.header.split() for part in _wrap(word, limit)]
        widths.append(max(map(len, (*cells, *(headers if wrap_headers else [column.header]), ""))))
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _fitting_widths(columns: Sequence[Column]) -> list[int] | None:
    """The widths of the roomiest layout that fits; None if none does."""
    layouts = (_widths(columns, *layout) for layout in _LAYOUTS)
    return next((widths for widths in layouts if _total(widths) <= MAX_WIDTH), None)


def _table_text(table: Grid) -> list[str]:
    columns = table.columns
    widths = _fitting_widths(columns) or _widths(columns, *_LAYOUTS[-1])
    if len(columns) == 2 and not columns[1].header:  # names and values: the value takes what room there is
        widths[1] = MAX_WIDTH
    while (over := _total(widths) - MAX_WIDTH) > 0 and max(widths) > _NARROWEST:
        widest = widths.index(max(widths))
        widths[widest] = max(_NARROWEST, widths[widest] - over)

    def row(cells: Sequence[str], bottom: bool = False) -> list[str]:
        wrapped = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
        height = max(map(len, wrapped))
        padded = []
        for column, width, parts in zip(columns, widths, wrapped, strict=True):
            empty = [""] * (height - len(parts))
            parts = [*empty, *parts] if bottom else [*parts, *empty]
            padded.append([part.rjust(width) if column.numeric else part.ljust(width) for part in parts])
        return [_GAP.join(line).rstrip() for line in zip(*padded, strict=True)]

    lines = textwrap.wrap(table.caption, MAX_WIDTH)
    if any(column.header for column in columns):
        lines += row([column.header for column in columns], bottom=True)
        lines.append(_GAP.join("-" * width for width in widths))
    for cells in zip(*(column.cells for column in columns), strict=True):
        lines += row(cells)
    return lines


def _table_html(table: Grid) -> list[str]:
    escape = html_module.escape
    lines = ["<table>", *([f"<caption>{escape(table.caption)}</caption>"] if table.caption else [])]
    if any(column.header for column in table.columns):
        heads = (escape(column.header) for column in table.columns)
        head = "".join(f'<th scope="col">{words}</th>' if words else "<td></td>" for words in heads)
        lines.append(f"<thead><tr>{head}</tr></thead>")
    lines.append("<tbody>")
    for name, *cells in zip(*(column.cells for column in table.columns), strict=True):
        row = ""
        for column, cell in zip(table.columns[1:], map(escape, cells), strict=True):
            row += f"<td>{_UNIT_SPACE.sub(_NO_BREAK, cell) if column.numeric else cell}</td>"
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{row}</tr>')
    return [*lines, "</tbody>", "</table>"]


def split(caption: str, more: str, key: Column, core: Sequence[Column], extra: Sequence[Column]) -> list[Grid]:
    """One table if everything fits a terminal's width, otherwise one with what matters and others with the rest."""
    core = [column for column in core if not column.empty]
    extra = [column for column in extra if not column.empty]
    if _fitting_widths([key, *core, *extra]):
        return [Grid(caption, (key, *core, *extra))]
    rows = [i for i in range(len(key.cells)) if any(column.cells[i] for column in extra)]

    def pick(column: Column) -> Column:
        return Column(column.header, tuple(column.cells[i] for i in rows), column.numeric)

    groups: list[list[Column]] = []
    for column in map(pick, extra):
        if groups and _fitting_widths([pick(key), *groups[-1], column]):
            groups[-1].append(column)
        else:
            groups.append([column])
    return [Grid(caption, (key, *core)), *(Grid(more, (pick(key), *group)) for group in groups)]


def text(sheet: Sheet) -> str:
    """A sheet as text tables of at most 110 columns, without a final line break."""
    blocks = ["\n".join(_table_text(table)) for table in sheet.tables]
    lines = [textwrap.fill(line, MAX_WIDTH, subsequent_indent="  ") for line in (*sheet.lines, *sheet.fine_print)]
    return "\n\n".join([*blocks, *(["\n".join(lines)] if lines else [])])


def html(sheet: Sheet) -> str:
    """A sheet as plain HTML: tables with captions, and paragraphs under them. The same sheet gives the same bytes."""
    lines = [line for table in sheet.tables for line in _table_html(table)]
    lines += [f"<p>{html_module.escape(line)}</p>" for line in sheet.lines]
    if sheet.fine_print:
        lines.append(f"<p>{'<br>'.join(map(html_module.escape, sheet.fine_print))}</p>")
    return "\n".join(lines)
