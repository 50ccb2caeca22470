"""Tables of observations as bars, and curves over the course of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from course_utils.records.kinds.curves import Curves
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.table import Table
from course_utils.records.result import NothingToDrawError
from course_utils.show.canvas import (
    LINE_IN,
    MARGIN_IN,
    WIDTH_IN,
    ResultFigure,
    axes_in,
    case_colour,
    draw_footer,
    fit,
    footer_lines,
    new_figure,
    plain_number,
    scale_axis,
    span,
    styled,
    text_in,
    text_width_in,
)
from course_utils.show.formats import is_number, seconds_unit, value_text

_BAR_IN = 0.24
_LABEL_IN = 2.1
_BINARY_UNITS = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
_DECIMAL_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_QUANTITIES = {"bytes": "memory", "s": "time", "B/s": "bandwidth", "FLOP/s": "compute rate", "percent": "share"}
# The same differences once more, for printing in grey.
_MARKERS = ("o", "s", "D", "^", "v", "P")
_HATCHES = ("", "//", "..", "xx", "\\\\", "++")
# A colour and a dash for each line: printed in grey, or seen with other eyes, the lines still differ.
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (1, 1)), (0, (4, 1, 1, 1, 1, 1)))


def _first(values: Sequence[tuple[float, str]], typical: float) -> tuple[float, str]:
    return next(((scale, name) for scale, name in values if typical >= scale), values[-1])


def axis_unit(unit: str | None, largest: float) -> tuple[float, str]:
    """What the bars' axis counts in: a factor, and its name."""
    if unit == "bytes":
        return _first(_BINARY_UNITS, largest)
    if unit == "s":
        return seconds_unit(largest)
    if unit in ("B/s", "FLOP/s"):
        scale, prefix = _first(_DECIMAL_UNITS, largest)
        return scale, prefix + unit
    if unit == "percent":
        return 0.01, "%"
    return 1.0, {"relative": "relative", "ratio": "ratio"}.get(unit or "", "")


def _chosen(table: Table, columns: str | Sequence[str] | None) -> tuple[str, ...]:
    numeric = [
        column
        for i, column in enumerate(table.columns)
        if i
        and any(is_number(row[i]) for row in table.rows)
        and all(row[i] is None or is_number(row[i]) for row in table.rows)
    ]
    if not numeric:
        raise NothingToDrawError("this table has no column of numbers to draw")
    if columns is None:
        return tuple(c for c in numeric if table.units.get(c) == table.units.get(numeric[0]))
    chosen = (columns,) if isinstance(columns, str) else tuple(columns)
    for column in chosen:
        if column not in numeric:
            raise ValueError(f"columns names {column!r}, which holds no numbers; these do: {', '.join(numeric)}")
    units = {table.units.get(column) for column in chosen}
    if len(units) > 1:
        raise ValueError(f"columns of one unit share an axis; {', '.join(chosen)} have {len(units)} units")
    return chosen


