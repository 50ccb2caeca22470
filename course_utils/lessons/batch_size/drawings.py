"""Drawing of the lesson: how time to the target follows from speed and samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_utils.show.canvas import ResultFigure, grid, legend, scale_axis, styled, titled_figure
from course_utils.show.colours import BLUE, GREY_22, GREY_55, ORANGE

if TYPE_CHECKING:
    from course_utils.records.kinds.table import Table


@styled
def two_curves(target: Table) -> ResultFigure:
    """Draw samples a second, samples to the target, and the time that follows, all relative to the smallest batch."""
    rows = list(target)
    first = rows[0]
    sizes = [int(row["in steps of"].split()[-1]) for row in rows]

    def relative(column: str) -> list[float]:
        return [row[column] / first[column] for row in rows]

    speeds, needs, times = map(relative, ("samples/s", "samples to the target", "time to the target"))
    below, above = (
        [abs(row[end] - row["samples to the target"]) / first["samples to the target"] for row in rows]
        for end in ("low", "high")
    )
    # Speeds are paired ratios of a noisy comparison: no winner is named within a tenth.
    near = [str(size) for size, elapsed in zip(sizes, times, strict=True) if elapsed <= 1.1 * min(times)]
    winner = f"{', '.join(near[:-1])} and {near[-1]}, within a tenth" if len(near) > 1 else near[0]
    fig = titled_figure(f"First at the target: batch {winner}", 3.6, target.caption)
    panel = fig.subplots()
    panel.plot(sizes, speeds, "s--", color=BLUE, lw=2, ms=6, label="samples a second")
    panel.errorbar(
        sizes, needs, (below, above), fmt="o-", color=ORANGE, lw=2, ms=6, capsize=5, label="samples to the target"
    )
    panel.plot(sizes, times, "D-", color=GREY_22, lw=3, ms=7, label="time to the target")
    panel.axhline(1, color=GREY_55, lw=1, ls=":")
    scale_axis(panel, "x", sizes, log=True)
    ends = [need - gap for need, gap in zip(needs, below, strict=True)]
    ends += [need + gap for need, gap in zip(needs, above, strict=True)]
    scale_axis(panel, "y", [*speeds, *ends, *times], log=True, count=6)
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.set(xlabel="batch size", ylabel=f"times that of {first['in steps of']}")
    grid(panel, "both")
    legend(fig, *panel.get_legend_handles_labels(), 3)
    values = "; ".join(
        f"batch {size}: {speed:.3g} times the samples a second, {need:.3g} times the samples to the target, "
        f"{elapsed:.3g} times the time"
        for size, speed, need, elapsed in zip(sizes, speeds, needs, times, strict=True)
    )
    fig.alt = f"Each relative to {first['in steps of']}. {values}. {target.caption}."
    return fig
