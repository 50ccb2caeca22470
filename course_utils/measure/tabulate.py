"""Keep what a notebook found out without a clock: a table of what happened, or curves over the course of a run.

Times belong to :func:`course_utils.compare` and its kin, which repeat, pair and bound them. These two take values that
were computed once: errors, bytes, which kernel ran, the loss after each step. `keep_card` keeps what a reader of the
learner's own files said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from course_utils.measure.machine import environment
from course_utils.measure.worked_by import of_what_ran
from course_utils.results.curves import Curve, Curves
from course_utils.results.reading import Reading
from course_utils.results.store import keep
from course_utils.results.table import TABLE_UNITS, Table
from course_utils.show.cards import Shown


def tabulate(
    rows: Sequence[Mapping[str, Any]],
    *,
    name: str | None = None,
    units: Mapping[str, str] | None = None,
    parameters: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    worked_by: str | None = None,
    says: Callable[[Table], str] | None = None,
) -> Table:
    """Put observations into a table that shows itself, draws itself, and can be recorded.

    Args:
        rows: one dictionary for each thing that was looked at, all with the same keys. The first key's value names the
            row. Values are texts, numbers, truth values or None; a number that is not finite becomes None.
        name: ``lesson/experiment``, to keep it in a record.
        units: what a column's numbers are, by its key: ``bytes``, ``s``, ``B/s``, ``FLOP/s``, ``relative`` (shown as
            1.2e-07), ``ratio``, ``percent`` (of a fraction) or ``count``. Numbers without a unit are shown as they are.
        parameters: problem sizes and settings, for the record.
        notes: what a reader must know, in words.
        worked_by: ``arithmetic`` for what formulas gave, ``simulation`` for what one did: no machine can see that.
            ``cpu`` or ``gpu`` where the values come from a cell before; else it is found out.
        says: makes the sentence of its card from the table: its point, with its numbers. Without one the card tells
            what the rows are. See :meth:`Table.saying` for a table that is there already.

    Example:
        >>> rows = [{"dtype": "float16", "size": 2}, {"dtype": "float32", "size": 4}]
        >>> says = lambda t: f"A float32 takes {t.text('float32', 'size')}."
        >>> table = tabulate(rows, units={"size": "bytes"}, says=says)
        >>> table["float32"]["size"], table.card().words
        (4, 'A float32 takes 4 B.')
    """
    if not rows or not rows[0]:
        raise ValueError("tabulate() needs at least one row: pass a list of dictionaries with the same keys")
    columns = tuple(rows[0])
    for row in rows:
        if tuple(row) != columns:
            raise ValueError(f"rows must have the same keys in the same order: {list(columns)} and {list(row)}")
    units = dict(units or {})
    for column, unit in units.items():
        if column not in columns:
            raise ValueError(f"units names a column {column!r} that no row has; there are: {', '.join(columns)}")
        if unit not in TABLE_UNITS:
            raise ValueError(f"the unit of {column!r} is {unit!r}; there are: {', '.join(TABLE_UNITS)}")
    labels = [row[columns[0]] for row in rows]
    if twice := [str(label) for label in labels if labels.count(label) > 1]:
        raise ValueError(f"the first column, {columns[0]!r}, names the rows, and it has {twice[0]!r} twice")
    return keep(
        Table(
            columns=columns,
            rows=tuple(tuple(_plain(value, column) for column, value in row.items()) for row in rows),
            units=units,
            environment=environment(),
            name=name,
            parameters=dict(parameters or {}),
            notes=tuple(notes),
            worked_by=of_what_ran(worked_by),
        ),
        says,
    )


def curves(
    lines: Mapping[str, Sequence[float] | tuple[Sequence[float], Sequence[float]]],
    *,
    x: str,
    y: str,
    name: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    worked_by: str | None = None,
    says: Callable[[Curves], str] | None = None,
) -> Curves:
    """Put values over the course of a run, such as losses, into a figure that can be recorded.

    ``lines`` maps a label to values, the first at x = 1; or to a pair ``(xs, ys)`` of a tuple with two sequences. A
    value that is not finite leaves a gap. ``x`` and ``y`` are what the axes show, with its unit, for example ``step``
    and ``loss (nats per byte)``. The other arguments are those of :func:`course_utils.tabulate`.

    Example:
        >>> curves({"fp32": [2.0, 1.5, 1.2]}, x="step", y="loss")["fp32"].final
        1.2
    """
    if not lines:
        raise ValueError('curves() needs at least one line: pass a dictionary such as {"fp32": losses}')
    drawn = []
    for label, values in lines.items():
        pair = isinstance(values, tuple) and len(values) == 2 and all(isinstance(part, Sequence) for part in values)
        xs, ys = values if pair else (range(1, len(values) + 1), values)
        if not len(ys) or len(xs) != len(ys):
            raise ValueError(f"line {label!r} needs as many x as y and at least one; it has {len(xs)} and {len(ys)}")
        drawn.append(Curve(str(label), tuple(_plain(v, label) for v in xs), tuple(_plain(v, label) for v in ys)))
    return keep(
        Curves(
            curves=tuple(drawn),
            x_label=x,
            y_label=y,
            environment=environment(),
            name=name,
            parameters=dict(parameters or {}),
            notes=tuple(notes),
            worked_by=of_what_ran(worked_by),
        ),
        says,
    )


def keep_card(shown: Shown, *, name: str, worked_by: str | None = None) -> Reading:
    """Keep the card of what a notebook read, a trace for example, as a record named ``lesson/experiment``.

    ``worked_by`` is that of :func:`course_utils.tabulate`.

    Example:
        >>> class Found(Shown):
        ...     def card(self):
        ...         from course_utils.show.cards import Card
        ...         return Card("Nothing stands out.")
        >>> keep_card(Found(), name="planning/found").card().words
        'Nothing stands out.'
    """
    return keep(Reading.of(shown.card(), environment(), name, of_what_ran(worked_by)))


def _plain(value: Any, where: Any) -> str | int | float | bool | None:
    """A value that a record can hold; a number that is not finite is no number to show."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # one number of NumPy or torch
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(
        f"{where!r} holds a {type(value).__name__}: write it as a text, a number, a truth value or None, "
        "for example with str() or .item()"
    )
