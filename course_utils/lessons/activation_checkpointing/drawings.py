"""What the lesson shows: what each way costs in time and memory."""

from __future__ import annotations

from dataclasses import replace

from course_utils.results.comparison import Comparison
from course_utils.results.measurement import bytes_text
from course_utils.show.canvas import ResultFigure, grid, scale_axis, styled, titled_figure
from course_utils.show.cards import Card
from course_utils.show.colours import BLUE, GREY_22, ORANGE


def against_single_blocks(trade: Comparison) -> str:
    single, four = trade["each block"], trade["segments of 4"]
    if four.measurement.peak_allocated_bytes < single.measurement.peak_allocated_bytes:
        return "less memory, more time"
    return "more of both" if four.ratio > single.ratio else "more memory, less time"


def _says(trade: Comparison) -> str:
    single, four = (trade[way].measurement for way in ("each block", "segments of 4"))
    memory, time = four.peak_allocated_bytes / single.peak_allocated_bytes, four.median_s / single.median_s
    return f"Segments of 4 take {memory:.2f} times the memory of single blocks, and {time:.2f} times the time."


def with_memory(trade: Comparison) -> Card:
    card = replace(trade, says=_says(trade)).card()
    memory = [bytes_text(case.measurement.peak_allocated_bytes) for case in trade]
    rows = tuple(replace(row, second=text) for row, text in zip(card.rows, memory, strict=True))
    return replace(card, rows=rows, second="extra peak")


@styled
def memory_against_time(trade: Comparison) -> ResultFigure:
    """Draw each way by its time and its peak."""
    points = {
        case.label: (1.0 if case.is_baseline else case.ratio, case.measurement.peak_allocated_bytes / 2**30)
        for case in trade
    }
    times, peaks = zip(*points.values(), strict=True)
    fig = titled_figure(_says(trade), 3.6, trade.caption)
    panel = fig.subplots()
    for label, at in points.items():
        panel.plot(*at, "o", color=BLUE if "segment" in label else ORANGE, ms=8)
        below = label in ("first 6 blocks", "first 10 blocks")
        offset, side = ((-8, -14), "right") if below else ((-8, 5), "right") if "segment" in label else ((8, 5), "left")
        panel.annotate(label, at, offset, textcoords="offset points", ha=side, color=GREY_22)
    scale_axis(panel, "x", [*times, 1])
    scale_axis(panel, "y", [*peaks, 0])
    panel.set(xlabel="times as long as keeping everything", ylabel="extra peak, GiB")
    grid(panel, "both")
    values = "; ".join(f"{label}: {at[0]:.3g} times the time, {at[1]:.3g} GiB" for label, at in points.items())
    fig.alt = f"Each way by time and peak. {values}. {trade.caption}."
    return fig
