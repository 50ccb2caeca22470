"""What the ranks of a program reported, drawn: a curve a rank, memory by kind, samples of seconds."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.records.kinds.curves import Curve, Curves
from course_utils.records.kinds.rank_results import (
    RankResults,
    is_memory_by_kind,
    is_series,
    memory_kinds,
    words_and_unit,
)
from course_utils.records.kinds.table import Table
from course_utils.records.result import NothingToDrawError
from course_utils.show.formats import is_number, seconds_unit
from course_utils.show.table_figures import curves_figure, table_figure

_CURVE, _MEMORY, _SECONDS, _ROUNDS, _NUMBER = range(5)


def _drawn_as(run: RankResults, key: str) -> int | None:
    """What a value is drawn as; None if it cannot be drawn."""
    values = list(run.values(key).values())
    if all(map(is_series, values)):
        return _SECONDS if words_and_unit(key)[1] == "s" else _CURVE
    if all(is_memory_by_kind(key, value) for value in values):
        return _MEMORY
    if key in run.rounds:
        return _ROUNDS
    return _NUMBER if all(map(is_number, values)) else None


def _first_to_draw(run: RankResults) -> str:
    drawable = [(drawn_as, key) for key in run.keys if (drawn_as := _drawn_as(run, key)) is not None]
    if not drawable:
        raise NothingToDrawError(f"nothing that can be drawn was reported; there are: {', '.join(run.keys) or 'none'}")
    return min(drawable, key=lambda pair: pair[0])[1]


def rank_figure(run: RankResults, key: str | None, *, log_y: bool, ax: Axes | None) -> Figure:
    """Draw what the ranks reported; see `RankResults.plot`."""
    key = _first_to_draw(run) if key is None else key
    drawn_as = _drawn_as(run, key)
    values, (words, unit) = run.values(key), words_and_unit(key)
    if drawn_as is None:
        raise ValueError(
            f"{key!r} cannot be drawn: it is neither a series of numbers, nor a number, nor memory by kind, nor from "
            "timed_rounds()"
        )
    if drawn_as is _ROUNDS:
        return run.comparison(key).plot(ax=ax)
    if drawn_as is _CURVE:
        return curves_figure(run.curves(key), log_y=log_y, ax=ax)
    if drawn_as is _SECONDS:
        scale, name = seconds_unit(max(v for value in values.values() for v in value if v is not None))
        series = run.curves(key, x="sample", y=f"{words} ({name})")
        scaled = tuple(Curve(c.label, c.x, tuple(None if v is None else v / scale for v in c.y)) for c in series)
        in_unit = Curves(scaled, series.x_label, series.y_label, run.environment, name=series.name)
        return curves_figure(in_unit, log_y=log_y, ax=ax)
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    if drawn_as is _MEMORY:
        columns = memory_kinds(*values.values())
        rows = tuple((f"rank {rank}", *(value.get(kind) for kind in columns)) for rank, value in values.items())
        unit = "bytes"
    else:
        columns = (words,)
        rows = tuple((f"rank {rank}", value) for rank, value in values.items())
    units = dict.fromkeys(columns, unit) if unit else {}
    table = Table(("rank", *columns), rows, run.environment, units=units, name=run.name)
    return table_figure(table, columns, stacked=drawn_as is _MEMORY, ax=ax)
