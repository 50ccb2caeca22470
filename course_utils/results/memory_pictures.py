"""Memory over time as a figure, stacked areas and what ran when, and as a picture to zoom into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from course_utils.show import colours
from course_utils.show.canvas import (
    CASE_COLOURS,
    WIDTH_IN,
    ResultFigure,
    grid,
    legend,
    plain_number,
    styled,
    text_width_in,
    titled_figure,
    wrapped,
)
from course_utils.show.colours import GREY_11, GREY_22, GREY_E8
from course_utils.show.formats import format_bytes

if TYPE_CHECKING:
    from course_utils.results.memory_trace import MemoryTrace

# Okabe and Ito's palette, in the order of `MEMORY_KINDS`. What stays is blue and grey, what comes and goes is warm.
_HUES = {
    "weights": "blue",
    "optimizer state": "sky",
    "gradients": "pink",
    "other": "grey-99",
    "activations": "green",
    "temporaries": "amber",
}
KIND_COLOURS = {kind: colours.of(hue) for kind, hue in _HUES.items()}
_PANEL_WIDTH_IN = 6.9
_MOST_MODULES = 7


def _unit(largest: int) -> tuple[float, str]:
    """What the axis counts in: bytes of one step, and its name."""
    for name, size in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if largest >= size:
            return size, name
    return 1.0, "B"


def _groups(trace: MemoryTrace, by: str) -> dict[str, tuple[int, ...]]:
    if by == "kind":
        return trace.by_kind()
    sums = trace.by_module()
    ranked = sorted(sums, key=lambda name: (-sums[name][trace.peak_moment], -max(sums[name]), name))
    shown = {name or "outside of modules": sums[name] for name in ranked[:_MOST_MODULES]}
    if rest := ranked[_MOST_MODULES:]:
        shown["all others"] = tuple(map(sum, zip(*(sums[name] for name in rest), strict=True)))
    return shown


def _colours(groups: Sequence[str], by: str) -> list[str]:
    if by == "kind":
        return [KIND_COLOURS[group] for group in groups]
    return [CASE_COLOURS[(i + 1) % len(CASE_COLOURS)] for i in range(len(groups))]


def _areas(ax: Axes, trace: MemoryTrace, by: str) -> None:
    groups, edges = _groups(trace, by), np.arange(trace.moments + 1)
    highest = max(trace.peak_bytes, trace.peak_reserved_bytes or 0)
    scale, unit = _unit(highest)
    if groups:
        layers = np.array([[*values, values[-1]] for values in groups.values()]) / scale
        ax.stackplot(edges, layers, colors=_colours(list(groups), by), step="post", lw=0, zorder=2)
    if trace.reserved_bytes:
        reserved = np.asarray(trace.reserved_bytes) / scale
        ax.step(
            edges, np.append(reserved, reserved[-1]), where="post", color=GREY_22, lw=1.2, ls=(0, (4, 2)), zorder=2.5
        )
    _mark_peak(ax, trace, edges, scale)
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 1.13 * highest / scale or 1)
    ax.set_ylabel(f"memory ({unit})")
    ax.set_xlabel(f"{'moments that were kept' if trace.condensed else 'allocations and releases'} (count)")
    ax.yaxis.set_major_locator(MaxNLocator(6))
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(plain_number))
    grid(ax, "y")


def _mark_peak(ax: Axes, trace: MemoryTrace, edges: np.ndarray, scale: float) -> None:
    middle = (edges[trace.peak_moment] + edges[trace.peak_moment + 1]) / 2
    height = trace.peak_bytes / scale
    ax.plot([edges[0], edges[-1]], [height, height], color=GREY_11, lw=0.8, ls=(0, (1, 2)), zorder=2.6)
    ax.plot(middle, height, "v", color=GREY_11, ms=7, zorder=3, clip_on=False)
    right = (middle - edges[0]) > 0.6 * (edges[-1] - edges[0])
    ax.annotate(
        f"peak {format_bytes(trace.peak_bytes)}",
        (middle, height),
        (-9 if right else 9, 3),
        textcoords="offset points",
        ha="right" if right else "left",
        va="bottom",
        fontsize=9.5,
        weight="bold",
        zorder=3,
        bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8},
    )


def _phases(ax: Axes, trace: MemoryTrace) -> None:
    """A strip that says what the call did when; a name is written where it fits."""
    ax.set(xlim=(0, trace.moments), ylim=(0, 1))
    ax.set_axis_off()
    for phase in trace.phases:
        first, last = phase.first, phase.last + 1
        ax.fill_between([first, last], 0.12, 0.88, color=GREY_E8, ec="white", lw=0.8)
        if text_width_in(phase.name, 9) + 0.06 <= (last - first) / trace.moments * _PANEL_WIDTH_IN:
            ax.text((first + last) / 2, 0.47, phase.name, ha="center", va="center", fontsize=9, color=GREY_22)


@styled
def memory_figure(trace: MemoryTrace, by: str) -> Figure:
    """Draw memory over time; see `MemoryTrace.plot`."""
    if by not in ("kind", "module"):
        raise ValueError(f"by is 'kind' or 'module', got {by!r}")
    groups = list(_groups(trace, by))
    handles: list[Any] = [Patch(facecolor=colour, edgecolor="white") for colour in _colours(groups, by)]
    names = [wrapped(name, 70, most=1) for name in groups]
    if trace.reserved_bytes:
        handles.append(Line2D([], [], color=GREY_22, lw=1.2, ls=(0, (4, 2))))
        names.append("reserved by the allocator")
    longest_in = max((text_width_in(name, 9.5) for name in names), default=0.0)
    columns = max(1, min(len(names), int((WIDTH_IN - 0.4) / (longest_in + 0.5))))
    rows = -(-len(names) // columns)
    title = f"{trace.name + ': ' if trace.name else ''}memory of {trace.label} on {trace.device}"
    fig: ResultFigure = titled_figure(title, 4.0 + 0.24 * rows, trace.caption)
    strip, panel = fig.subplots(2, height_ratios=(0.24, 3.1))
    legend(fig, handles, names, columns)
    _areas(panel, trace, by)
    _phases(strip, trace)
    fig.alt = f"{description(trace, by)} {trace.caption}."
    return fig


def description(trace: MemoryTrace, by: str = "kind") -> str:
    """What the picture shows, in words."""
    parts = [
        f"{name} {format_bytes(values[trace.peak_moment])}"
        for name, values in _groups(trace, by).items()
        if values[trace.peak_moment]
    ]
    reserved = (
        f" The allocator reserved up to {format_bytes(trace.peak_reserved_bytes)}." if trace.reserved_bytes else ""
    )
    return (
        f"Memory of {trace.label} over time, stacked by {by}: {format_bytes(trace.start_bytes)} before the call, "
        f"{format_bytes(trace.peak_bytes)} at the peak ({', '.join(parts) or 'nothing'}), "
        f"{format_bytes(trace.end_bytes)} after it."
        f"{reserved}"
    )
