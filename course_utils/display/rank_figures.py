"""What the ranks of a program reported, drawn: a curve a rank, memory by kind, samples of seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.display.table_figures import curves_figure, table_figure
from course_utils.results import Curve, Curves, RankResults, Table, memory_kinds


def _is_series(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _first_to_draw(run: RankResults) -> str:
    """A curve if there is one, else memory by kind, else seconds, else any number."""

    def rank_of(key: str) -> int | None:
        values = list(run.values(key).values())
        if all(map(_is_series, values)) and all(v is None or _is_number(v) for value in values for v in value):
            return 2 if key.endswith("_s") else 0
        if all(isinstance(value, dict) for value in values) and key.endswith("_bytes"):
            return 1
        return 3 if all(map(_is_number, values)) else None

    ranked = [(place, key) for key in run.keys if (place := rank_of(key)) is not None]
    if not ranked:
        raise ValueError(f"nothing that can be drawn was reported; there are: {', '.join(run.keys) or 'none'}")
    return min(ranked, key=lambda pair: pair[0])[1]


def rank_figure(run: RankResults, key: str | None, *, log_y: bool, ax: Axes | None) -> Figure:
    """Draw what the ranks reported; see :meth:`course_utils.results.RankResults.plot`."""
    key = _first_to_draw(run) if key is None else key
    values = run.values(key)
    title = run.name or run.program
    if all(map(_is_series, values.values())):
        y = f"{key.removesuffix('_s').replace('_', ' ')} (ms)" if key.endswith("_s") else None
        drawn = run.curves(key, x="sample" if y else "step", y=y)
        if y:
            scaled = [Curve(c.label, c.x, tuple(None if v is None else v * 1e3 for v in c.y)) for c in drawn]
            drawn = Curves(tuple(scaled), drawn.x_label, drawn.y_label, run.environment, name=title)
        return curves_figure(drawn, log_y=log_y, ax=ax)
    if all(isinstance(value, dict) for value in values.values()) and key.endswith("_bytes"):
        kinds = memory_kinds(*values.values())
        rows = tuple((f"rank {rank}", *(value.get(kind) for kind in kinds)) for rank, value in values.items())
        table = Table(("rank", *kinds), rows, run.environment, units=dict.fromkeys(kinds, "bytes"), name=title)
        return table_figure(table, kinds, stacked=True, ax=ax)
    if all(map(_is_number, values.values())):
        unit = {"_s": "s", "_bytes": "bytes"}.get(f"_{key.rpartition('_')[2]}")
        rows = tuple((f"rank {rank}", value) for rank, value in values.items())
        name = key.rpartition("_")[0].replace("_", " ") if unit else key.replace("_", " ")
        units = {name: unit} if unit else {}
        return table_figure(
            Table(("rank", name), rows, run.environment, units=units, name=title), name, stacked=False, ax=ax
        )
    raise ValueError(
        f"{key!r} cannot be drawn: it is neither a series of numbers, nor a number, nor memory by kind; what "
        "timed_rounds() measured is drawn by .comparison(...).plot()"
    )
