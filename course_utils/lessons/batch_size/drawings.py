"""Drawings of the lesson: what a batch costs, and how time to the target follows from speed and samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_utils.show.canvas import ResultFigure, grid, legend, scale_axis, styled, titled_figure
from course_utils.show.shapes import BLUE, BLUE_INK, INK, NOTE, ORANGE, ORANGE_INK

if TYPE_CHECKING:
    from course_utils.records.kinds.table import Table


@styled
def what_a_batch_costs() -> ResultFigure:
    """Sketch by batch size the memory and the speed of a step, and how many samples a training needs."""
    fig = titled_figure("A line, a knee, and a bend.", 2.9, "A sketch, not measured.")
    memory, speed, need = fig.subplots(1, 3)
    sizes = [n / 4 for n in range(4, 321)]
    memory.fill_between([0, 80], 0, 25, color="#C8C8C8", lw=0)
    memory.fill_between([0, 80], 25, [25, 25 + 80], color="#BFD9EA", lw=0)
    memory.axhline(85, color=ORANGE, ls="--", lw=2)
    memory.plot([60], [85], "o", color=INK, ms=7)
    memory.text(2, 12, "weights, gradients,\noptimizer state", fontsize=9, va="center")
    memory.text(78, 40, "for each sample", fontsize=9, color=BLUE_INK, ha="right")
    memory.text(2, 89, "the memory that you have", fontsize=9, color=ORANGE_INK)
    memory.text(78, 68, "largest\nbatch", fontsize=9, va="center", ha="right")
    memory.set(xlim=(0, 80), ylim=(0, 108), ylabel="peak memory", xlabel="batch size")
    # A step takes 10 for what does not depend on the batch, or 1 for each sample, whatever is longer.
    speed.plot(sizes, [size / max(10, size) for size in sizes], color=BLUE, lw=2.5)
    speed.plot([10], [1], "o", color=INK, ms=7)
    speed.text(13, 0.9, "the knee", fontsize=9, va="top")
    speed.text(1.2, 0.85, "not enough\nto do", fontsize=9, color=BLUE_INK, va="center")
    speed.set(xscale="log", xlim=(1, 80), ylim=(0, 1.15), ylabel="samples a second", xlabel="batch size (log)")
    # The fewest samples, times 1 + batch / critical batch.
    need.plot(sizes, [1 + size / 10 for size in sizes], color=ORANGE, lw=2.5)
    need.plot([10], [2], "o", color=INK, ms=7)
    need.text(11, 1.9, "the critical\nbatch size", fontsize=9, va="top")
    need.text(1.2, 1.9, "fewer steps\ninstead", fontsize=9, color=ORANGE_INK, va="bottom")
    need.text(21, 6.2, "as many\nsteps", fontsize=9, color=ORANGE_INK, va="bottom", ha="right")
    need.set(
        xscale="log",
        yscale="log",
        xlim=(1, 80),
        ylim=(0.9, 12),
        ylabel="samples to the target",
        xlabel="batch size (log)",
    )
    for panel in (memory, speed, need):
        panel.set(xticks=[], yticks=[])
        panel.minorticks_off()
    fig.alt = (
        "Three sketches by batch size. Left, the peak memory of a step: a fixed part for weights, gradients and "
        "optimizer state, and on top of it a part that grows in proportion to the samples. The largest batch is where "
        "the sum meets the memory that there is. Middle, samples a second: they grow with the batch as long as a small "
        "one leaves the device idle, and stay the same from the knee on. Right, samples to the target: the same for "
        "small batches, which need fewer steps the larger they are; twice as many at the critical batch size; beyond "
        "it they grow with the batch, as the steps stay."
    )
    return fig


@styled
def two_curves(target: Table) -> ResultFigure:
    """Draw samples a second, samples to the target, and the time that follows, all relative to the smallest batch.

    Args:
        target: the table of the experiment ``batch_size/target``.
    """
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
    fig = titled_figure(f"First at the target: batch {winner}", 3.6, target.environment.caption)
    panel = fig.subplots()
    panel.plot(sizes, speeds, "s--", color=BLUE, lw=2, ms=6, label="samples a second")
    panel.errorbar(
        sizes, needs, (below, above), fmt="o-", color=ORANGE, lw=2, ms=6, capsize=5, label="samples to the target"
    )
    panel.plot(sizes, times, "D-", color=INK, lw=3, ms=7, label="time to the target")
    panel.axhline(1, color=NOTE, lw=1, ls=":")
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
    fig.alt = f"Each relative to {first['in steps of']}. {values}. {target.environment.caption}."
    return fig
