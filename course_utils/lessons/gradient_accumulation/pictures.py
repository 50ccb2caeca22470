"""What the lesson shows: what the peak of a step consists of, by the number of parts, and a line for its time."""

from __future__ import annotations

from dataclasses import replace

from course_utils.results.comparison import Comparison
from course_utils.results.table import Table
from course_utils.show.canvas import ResultFigure, legend, styled, titled_figure
from course_utils.show.cards import Card
from course_utils.show.colours import AMBER, BLUE, GREY_11, GREY_66, ORANGE
from course_utils.show.formats import format_bytes, format_seconds, listed
from course_utils.show.tables import Column, Grid

_PARTS = {"weights and AdamW": BLUE, "gradients that wait": ORANGE, "activations, temporaries": AMBER}


@styled
def by_parts(memory: Table, time: Comparison) -> ResultFigure:
    """A line of time, with points where it was measured; under it, the bytes of the peak as stacked bars."""
    rows = {row["32 texts"]: row for row in memory if not row["32 texts"].endswith("steps")}
    cases = {case.label.split(" of ")[0]: case.measurement for case in time}
    points = [(at, cases[name]) for at, name in enumerate(rows) if name in cases]
    fig = titled_figure("", 4.1, memory.caption)
    clock, panel = fig.subplots(2, height_ratios=(1, 2), sharex=True)

    places, timed = zip(*points, strict=True)
    lines = {"time of the step": clock.plot(places, [case.median_s for case in timed], "o-", color=GREY_11)[0]}
    if all(case.enqueue_median_s for case in timed):
        enqueued = [case.enqueue_median_s for case in timed]
        lines["of it, Python"] = clock.plot(places, enqueued, "s--", color=GREY_66, ms=4)[0]
    above = {"textcoords": "offset points", "ha": "center"}
    for at, case in points:
        clock.annotate(format_seconds(case.median_s), (at, case.median_s), (0, 6), **above)
    clock.set(ylim=(0, 1.4 * max(case.median_s for case in timed)), yticks=[], ylabel="time")
    sizes = [(row["weights and AdamW"], row["gradients meanwhile"], row["peak"]) for row in rows.values()]
    stacks = zip(*((state, waits, peak - state - waits) for state, waits, peak in sizes), strict=True)
    below = [0.0] * len(rows)
    for (name, colour), stack in zip(_PARTS.items(), stacks, strict=True):
        lines[name] = panel.bar(list(rows), stack, 0.66, below, color=colour, ec="white", lw=0.6)
        below = [sum(both) for both in zip(below, stack, strict=True)]
    for at, (*_, peak) in enumerate(sizes):
        panel.annotate(format_bytes(peak), (at, peak), (0, 3), **above)
    panel.set(ylim=(0, 1.14 * max(below)), yticks=[], ylabel="peak memory")
    legend(fig, list(lines.values()), list(lines), 3)
    peaks = listed(f"{name} {format_bytes(row['peak'])}" for name, row in rows.items())
    took = listed(f"{list(rows)[at]} {format_seconds(case.median_s)}" for at, case in points)
    fig.alt = f"Peak memory: {peaks}. Time of a step: {took}. {memory.caption}."
    return fig


def shown(by_step: Table) -> Card:
    """Errors and losses beside each other; all columns are folded."""
    heads = [head for head in by_step.columns if "norm" not in head and "mild" not in head]
    table = [Column(head, tuple(by_step.text(row["steps"], head) for row in by_step)) for head in heads]
    steps, off, other = (column.cells[-1] for column in table[:3])
    says = f"After {steps} steps the mean of the means is {off} off, the gradient of another right batch {other}."
    return replace(by_step.card(), sentence=says, table=Grid("", tuple(table)), notes=())
