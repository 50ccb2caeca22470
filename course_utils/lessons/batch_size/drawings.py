"""Drawings of lesson 06: what a batch costs, and how samples a second and samples to the target part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_utils.show.canvas import ResultFigure, grid, legend, scale_axis, styled, titled_figure
from course_utils.show.shapes import BLUE, BLUE_INK, INK, NOTE, ORANGE, ORANGE_INK

if TYPE_CHECKING:
    from course_utils.records.kinds.table import Table


@styled
def what_a_batch_costs() -> ResultFigure:
    """Sketch the memory and the time of a step by batch size, each a fixed part and a part for each sample."""
    fig = titled_figure("Memory grows by the sample. Speed stops growing.", 2.9, "A sketch, not measured.")
    memory, speed = fig.subplots(1, 2)
    sizes = [n / 4 for n in range(1, 321)]
    memory.fill_between([0, 80], 0, 25, color="#C8C8C8", lw=0)
    memory.fill_between([0, 80], 25, [25, 25 + 80], color="#BFD9EA", lw=0)
    memory.axhline(85, color=ORANGE, ls="--", lw=2)
    memory.plot([60], [85], "o", color=INK, ms=7)
    memory.text(2, 11, "weights, gradients,\noptimizer state", fontsize=9, va="center")
    memory.text(47, 44, "for each sample", fontsize=9, color=BLUE_INK)
    memory.text(2, 89, "the memory that you have", fontsize=9, color=ORANGE_INK)
    memory.text(62, 76, "largest\nbatch", fontsize=9, va="center")
    memory.set(xlim=(0, 80), ylim=(0, 108), ylabel="peak memory", xlabel="batch size")
    # A step takes 10 for its launches, or 1 for each sample, whatever is longer.
    speed.plot(sizes, [size / max(10, size) for size in sizes], color=BLUE, lw=2.5)
    speed.plot([10], [1], "o", color=INK, ms=7)
    speed.text(13, 0.9, "the knee: from here on,\na larger batch only\ntakes longer", fontsize=9, va="top")
    speed.text(1.3, 0.62, "not enough\nto do", fontsize=9, color=BLUE_INK, va="center", ha="left")
    speed.set(xscale="log", xlim=(1, 80), ylim=(0, 1.15), ylabel="samples a second", xlabel="batch size (log)")
    for panel in (memory, speed):
        panel.set(xticks=[], yticks=[])
        panel.minorticks_off()
    fig.alt = (
        "Two sketches by batch size. Left, the peak memory of a step: a fixed part for weights, gradients and "
        "optimizer state, and on top of it a part that grows in proportion to the samples. The largest batch is where "
        "the sum meets the memory that there is. Right, samples a second: they grow with the batch as long as a small "
        "one leaves the device idle, and stay the same from the knee on."
    )
    return fig


@styled
def two_curves(target: Table) -> ResultFigure:
    """Draw samples a second and samples to the target by batch size, both relative to the smallest batch.

    Args:
        target: the table of the experiment ``batch_size/target``.
    """
    if getattr(target, "needs", None) is not None:  # an experiment that nobody has recorded says so itself
        return target
    rows = list(target)
    first = rows[0]
    sizes = [int(row["in steps of"].split()[-1]) for row in rows]
    speeds = [row["samples/s"] / first["samples/s"] for row in rows]
    needs = [row["samples to the target"] / first["samples to the target"] for row in rows]
    below, above = (
        [abs(row[end] - row["samples to the target"]) / first["samples to the target"] for row in rows]
        for end in ("low", "high")
    )
    slowest = max(rows, key=lambda row: row["time to the target"])
    title = (
        f"A batch that needs more samples than it gains in speed trains longer: here {slowest['in steps of']} longest"
    )
    fig = titled_figure(title, 3.6, target.environment.caption)
    panel = fig.subplots()
    panel.plot(sizes, speeds, "s--", color=BLUE, lw=2, ms=6, label="samples a second")
    panel.errorbar(
        sizes, needs, (below, above), fmt="o-", color=ORANGE, lw=2, ms=6, capsize=5, label="samples to the target"
    )
    panel.axhline(1, color=NOTE, lw=1, ls=":")
    scale_axis(panel, "x", sizes, log=True)
    ends = [need - gap for need, gap in zip(needs, below, strict=True)]
    ends += [need + gap for need, gap in zip(needs, above, strict=True)]
    scale_axis(panel, "y", [*speeds, *ends], log=True, count=6)
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.set(xlabel="batch size", ylabel=f"times that of {first['in steps of']}")
    grid(panel, "both")
    legend(fig, *panel.get_legend_handles_labels(), 2)
    values = "; ".join(
        f"batch {size}: {speed:.3g} times the samples a second, {need:.3g} times the samples to the target"
        for size, speed, need in zip(sizes, speeds, needs, strict=True)
    )
    fig.alt = f"Both relative to {first['in steps of']}. {values}. {target.environment.caption}."
    return fig
