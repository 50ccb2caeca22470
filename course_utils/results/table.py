"""What a notebook found out and did not time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from course_utils.results.environment import Environment
from course_utils.results.result import Fact, Named, Result, by_name
from course_utils.show.cards import Card
from course_utils.show.formats import VALUE_FORMATS, axis_unit, is_number, listed, value_text
from course_utils.show.tables import Column, Grid, Sheet, split

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# What the numbers in a table can be: how they are shown follows from it.
TABLE_UNITS = tuple(VALUE_FORMATS)
# A card shows so much of a table unfolded.
_SHOWN_ROWS, _SHOWN_COLUMNS = 8, 4
# A sentence names so many letters of rows at most.
_NAMED_LETTERS = 60
_QUANTITIES = {"bytes": "memory", "s": "time", "B/s": "bandwidth", "FLOP/s": "compute rate", "percent": "share"}
# The same differences as the colours', once more, for printing in grey.
_HATCHES = ("", "//", "..", "xx", "\\\\", "++")


@dataclass(frozen=True, repr=False)
class Table(Result):
    """What a notebook found out and did not time: one row for each thing that was looked at."""

    kind: ClassVar[str] = "table"

    columns: tuple[str, ...]  # names; the first column names the rows
    # the values, one tuple a row: texts, numbers, truth values, or None where there is nothing to say
    rows: tuple[tuple[Any, ...], ...]
    environment: Environment
    # of a column's numbers, by the column's name: a key of `TABLE_UNITS`
    units: Mapping[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> tuple[Any, ...]:
        """What the rows are called."""
        return tuple(row[0] for row in self.rows)

    def __getitem__(self, label: Any) -> dict[str, Any]:
        row = by_name(dict(zip(self.labels, self.rows, strict=True)), label, f"row {label!r} in this table")
        return Named(zip(self.columns, row, strict=True))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (Named(zip(self.columns, row, strict=True)) for row in self.rows)

    def text(self, label: Any, column: str) -> str:
        """A cell as the card shows it, with its unit: for the sentence of ``says=``.

        Example:
            >>> from course_utils import tabulate
            >>> tabulate([{"step": 1, "peak": 2**24}], units={"peak": "bytes"}).text(1, "peak")
            '16.0 MiB'
        """
        return value_text(self[label][column], self.units.get(column))

    def card(self) -> Card:
        """What is said of it in a sentence; then the table, of a large one the first rows and columns."""
        columns = self._columns()
        small = tuple(
            Column(column.header, column.cells[:_SHOWN_ROWS], column.numeric) for column in columns[:_SHOWN_COLUMNS]
        )
        over = (("row", len(self.rows) - _SHOWN_ROWS), ("column", len(columns) - _SHOWN_COLUMNS))
        cut = [f"{count} more {what}{'s' if count > 1 else ''}" for what, count in over if count > 0]
        return Card(
            self.says or self._sentence(),
            table=Grid("", small) if len(columns) > 1 else None,
            notes=((f"And {listed(cut)} under All numbers.",) if cut else ()) + self.notes,
            numbers=self.numbers if cut else None,
            **self.stamp(self.busy),
        )

    def _columns(self) -> list[Column]:
        columns = []
        for column, values in zip(self.columns, zip(*self.rows, strict=True), strict=True):
            numeric = any(map(is_number, values)) and not any(isinstance(value, str | bool) for value in values)
            texts = tuple(value_text(value, self.units.get(column)) for value in values)
            columns.append(Column(column, texts, numeric and bool(columns)))
        return columns

    def all_columns(self) -> tuple[Grid, ...]:
        """All columns, those that do not fit beside each other in tables of their own."""
        columns = self._columns()
        return tuple(split("", "more", columns[0], columns[1:2], columns[2:]))

    def _sentence(self) -> str:
        """What the rows are, or how often the first column of words says what; its point only ``says=`` can tell."""
        names = [f"{self.columns[0]} {label}".strip() if is_number(label) else str(label) for label in self.labels]
        if len(self.rows) == 1 < len(self.columns):
            return f"{names[0]}: {listed(fact.sentence for fact in self.facts())}."
        for column in self.columns[1:]:
            values = [row[column] for row in self]
            if len({value for value in values if is_number(value)}) > 1:
                break  # of numbers nothing is picked out
            counts = Counter(value_text(value) for value in values).most_common()
            if 1 < len(counts) <= len(self.rows) / 2 and not any(v is None or is_number(v) for v in values):
                (most, rows), *others = counts
                return f"{column}: {listed((f'{most} in {rows} rows', *(f'{text} in {n}' for text, n in others)))}."
        if not self.columns[0] and len(self.columns) > 1:  # the names say themselves what they are
            return f"{listed(self.columns[1:])}."
        texts = [value_text(label, self.units.get(self.columns[0])) for label in self.labels]
        named = [text for i, text in enumerate(texts) if not i or len(", ".join(texts[: i + 1])) <= _NAMED_LETTERS]
        if len(named) < len(texts):
            named.append(f"{len(texts) - len(named)} more")
        in_a_row = "; ".join(named) if any("," in text for text in named) else listed(named)
        return f"{self.columns[0]}: {in_a_row}."

    @property
    def numbers(self) -> Sheet:
        """All columns of all rows."""
        return Sheet(self.all_columns(), self.notes, (self.where,))

    def facts(self) -> Iterator[Fact]:
        """Every value but the names of the rows."""
        for row in self.rows:
            name = value_text(row[0], self.units.get(self.columns[0]))
            for column, value in zip(self.columns[1:], row[1:], strict=True):
                unit = self.units.get(column)
                words = value_text(value, unit)
                yield Fact(f"{row[0]}: {column}", value, words, f"{column}: {words}", row=name, unit=unit)

    def plot(self, columns: str | Sequence[str] | None = None, *, stacked: bool = False) -> Figure:
        """Draw a column as horizontal bars, one for each row.

        Args:
            columns: which; by default the first with numbers.
            stacked: several columns of one unit, which are parts of a whole, as parts of one bar.

        Raises:
            ValueError: if a column is unknown or holds no numbers, or columns have several units.
        """
        from course_utils.show import canvas

        chosen = self._chosen(columns)
        if not stacked:
            chosen = chosen[:1]
        unit = self.units.get(chosen[0])
        names = [value_text(label, self.units.get(self.columns[0])) for label in self.labels]
        totals = [sum(row[column] or 0 for column in chosen) for row in self]
        scale, counted = axis_unit(unit, max(totals))
        with canvas.style():
            row_in = max(0.36, canvas.row_in(names, 0.38))
            title, caption = self.says or self.titled(", ".join(chosen)), self.caption
            legend_rows = math.ceil(len(chosen) / 5) if len(chosen) > 1 else 0
            fig = canvas.titled_figure(title, row_in * len(names) + 0.6 + 0.24 * legend_rows, caption)
            panel = fig.subplots()
            handles, ends = [], [0.0] * len(names)
            for i, column in enumerate(chosen):
                look = {"color": canvas.case_colour(i + 1), "hatch": _HATCHES[i % len(_HATCHES)] if stacked else ""}
                values = [(row[column] or 0) / scale for row in self]
                look |= {"height": 0.72 if stacked else 0.8, "edgecolor": "white", "lw": 0.6, "zorder": 2}
                handles.append(panel.barh(range(len(names)), values, left=ends, **look))
                ends = [end + value for end, value in zip(ends, values, strict=True)]
            for y, (end, total) in enumerate(zip(ends, totals, strict=True)):
                beside = {"textcoords": "offset points", "va": "center", "fontsize": 9}
                panel.annotate(value_text(total, unit), (end, y), (8, 0), **beside)
            most = max(totals) / scale or 1
            canvas.scale_axis(panel, "x", [0, most], count=6)
            panel.set_xlim(0, most * 1.16)
            what = chosen[0] if len(chosen) == 1 else _QUANTITIES.get(unit, "")
            panel.set_xlabel(f"{what} ({counted})".strip() if counted else what)
            canvas.grid(panel, "x")
            canvas.name_rows(panel, names)
            if legend_rows:
                canvas.legend(fig, handles, chosen, min(5, len(chosen)))
            described = []
            for name, row in zip(names, self, strict=True):
                values = (f"{column} {value_text(row[column], self.units.get(column))}" for column in chosen)
                described.append(f"{name}: {', '.join(values)}")
            fig.alt = f"{'Stacked bars' if stacked else 'Bars'}. {'; '.join(described)}. {caption}."
            return fig

    def _chosen(self, columns: str | Sequence[str] | None) -> tuple[str, ...]:
        """The columns to draw: of numbers, and of one unit."""
        numeric = []
        for column in self.columns[1:]:
            numbers = [row[column] for row in self if row[column] is not None]
            if numbers and all(map(is_number, numbers)):
                numeric.append(column)
        if not numeric:
            raise ValueError("this table has no column of numbers to draw")
        chosen = numeric[:1] if columns is None else [columns] if isinstance(columns, str) else columns
        for column in chosen:
            if column not in numeric:
                raise ValueError(f"columns names {column!r}, which holds no numbers; these do: {', '.join(numeric)}")
        units = {self.units.get(column) for column in chosen}
        if len(units) > 1:
            raise ValueError(f"columns of one unit share an axis; {', '.join(chosen)} have {len(units)} units")
        return tuple(chosen)
