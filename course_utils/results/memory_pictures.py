"""Memory over time as a figure: stacked areas, and where the peak is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from course_utils.show import canvas
from course_utils.show.colours import AMBER, BLUE, GREEN, GREY_11, GREY_99, PINK, SKY
from course_utils.show.formats import format_bytes, plain_number

if TYPE_CHECKING:
    from course_utils.results.memory_trace import MemoryTrace

# Okabe and Ito's palette, in the order of `MEMORY_KINDS`. What stays is blue and grey, what comes and goes is warm.
KIND_COLOURS = {
    "weights": BLUE,
    "optimizer state": SKY,
    "gradients": PINK,
    "other": GREY_99,
    "activations": GREEN,
    "temporaries": AMBER,
}
_UNITS = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
_MOST_MODULES = 7


@canvas.styled
def memory_figure(trace: MemoryTrace, by: str) -> Figure:
    """Draw memory over time; see `MemoryTrace.plot`."""
    if by not in ("kind", "module"):
        raise ValueError(f"by is 'kind' or 'module', got {by!r}")
    groups = trace.by_kind() if by == "kind" else _largest_modules(trace)
    colours = [KIND_COLOURS[name] if by == "kind" else canvas.case_colour(i + 1) for i, name in enumerate(groups)]
    names = [canvas.wrapped(name, 70, most=1) for name in groups]
    longest_in = max((canvas.text_width_in(name, 9.5) for name in names), default=0.0)
    columns = max(1, min(len(names), int((canvas.WIDTH_IN - 0.4) / (longest_in + 0.5))))
    title = f"{trace.name + ': ' if trace.name else ''}memory of {trace.label} on {trace.device}"
    fig = canvas.titled_figure(title, 4.0 + 0.24 * -(-len(names) // columns), trace.caption)
    room, panel = fig.subplots(2, height_ratios=(0.24, 3.1))  # room between the legend and the panel
    room.set_axis_off()
    canvas.legend(fig, [Patch(facecolor=colour, edgecolor="white") for colour in colours], names, columns)

    scale, unit = next(each for each in _UNITS if trace.peak_bytes >= each[0] or each[0] == 1)
    edges = np.arange(trace.moments + 1)
    if groups:
        layers = np.array([[*values, values[-1]] for values in groups.values()]) / scale
        panel.stackplot(edges, layers, colors=colours, step="post", lw=0, zorder=2)
    _mark_peak(panel, trace, scale)
    panel.set_xlim(0, trace.moments)
    panel.set_ylim(0, 1.13 * trace.peak_bytes / scale or 1)
    panel.set_ylabel(f"memory ({unit})")
    panel.set_xlabel(f"{'moments that were kept' if trace.condensed else 'allocations and releases'} (count)")
    panel.yaxis.set_major_locator(MaxNLocator(6))
    panel.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(FuncFormatter(plain_number))
    canvas.grid(panel, "y")

    at_peak = [f"{name} {format_bytes(size)}" for name, all_ in groups.items() if (size := all_[trace.peak_moment])]
    fig.alt = (
        f"Memory of {trace.label} over time, stacked by {by}: {format_bytes(trace.start_bytes)} before the call, "
        f"{format_bytes(trace.peak_bytes)} at the peak ({', '.join(at_peak) or 'nothing'}), "
        f"{format_bytes(trace.end_bytes)} after it. {trace.caption}."
    )
    return fig


def _largest_modules(trace: MemoryTrace) -> dict[str, tuple[int, ...]]:
    """Bytes at each moment for the modules that hold most at the peak, and for all others."""
    sums = trace.by_module()
    ranked = sorted(sums, key=lambda name: (-sums[name][trace.peak_moment], -max(sums[name]), name))
    shown = {name or "outside of modules": sums[name] for name in ranked[:_MOST_MODULES]}
    if rest := ranked[_MOST_MODULES:]:
        shown["all others"] = tuple(map(sum, zip(*(sums[name] for name in rest), strict=True)))
    return shown


def _mark_peak(ax: Axes, trace: MemoryTrace, scale: float) -> None:
    middle, height = trace.peak_moment + 0.5, trace.peak_bytes / scale
    ax.plot([0, trace.moments], [height, height], color=GREY_11, lw=0.8, ls=(0, (1, 2)), zorder=2.6)
    ax.plot(middle, height, "v", color=GREY_11, ms=7, zorder=3, clip_on=False)
    right = middle > 0.6 * trace.moments
    look = {"va": "bottom", "fontsize": 9.5, "weight": "bold", "zorder": 3}
    box = {"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8}
    place = {"textcoords": "offset points", "ha": "right" if right else "left"}
    words = f"peak {format_bytes(trace.peak_bytes)}"
    ax.annotate(words, (middle, height), (-9 if right else 9, 3), bbox=box, **look, **place)