def _bars(ax: Axes, table: Table, columns: Sequence[str], stacked: bool) -> bool:
    """Draws the columns; returns whether the axis is logarithmic, and dots stand for bars."""
    unit = table.units.get(columns[0])
    rows = [[row[column] or 0 for column in columns] for row in table]
    totals = [sum(row) if stacked else max(row) for row in rows]
    scale, name = axis_unit(unit, max(totals))
    shown = [value / scale for row in rows for value in row if value > 0]
    log = not stacked and bool(shown) and (span(shown) > 100 or unit == "relative")
    height = 0.72 if stacked else 0.8 / len(columns)
    for y, row in enumerate(rows):
        left = 0.0
        for i, value in enumerate(row):
            at = y if stacked else y - 0.4 + (i + 0.5) * height
            hatch = _HATCHES[i % len(_HATCHES)] if len(columns) > 1 else ""
            colour = case_colour(i + 1)
            if log and value > 0:  # a bar would need a zero to begin at
                ax.plot(value / scale, at, _MARKERS[i % len(_MARKERS)], color=colour, ms=8, zorder=2)
            elif not log:
                ax.barh(at, value / scale, height, left=left, color=colour, ec="white", lw=0.6, hatch=hatch, zorder=2)
            left += value / scale if stacked else 0
            if not stacked:
                words = value_text(table.rows[y][table.columns.index(columns[i])], unit)
                place = value / scale if value > 0 or not log else min(shown)
                ax.annotate(
                    words, (place, at), (8 if log else 4, 0), textcoords="offset points", va="center", fontsize=9
                )
        if stacked:
            ax.annotate(
                value_text(totals[y], unit), (left, y), (4, 0), textcoords="offset points", va="center", fontsize=9
            )
    if log:
        scale_axis(ax, "x", shown, log=True, count=6)
        low, high = ax.get_xlim()
        ax.set_xlim(low / (high / low) ** 0.05, high * (high / low) ** 0.16)
        if unit == "relative":
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
    else:
        ax.set_xlim(0, max(totals) / scale * 1.16 or 1)
        ax.xaxis.set_major_locator(MaxNLocator(6))
        ax.xaxis.set_major_formatter(FuncFormatter(plain_number))
    counted = ", ".join(filter(None, (name, "log scale" if log else "")))
    what = columns[0] if len(columns) == 1 else _QUANTITIES.get(unit or "", "")
    ax.set_xlabel(f"{what} ({counted})".strip() if counted else what)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x", color="#E6E6E6", lw=0.7)
    ax.set_axisbelow(True)
    return log


def _row_names(ax: Axes, table: Table) -> None:
    names = [
        "\n".join(fit(value_text(label, table.units.get(table.columns[0])), _LABEL_IN, 9.5)) for label in table.labels
    ]
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(axis="y", length=0)


def _legend(fig: Figure, columns: Sequence[str], y: float, log: bool) -> None:
    handles: list[Any] = []
    for i in range(len(columns)):
        if log:
            handles.append(Line2D([], [], ls="", marker=_MARKERS[i % len(_MARKERS)], color=case_colour(i + 1), ms=8))
        else:
            handles.append(Patch(facecolor=case_colour(i + 1), edgecolor="white", hatch=_HATCHES[i % len(_HATCHES)]))
    fig.legend(
        handles,
        columns,
        loc="upper left",
        bbox_to_anchor=(MARGIN_IN / WIDTH_IN, y),
        ncols=min(5, len(columns)),
        frameon=False,
        borderaxespad=0.1,
        handlelength=1.6,
        columnspacing=1.3,
    )


@styled
def table_figure(table: Table, columns: str | Sequence[str] | None, *, stacked: bool, ax: Axes | None) -> Figure:
    """Draw columns of a table as horizontal bars; see `Table.plot`."""
    chosen = _chosen(table, columns)
    if ax is not None:
        _bars(ax, table, chosen, stacked)
        _row_names(ax, table)
        return ax.get_figure(root=True)
    names = [fit(value_text(label, table.units.get(table.columns[0])), _LABEL_IN, 9.5) for label in table.labels]
    row_in = max(
        0.36,
        (1 if stacked else len(chosen)) * _BAR_IN + 0.14,
        0.17 * max(map(len, names)) + 0.12,
    )
    label_in = max(text_width_in(line, 9.5) for lines in names for line in lines) + 0.15
    title = _title(table.name, ", ".join(chosen))
    several = len(chosen) > 1

    def draw(fig: ResultFigure, bottom_in: float, height_in: float, legend_y: float) -> None:
        panel = axes_in(fig, MARGIN_IN + label_in, bottom_in, WIDTH_IN - 2 * MARGIN_IN - label_in, height_in)
        log = _bars(panel, table, chosen, stacked)
        _row_names(panel, table)
        if several:
            _legend(fig, chosen, legend_y, log)

    fig = _sheet(
        title,
        len(table.rows) * row_in,
        table.environment,
        draw,
        legend_rows=math.ceil(len(chosen) / 5) if several else 0,
    )
    described = [
        f"{value_text(row[table.columns[0]], None)}: "
        + ", ".join(f"{column} {value_text(row[column], table.units.get(column))}" for column in chosen)
        for row in table
    ]
    fig.alt = f"{'Stacked bars' if stacked else 'Bars'}. {'; '.join(described)}. {table.environment.caption}."
    return fig


