"""What a notebook found out and did not time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from course_utils.records.kinds.environment import Environment
from course_utils.records.result import Finding, Reading, Result, built, compact, fields_of, tuples
from course_utils.show.formats import VALUE_FORMATS, is_number, value_text
from course_utils.show.tables import Column, Sheet, split

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# What the numbers in a table can be: how they are shown follows from it.
TABLE_UNITS = tuple(VALUE_FORMATS)


@dataclass(frozen=True, repr=False)
class Table(Result):
    """What a notebook found out and did not time: one row for each thing that was looked at.

    Attributes:
        columns: names; the first column names the rows.
        rows: the values, one tuple a row: texts, numbers, truth values, or None where there is nothing to say.
        units: of a column's numbers, by the column's name: a key of :data:`TABLE_UNITS`.
        environment: machine and software.
        name: the record's name, ``lesson/experiment``.
        parameters: problem sizes and settings.
        notes: what a reader must know, in words.
    """

    kind: ClassVar[str] = "table"

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    environment: Environment
    units: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[Any, ...]:
        """What the rows are called."""
        return tuple(row[0] for row in self.rows)

    def __getitem__(self, label: Any) -> dict[str, Any]:
        for row in self.rows:
            if row[0] == label:
                return dict(zip(self.columns, row, strict=True))
        raise KeyError(f"no row {label!r} in this table; there are: {', '.join(map(str, self.labels))}")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def sheet(self) -> Sheet:
        """The columns, those that do not fit beside each other in tables of their own."""
        columns = []
        for column, values in zip(self.columns, zip(*self.rows, strict=True), strict=True):
            numeric = any(map(is_number, values)) and not any(isinstance(value, str | bool) for value in values)
            texts = tuple(value_text(value, self.units.get(column)) for value in values)
            columns.append(Column(column, texts, numeric and bool(columns)))
        tables = split(self.name or "", f"{self.name or ''}, more", columns[0], columns[1:2], columns[2:])
        return Sheet(tuple(tables), self.notes, (self.environment.where,))

    def readings(self) -> Iterator[Reading]:
        """Every value but the names of the rows."""
        for row in self.rows:
            for column, value in zip(self.columns[1:], row[1:], strict=True):
                unit = self.units.get(column)
                yield Reading(f"{row[0]}: {column}", value, value_text(value, unit), unit)

    def findings(self) -> Iterator[Finding]:
        """Every row."""
        for row in self:
            name, *values = row.items()
            told = [f"{column}: {value_text(value, self.units.get(column))}" for column, value in values]
            yield Finding(value_text(name[1], self.units.get(name[0])), "; ".join(told))

    def plot(self, columns: str | Sequence[str] | None = None, *, stacked: bool = False, ax: Any = None) -> Figure:
        """Draw columns as horizontal bars, one group for each row.

        Args:
            columns: which, of one unit; by default the first with numbers and all others of its unit.
            stacked: whether the columns are parts of a whole.
            ax: a matplotlib axes to draw into; by default a new figure with machine and date under it.

        Returns:
            The figure. It shows itself in a notebook; ``.savefig(path)`` writes it.

        Raises:
            ValueError: if a column is unknown, holds no numbers, or has another unit than the first.
        """
        from course_utils.show.table_figures import table_figure

        return table_figure(self, columns, stacked=stacked, ax=ax)

    def to_record(self) -> dict[str, Any]:
        """The table as plain JSON types."""
        return compact({**fields_of(self), "environment": self.environment.to_record()})

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The table from :meth:`to_record`'s dictionary."""
        values = tuples(record, ("columns", "notes"))
        values["rows"] = tuple(tuple(row) for row in record["rows"])
        values["environment"] = Environment.from_record(record["environment"])
        result = built(cls, values)
        if not result.columns or any(len(row) != len(result.columns) for row in result.rows):
            raise ValueError("a table has a value for each column in each row")
        if len(set(result.labels)) < len(result.rows):
            raise ValueError("each row of a table has a name of its own")
        return result
