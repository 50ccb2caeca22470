"""Drawings of the lesson: what is kept during a step, and what a recorded comparison costs in time and memory."""

from __future__ import annotations

from course_utils.records.kinds.comparison import Comparison
from course_utils.show.canvas import ResultFigure, grid, scale_axis, styled, titled_figure
from course_utils.show.shapes import BLUE, INK, NOTE, ORANGE, Pen

_BLOCKS = 6


def _saw(segment: int) -> list[tuple[float, float]]:
    """What is kept over time, as corners: inputs in the forward pass, then a segment up and down again."""
    a_block, an_input, forward, backward = 1.0, 0.12, 1.0, 2.0
    x, kept, corners = 0.0, 0.0, [(0.0, 0.0)]
    for _ in range(_BLOCKS // segment):
        kept += an_input
        x += forward * segment
        corners += [(x, kept)]
    for _ in range(_BLOCKS // segment):
        corners += [(x := x + forward * segment, kept + a_block * segment)]
        kept -= an_input
        corners += [(x := x + backward * segment, kept)]
    return corners


def what_is_kept() -> ResultFigure:
    """Draw the activations kept during a step of six blocks: all, of one block at a time, and of three at a time."""
    width, height = 8.0, 2.9
    pen = Pen(width, height)
    everything = [(0, 0), (6, 6), (18, 0)]
    ways = (("keep everything", everything), ("each block recomputed", _saw(1)), ("segments of 3 blocks", _saw(3)))
    for at, (title, corners) in enumerate(ways):
        left, floor = 0.62 + at * 2.5, 0.78
        xs = [left + x * 0.088 for x, _ in corners]
        ys = [floor + y * 0.24 for _, y in corners]
        pen.ax.fill_between(xs, floor, ys, color=ORANGE, alpha=0.55, lw=0)
        pen.ax.plot(xs, ys, color=INK, lw=1)
        pen.ax.plot([left, left + 2.15], [floor, floor], color=INK, lw=1)
        pen.ax.plot([left + 6 * 0.088] * 2, [floor - 0.06, floor + 1.5], color=NOTE, lw=1, ls=(0, (2, 2)))
        pen.write(left + 0.26, floor - 0.17, "forward", NOTE, 9, ha="center")
        pen.write(left + 1.25, floor - 0.17, "backward", NOTE, 9, ha="center")
        pen.write(left + 1.0, height - 0.2, title, size=10.5, ha="center", weight="bold")
    pen.write(0.32, 1.5, "kept activations", NOTE, 9, ha="center", rotation=90)
    pen.write(
        0.62,
        0.2,
        "A sketch: inputs stay, the inside comes back, the step takes longer.",
        size=9.5,
    )
    return pen.described(
        "Three sketches of the activations that are kept during a training step of six blocks. Kept all: they grow "
        "over the forward pass to six blocks and shrink over the backward pass. Each block recomputed: only inputs are "
        "kept, a low slope; in the backward pass each block comes back in turn and goes, six teeth of one block each, "
        "and the pass is longer. Segments of three blocks: two teeth, each as high as three blocks, and the pass is "
        "just as long."
    )


@styled
def memory_against_time(trade: Comparison) -> ResultFigure:
    """Draw each way of the experiment ``activation_checkpointing/trade`` by its time and its peak.

    Args:
        trade: the comparison; its first case keeps everything.
    """
    points = {
        case.label: (1.0 if case.is_baseline else case.ratio, case.measurement.peak_allocated_bytes / 2**20)
        for case in trade
    }
    times, peaks = ([point[axis] for point in points.values()] for axis in (0, 1))
    fig = titled_figure("Left and low is good: less time, less memory", 3.8, trade.environment.caption)
    panel = fig.subplots()
    for label, (elapsed, peak) in points.items():
        panel.plot(elapsed, peak, "o", color=BLUE if "segment" in label else ORANGE, ms=8)
        last = elapsed > sum((min(times), max(times))) / 2
        offset, side = ((-8, 4), "right") if last else ((8, 4), "left")
        panel.annotate(label, (elapsed, peak), offset, textcoords="offset points", ha=side, color=INK)
    scale_axis(panel, "x", [*times, 1], log=False)
    scale_axis(panel, "y", [*peaks, 0], log=False)
    panel.set(xlabel="times as long as keeping everything", ylabel="extra peak, MiB")
    grid(panel, "both")
    values = "; ".join(
        f"{label}: {elapsed:.3g} times the time, {peak:.3g} MiB" for label, (elapsed, peak) in points.items()
    )
    fig.alt = f"Each way by time and peak. {values}. {trade.environment.caption}."
    return fig
