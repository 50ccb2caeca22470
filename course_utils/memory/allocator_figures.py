"""The caching allocator drawn: its segments with their blocks at one moment, and its memory over the events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from course_utils.show.canvas import (
    LEGEND_X,
    MARGIN_IN,
    WIDTH_IN,
    ResultFigure,
    axes_in,
    new_figure,
    plain_number,
    styled,
    text_width_in,
)
from course_utils.show.formats import format_bytes

if TYPE_CHECKING:
    from course_utils.memory.allocator import AllocatorRun, AllocatorState, SegmentState

MIB = 2**20
# Okabe and Ito's palette; a hatch or none says the same in grey.
LOOKS = {
    "allocated": ("#0072B2", "", "white"),
    "awaiting free": ("#E69F00", "//", "black"),
    "free": ("#FFFFFF", "....", "black"),
}
WORDS = {
    "allocated": "allocated",
    "awaiting free": "freed, another stream may still use it",
    "free": "cached",
}
_EDGE, _RESERVED, _LIMIT = "#444444", "#D55E00", "#000000"
_ROW_IN, _LABEL_IN, _MOST_ROWS = 0.34, 2.1, 20


def rows_of(state: AllocatorState, pool: str) -> list[tuple[str, list[tuple[float, SegmentState]]]]:
    """The rows of a pool, each with a label, and its segments with the distance from where the row begins.

    Pages of one expandable segment share a row, at their places.
    """
    by_row: dict[tuple[int, int], list[tuple[float, SegmentState]]] = {}
    for segment in state.segments:
        if segment.pool == pool:
            key = (segment.reserved_address, segment.stream)
            by_row.setdefault(key, []).append((segment.address - segment.reserved_address, segment))
    rows = []
    for (_, stream), segments in by_row.items():
        size = format_bytes(sum(segment.bytes for _, segment in segments))
        expandable = segments[0][1].expandable
        if stream:
            label = f"{'expandable' if expandable else size}, stream {_stream(stream)}"
        else:
            label = f"expandable, {size}" if expandable else size
        rows.append((label, segments))
    return rows


def _stream(stream: int) -> str:
    """Recorded streams are addresses: their end tells them apart."""
    return str(stream) if stream < 1000 else f"…{stream & 0xFFFF:04x}"


@styled
def state_figure(state: AllocatorState, *, title: str = "", ax: Any = None) -> Figure:
    """Draw the segments at one moment: a row for each, with its blocks, and a panel for each pool that is used.

    Args:
        state: from :meth:`course_utils.memory.allocator.AllocatorRun.state`.
        title: one line above the drawing.
        ax: a matplotlib axes to draw into, if only one pool is in use; by default a new figure.

    Returns:
        The figure.

    Example:
        >>> from course_utils.memory.allocator import Allocate, simulate_allocator
        >>> state_figure(simulate_allocator([Allocate("a", 3 * 2**20)]).state(1)).alt[:42]
        '1 segment with 20.0 MiB; 3.00 MiB of it ar'
    """
    pools = {pool: rows_of(state, pool) for pool in ("small", "large")}
    pools = {pool: rows for pool, rows in pools.items() if rows}
    if ax is not None:
        if len(pools) > 1:
            raise ValueError("both pools are in use, and need two axes: leave ax out")
        for pool, rows in pools.items():
            _panel(ax, pool, rows[:_MOST_ROWS], len(rows) - _MOST_ROWS)
        return ax.figure
    heights = {pool: _ROW_IN * min(len(rows), _MOST_ROWS) for pool, rows in pools.items()}
    top = 0.3 + (0.3 if title else 0)
    height = top + sum(heights.values()) + 0.86 * max(len(pools), 1)
    fig: ResultFigure = new_figure(height)
    _legend(fig, height)
    if title:
        fig.text(LEGEND_X, 1 - 0.5 / height, title, fontsize=10.5, va="center", weight="bold")
    y = height - top
    for pool, rows in pools.items():
        y -= heights[pool] + 0.2
        panel = axes_in(fig, _LABEL_IN, y, WIDTH_IN - _LABEL_IN - 0.3, heights[pool])
        _panel(panel, pool, rows[:_MOST_ROWS], len(rows) - _MOST_ROWS)
        y -= 0.66
    fig.alt = _state_words(state)
    return fig


def _state_words(state: AllocatorState) -> str:
    count = len(state.segments)
    parts = ", ".join(
        f"{format_bytes(state.bytes_in(name))} of it are {words}"
        for name, words in WORDS.items()
        if state.bytes_in(name) or name != "awaiting free"
    )
    return (
        f"{count} segment{'' if count == 1 else 's'} with {format_bytes(state.reserved_bytes)}; {parts}. Each row is a "
        "segment, and each box in it a block at its place."
    )


def _legend(fig: ResultFigure, height: float) -> None:
    handles = [Patch(facecolor=colour, hatch=hatch, edgecolor=_EDGE) for colour, hatch, _ in LOOKS.values()]
    fig.legend(
        handles,
        WORDS.values(),
        loc="upper left",
        bbox_to_anchor=(LEGEND_X, 1 - 0.08 / height),
        ncols=3,
        frameon=False,
        borderaxespad=0,
        borderpad=0,
    )


def _panel(ax: Axes, pool: str, rows: Sequence[Any], left_out: int) -> None:
    end = max(offset + segment.bytes for _, segments in rows for offset, segment in segments) / MIB
    width_in = ax.get_position().width * ax.figure.get_size_inches()[0]
    for number, (_, segments) in enumerate(rows):
        mapped = sum(segment.bytes for _, segment in segments)
        last = max(offset + segment.bytes for offset, segment in segments)
        if mapped < last:  # addresses without memory between the pages
            ax.plot([0, last / MIB], [number, number], color=_EDGE, lw=1, ls=":", zorder=0)
        for offset, segment in segments:
            for block in segment.blocks:
                colour, hatch, ink = LOOKS[block.state]
                x = (offset + block.address - segment.address) / MIB
                width = max(block.bytes / MIB, 0.004 * end)  # 512 bytes are to be seen, too
                box = Rectangle((x, number - 0.38), width, 0.76, facecolor=colour, hatch=hatch, edgecolor=_EDGE, lw=0.8)
                box.set_clip_on(False)
                ax.add_patch(box)
                label = "" if block.id is None else str(block.id)
                if label and text_width_in(label, 9) + 0.05 < width / end * width_in:
                    under = None if block.state == "allocated" else {"facecolor": colour, "lw": 0, "pad": 1}
                    ax.text(x + width / 2, number, label, ha="center", va="center", fontsize=9, color=ink, bbox=under)
    ax.set_xlim(0, end)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [label for label, _ in rows])
    ax.tick_params(axis="y", length=0)
    for side in ("left", "top", "right"):
        ax.spines[side].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    ax.xaxis.set_major_formatter(plain_number)
    words = f", MiB ({left_out} more segments are not drawn)" if left_out > 0 else ": MiB from where the segment begins"
    ax.set_xlabel(f"{pool} pool{words}")


@styled
def memory_figure(run: AllocatorRun, *, ax: Any = None) -> Figure:
    """Draw reserved and allocated memory over the events of a run, by default into a new figure.

    Example:
        >>> from course_utils.memory.allocator import Allocate, simulate_allocator
        >>> memory_figure(simulate_allocator([Allocate("a", 3 * 2**20)])).alt[:38]
        'Reserved and allocated memory over 1 e'
    """
    own = ax is None
    if own:
        fig: ResultFigure = new_figure(3.1)
        ax = axes_in(fig, 0.85, 0.55, WIDTH_IN - 1.05, 2.15)
    reserved = [run.start.reserved_bytes, *run.reserved_bytes]
    allocated = [run.start.allocated_bytes, *run.allocated_bytes]
    limits = [limit for limit in (run.cap_bytes, run.device_bytes) if limit is not None]
    limit = min(limits, default=None)
    largest = max(*reserved, *allocated, run.peak_reserved_bytes, 1)
    if limit is not None and limit <= 2 * largest:
        largest = max(largest, limit)
    unit, name = (2**30, "GiB") if largest >= 4 * 2**30 else (MIB, "MiB")
    events = range(len(reserved))
    heights = [size / unit for size in allocated]
    ax.fill_between(events, heights, step="post", color="#0072B2", alpha=0.35, lw=0)
    ax.step(events, heights, where="post", color="#0072B2", lw=1.2, ls=(0, (5, 1.5)))
    ax.step(events, [size / unit for size in reserved], where="post", color=_RESERVED, lw=1.8)
    handles: list[Any] = [
        Line2D([], [], color=_RESERVED, lw=1.8),
        Patch(facecolor="#0072B2", alpha=0.35, edgecolor="#0072B2", ls="--"),
    ]
    labels = ["reserved: taken from the device", "allocated: in use by tensors"]
    if limit is not None and limit / unit <= largest / unit:
        ax.axhline(limit / unit, color=_LIMIT, lw=1, ls=":")
        handles.append(Line2D([], [], color=_LIMIT, lw=1, ls=":"))
        labels.append("the most it may take")
    if run.out_of_memory is not None:
        at = run.out_of_memory.event + 1
        ax.plot([at], [reserved[at] / unit], "X", color=_LIMIT, ms=9, clip_on=False, zorder=5)
        handles.append(Line2D([], [], color=_LIMIT, marker="X", ms=8, lw=0))
        labels.append("out of memory")
    ax.set_xlim(0, max(len(reserved) - 1, 1))
    ax.set_ylim(0, 1.06 * largest / unit)
    ax.set_xlabel("events")
    ax.set_ylabel(name)
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(plain_number)
    if not own:
        ax.legend(handles, labels, frameon=False)
        return ax.figure
    fig.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(LEGEND_X, 1 - MARGIN_IN / 3.1),
        ncols=len(labels) if len(labels) < 4 else 2,
        frameon=False,
        borderaxespad=0,
        columnspacing=1.2,
    )
    if len(labels) > 3:
        ax.set_position((ax.get_position().x0, 0.55 / 3.1, ax.get_position().width, 1.95 / 3.1))
    failed = ", until a request cannot be met" if run.out_of_memory is not None else ""
    fig.alt = (
        f"Reserved and allocated memory over {len(run)} event{'' if len(run) == 1 else 's'}{failed}. Reserved peaks at "
        f"{format_bytes(run.peak_reserved_bytes)}, allocated at {format_bytes(run.peak_allocated_bytes)}."
    )
    return fig
