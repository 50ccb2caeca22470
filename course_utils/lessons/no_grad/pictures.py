"""What the lesson shows: bytes that are kept, or needed at the peak, as bars to scale."""

from __future__ import annotations

from dataclasses import replace

from course_utils.results.measurement import bytes_text
from course_utils.results.table import Table
from course_utils.show.cards import Bar, Card, Row, amount_axis


def bars(table: Table, column: str) -> Card:
    """One bar for each row of a table, of a column of bytes; shares of the first row beside it."""
    sizes = {str(row[table.columns[0]]): row[column] for row in table}
    first = next(iter(sizes.values()))
    rows = tuple(
        Row(name, f"{size / first:.0%}" if first else "", bytes_text(size), bar=Bar(0, size))
        for name, size in sizes.items()
    )
    card, axis = table.card(), amount_axis(sizes.values(), bytes_text)
    return replace(card, rows=rows, axis=axis, heads=("of the first", column), table=None, numbers=table.numbers)
