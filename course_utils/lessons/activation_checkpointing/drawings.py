"""Drawing of the lesson: what a recorded comparison costs in time and memory."""

from __future__ import annotations

from course_utils.records.kinds.comparison import Comparison
from course_utils.show.canvas import ResultFigure, grid, scale_axis, styled, titled_figure
from course_utils.show.colours import BLUE, GREY_22, ORANGE


@styled
def memory_against_time(trade: Comparison) -> ResultFigure:
    """Draw each way of the experiment ``activation_checkpointing/trade`` by its time and its peak."""
    points = {
        case.label: (1.0 if case.is_baseline else case.ratio, case.measurement.peak_allocated_bytes / 2**20)
        for case in trade
    }
    times, peaks = ([point[axis] for point in points.values()] for axis in (0, 1))
    fig = titled_figure("Left and low is good: less time, less memory", 3.8, trade.caption)
    panel = fig.subplots()
    for label, (elapsed, peak) in points.items():
        panel.plot(elapsed, peak, "o", color=BLUE if "segment" in label else ORANGE, ms=8)
        last = elapsed > sum((min(times), max(times))) / 2
        offset, side = ((-8, 4), "right") if last else ((8, 4), "left")
        panel.annotate(label, (elapsed, peak), offset, textcoords="offset points", ha=side, color=GREY_22)
    scale_axis(panel, "x", [*times, 1], log=False)
    scale_axis(panel, "y", [*peaks, 0], log=False)
    panel.set(xlabel="times as long as keeping everything", ylabel="extra peak, MiB")
    grid(panel, "both")
    values = "; ".join(
        f"{label}: {elapsed:.3g} times the time, {peak:.3g} MiB" for label, (elapsed, peak) in points.items()
    )
    fig.alt = f"Each way by time and peak. {values}. {trade.caption}."
    return fig