def _title(name: str | None, words: str) -> str:
    return f"{name}: {words}" if name else words


def _sheet(
    title: str,
    panel_in: float,
    environment: Environment,
    draw: Callable[[ResultFigure, float, float, float], None],
    legend_rows: int,
) -> ResultFigure:
    """A figure with a title, a legend under it, a panel, and the machine at the bottom."""
    footer = footer_lines(environment.caption)
    titles = fit(title, WIDTH_IN - 2 * MARGIN_IN, 12, "bold", max_lines=2)
    bottom_in = MARGIN_IN + len(footer) * LINE_IN + 0.58
    top_in = 0.2 + 0.24 * len(titles) + 0.26 * legend_rows
    height = bottom_in + panel_in + top_in
    fig = new_figure(height)
    draw(fig, bottom_in, panel_in, (height - 0.14 - 0.24 * len(titles)) / height)
    for i, line in enumerate(titles):
        text_in(fig, MARGIN_IN, height - 0.12 - 0.24 * i, line, fontsize=12, weight="bold", va="top")
    draw_footer(fig, footer)
    return fig


def _lines(ax: Axes, result: Curves, log_y: bool) -> None:
    values = []
    for i, curve in enumerate(result):
        y = [math.nan if v is None or (log_y and v <= 0) else v for v in curve.y]
        values += [v for v in y if not math.isnan(v)]
        # Black, blue, orange...: the first line is usually the reference.
        ax.plot(
            curve.x,
            y,
            ls=_DASHES[i % len(_DASHES)],
            marker="o" if len(curve.x) < 3 else "",
            color=case_colour(i),
            lw=1.8,
            label=curve.label,
            zorder=2.5 - 0.01 * i,
        )
    if values:
        scale_axis(ax, "y", values, log=log_y, count=6)
    ax.set_xlabel(result.x_label)
    ax.set_ylabel(result.y_label + (", log scale" if log_y else ""))
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=all(float(x).is_integer() for c in result for x in c.x)))
    ax.grid(color="#E6E6E6", lw=0.7)
    ax.set_axisbelow(True)


@styled
def curves_figure(result: Curves, *, log_y: bool, ax: Axes | None) -> Figure:
    """Draw curves into one panel; see `Curves.plot`."""
    if ax is not None:
        _lines(ax, result, log_y)
        ax.legend(frameon=False, handlelength=3.2)
        return ax.get_figure(root=True)
    columns = 3 if max(map(len, result.labels)) < 26 else 2

    def draw(fig: ResultFigure, bottom_in: float, height_in: float, legend_y: float) -> None:
        panel = axes_in(fig, 0.95, bottom_in, WIDTH_IN - 0.95 - 0.2, height_in)
        _lines(panel, result, log_y)
        if len(result.curves) > 1:
            fig.legend(
                *panel.get_legend_handles_labels(),
                loc="upper left",
                bbox_to_anchor=(MARGIN_IN / WIDTH_IN, legend_y),
                ncols=columns,
                frameon=False,
                borderaxespad=0.1,
                handlelength=3.2,
            )

    rows = math.ceil(len(result.curves) / columns) if len(result.curves) > 1 else 0
    fig = _sheet(_title(result.name, f"{result.y_label} by {result.x_label}"), 3.1, result.environment, draw, rows)
    ends = "; ".join(f"{c.label} from {value_text(c.y[0], None)} to {value_text(c.final, None)}" for c in result)
    fig.alt = f"{result.y_label} by {result.x_label}: {ends}. {result.environment.caption}."
    return fig
