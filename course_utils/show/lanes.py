"""Who was busy when: a lane for each thread, stream or process, and a bar for each span, all on one axis of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from course_utils.show.canvas import WIDTH_IN, ResultFigure, grid, legend, styled, text_width_in, titled_figure, wrapped
from course_utils.show.colours import GREY_DD
from course_utils.show.formats import plain_number
from course_utils.show.shapes import INK

_ROW_IN = 0.24  # has room for a line of 9 points
_NAME_LETTERS = 18  # of a line of a lane's name
_LEAST = 0.0015  # of the axis: a shorter span is drawn as long as that, so that it is seen at all
_UNITS = ((1, 10.0, "s"), (1e3, 5e-3, "ms"), (1e6, 0.0, "µs"))  # times a second; from how many seconds on; its name


@dataclass(frozen=True)
class Span:
    """One bar of a lane.

    Attributes:
        start_s: where it begins, in seconds from a zero that all spans of a figure share.
        end_s: where it ends.
        what: its kind, which gives it its colour and is named in the legend.
        text: what is written inside, where it fits.
    """

    start_s: float
    end_s: float
    what: str
    text: str = ""


@styled
def lanes_figure(
    title: str,
    panels: Mapping[str, Mapping[str, Sequence[Span]]],
    colours: Mapping[str, str],
    alt: str,
    *notes: str,
) -> ResultFigure:
    """Draw lanes of spans. Spans that overlap in a lane lie in rows below each other, as calls in a trace do.

    Args:
        title: of the figure; "" for none.
        panels: the spans, by the panel's title and the lane's name. All panels share the axis of time. A single panel
            may have the title "".
        colours: of each kind of span, in the order of the legend.
        alt: what the figure shows, in words.
        *notes: small print below: how it was measured, where, when.

    Raises:
        ValueError: if there is no span, a span ends before it begins, or its kind has no colour.

    Example:
        >>> lanes = {"CPU": [Span(0, 2e-3, "call")], "GPU": [Span(1e-3, 4e-3, "kernel", "matmul")]}
        >>> lanes_figure("A launch", {"": lanes}, {"call": "orange", "kernel": "blue"}, "A call, then its kernel.")
        Figure: A call, then its kernel.
    """
    every = [span for lanes in panels.values() for spans in lanes.values() for span in spans]
    _check(every, colours)
    start_s, end_s = min(span.start_s for span in every), max(span.end_s for span in every)
    scale, unit = next((scale, unit) for scale, least_s, unit in _UNITS if end_s - start_s >= least_s)
    placed = {panel: {lane: _rows(spans) for lane, spans in lanes.items()} for panel, lanes in panels.items()}
    heights = [sum(_height(lane, rows) for lane, rows in lanes.items()) for lanes in placed.values()]
    kinds = [kind for kind in colours if any(span.what == kind for span in every)]
    columns = _columns(kinds)
    legend_in = 0.24 * -(-len(kinds) // columns)
    titles = sum(bool(panel) for panel in panels)
    fig = titled_figure(title, 0.55 + legend_in + _ROW_IN * sum(heights) + 0.3 * titles + 0.1 * len(panels), *notes)
    legend(fig, [Patch(fc=colours[kind], ec="none") for kind in kinds], kinds, columns)
    axes = fig.subplots(len(panels), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    names = [wrapped(lane, _NAME_LETTERS) for lanes in panels.values() for lane in lanes]
    width_in = WIDTH_IN - 0.5 - max(text_width_in(line, 9.5) for name in names for line in name.splitlines())
    per_in = (end_s - start_s) * scale / width_in
    for ax, (panel, lanes) in zip(axes, placed.items(), strict=True):
        _panel(ax, panel, lanes, colours, scale, per_in)
    axes[-1].set_xlim(start_s * scale, end_s * scale)
    axes[-1].xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes[-1].xaxis.set_major_formatter(FuncFormatter(plain_number))
    axes[-1].set_xlabel(unit)
    fig.alt = alt
    return fig


def _check(spans: Sequence[Span], colours: Mapping[str, str]) -> None:
    if not spans:
        raise ValueError("There is nothing to draw: no lane has a span.")
    for span in spans:
        if span.end_s < span.start_s:
            raise ValueError(f"{span} ends before it begins.")
        if span.what not in colours:
            raise ValueError(f"There is no colour for {span.what!r}: the colours are for {', '.join(colours)}.")


def _rows(spans: Sequence[Span]) -> list[tuple[int, Span]]:
    """Each span with its row: the first below all spans that are still open when it begins."""
    rows: list[tuple[int, Span]] = []
    still_open: list[tuple[int, Span]] = []
    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        still_open = [(row, other) for row, other in still_open if other.end_s > span.start_s]
        row = 1 + max((row for row, _ in still_open), default=-1)
        rows.append((row, span))
        still_open.append((row, span))
    return rows


def _row_count(rows: Sequence[tuple[int, Span]]) -> int:
    return 1 + max((row for row, _ in rows), default=0)


def _height(lane: str, rows: Sequence[tuple[int, Span]]) -> float:
    """Of a lane, in rows: its name needs room, too."""
    return max(_row_count(rows), 0.72 * (wrapped(lane, _NAME_LETTERS).count("\n") + 1)) + 0.5


def _columns(kinds: Sequence[str]) -> int:
    room = 0.6 + max(text_width_in(kind, 9.5) for kind in kinds)
    return max(1, min(len(kinds), int((WIDTH_IN - 0.2) / room)))


def _panel(
    ax: Axes,
    title: str,
    lanes: Mapping[str, Sequence[tuple[int, Span]]],
    colours: Mapping[str, str],
    scale: float,
    per_in: float,
) -> None:
    top, middles = 0.0, []
    for lane, rows in lanes.items():
        middle = top + _height(lane, rows) / 2
        for row, span in rows:
            _bar(ax, span, middle - _row_count(rows) / 2 + row, colours[span.what], scale, per_in)
        middles.append((middle, wrapped(lane, _NAME_LETTERS)))
        top += _height(lane, rows)
        ax.axhline(top, color=GREY_DD, lw=0.7, zorder=0.4)
    ax.set_ylim(top, 0)
    ax.set_yticks(*zip(*middles, strict=True))
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    grid(ax, "x")
    if title:
        ax.set_title(title, loc="left", weight="bold", fontsize=9.5)


def _bar(ax: Axes, span: Span, row: float, colour: str, scale: float, per_in: float) -> None:
    start = span.start_s * scale
    width = max((span.end_s - span.start_s) * scale, _LEAST * per_in * WIDTH_IN)
    edge = 0.5 if width > 0.04 * per_in else 0  # a thin bar would be all edge
    ax.add_patch(Rectangle((start, row + 0.04), width, 0.92, fc=colour, ec="white", lw=edge))
    if span.text and text_width_in(span.text, 9) + 0.08 < width / per_in:
        red, green, blue = to_rgb(colour)
        ink = INK if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"
        ax.text(start + width / 2, row + 0.5, span.text, ha="center", va="center", fontsize=9, color=ink)
