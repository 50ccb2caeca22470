"""The caching allocator drawn: its segments with their blocks at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from course_utils.show.canvas import WIDTH_IN, ResultFigure, legend, plain_number, styled, text_width_in, titled_figure
from course_utils.show.colours import AMBER, BLUE, GREY_44
from course_utils.show.formats import format_bytes

if TYPE_CHECKING:
    from course_utils.memory.allocator import AllocatorState, SegmentState

MIB = 2**20
# Okabe and Ito's palette; a hatch or none says the same in grey.
LOOKS = {
    "allocated": (BLUE, "", "white"),
    "awaiting free": (AMBER, "//", "black"),
    "free": ("white", "....", "black"),
}
WORDS = {
    "allocated": "allocated",
    "awaiting free": "freed, another stream may still use it",
    "free": "cached",
}
_ROW_IN, _MOST_ROWS = 0.34, 20


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
def state_figure(state: AllocatorState) -> Figure:
    """Draw the segments at one moment: a row for each, with its blocks, and a panel for each pool that is used.

    Example:
        >>> from course_utils.memory.allocator import Allocate, simulate_allocator
        >>> state_figure(simulate_allocator([Allocate("a", 3 * 2**20)]).state(1)).alt[:42]
        '1 segment with 20.0 MiB; 3.00 MiB of it ar'
    """
    pools = {pool: rows_of(state, pool) for pool in ("small", "large")}
    pools = {pool: rows for pool, rows in pools.items() if rows}
    heights = [min(len(rows), _MOST_ROWS) for rows in pools.values()]
    fig: ResultFigure = titled_figure("", 0.3 + _ROW_IN * sum(heights) + 0.62 * len(pools))
    handles = [Patch(facecolor=colour, hatch=hatch, edgecolor=GREY_44) for colour, hatch, _ in LOOKS.values()]
    legend(fig, handles, list(WORDS.values()), 3)
    if pools:
        panels = fig.subplots(len(pools), squeeze=False, height_ratios=heights)[:, 0]
        for panel, (pool, rows) in zip(panels, pools.items(), strict=True):
            _panel(panel, pool, rows[:_MOST_ROWS], len(rows) - _MOST_ROWS)
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


def _panel(ax: Axes, pool: str, rows: Sequence[Any], left_out: int) -> None:
    end = max(offset + segment.bytes for _, segments in rows for offset, segment in segments) / MIB
    width_in = WIDTH_IN - 0.5 - max(text_width_in(label, 9.5) for label, _ in rows)
    for number, (_, segments) in enumerate(rows):
        mapped = sum(segment.bytes for _, segment in segments)
        last = max(offset + segment.bytes for offset, segment in segments)
        if mapped < last:  # addresses without memory between the pages
            ax.plot([0, last / MIB], [number, number], color=GREY_44, lw=1, ls=":", zorder=0)
        for offset, segment in segments:
            for block in segment.blocks:
                colour, hatch, ink = LOOKS[block.state]
                x = (offset + block.address - segment.address) / MIB
                width = max(block.bytes / MIB, 0.004 * end)  # 512 bytes are to be seen, too
                box = Rectangle(
                    (x, number - 0.38), width, 0.76, facecolor=colour, hatch=hatch, edgecolor=GREY_44, lw=0.8
                )
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
