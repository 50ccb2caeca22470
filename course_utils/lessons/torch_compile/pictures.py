"""The lesson's pictures: what stops and reads cost, and how far ahead a compiled training is after so many steps."""

from __future__ import annotations

import itertools
from typing import Any

from course_utils.show.cards import Axis, Bar, Card, Row, amount_axis
from course_utils.show.formats import format_seconds, plain_number


def parts(breaks: Any) -> Card:
    """What ten reads and ten stops add to the compiled model, end to end; below them the eager one."""
    ends = [0.0, *(breaks[name].median_s for name in ("read once", "fullgraph=True", "compiled, with breaks"))]
    names = "compiled, read once", "+ ten reads, not one", "+ ten stops", "eager, ten reads"
    spans = [*itertools.pairwise(ends), (0.0, breaks["eager"].median_s)]
    times = [(format_seconds(end - begin), format_seconds(end)) for begin, end in spans]
    rows = tuple(Row(n, "", t[0], bar=Bar(*span), second=t[1]) for n, t, span in zip(names, times, spans, strict=True))
    says = f"Ten stops cost {rows[2].value}; ten reads in place of one, {rows[1].value}."
    return Card(says, rows, amount_axis(ends, format_seconds), ("", "part"), second="time per call", **breaks.stamp())


def ahead(case: Any, break_even: Any) -> Card:
    """How far the compiled training step is ahead of the eager one; below zero it is behind."""
    row, later_s = break_even["training step"], case.ratio * case.comparison["eager"].median_s
    even, between, rows = row["pays at call"], row["by the interval"].replace("\xa0", ","), []
    for step in sorted({1, 1000, even, 4000}):
        lead_s = step * later_s / case.ratio - (row["first of all calls"] + (step - 1) * later_s)
        words, tone = (("even", "same"), ("ahead", "faster"), ("behind", "slower"))[(step > even) - (step < even)]
        rows.append(Row(f"step {plain_number(step)}", words, f"{lead_s:+.1f} s", tone, Bar(*sorted((lead_s, 0.0)))))
    ends, ticks = [value for each in rows for value in each.bar.values], ((-5, "-5 s"), (0, "0"), (5, "5 s"))
    says = f"The compiled training is even at step {plain_number(even)} ({between})."
    stamp = break_even.stamp("worked out from the first call and later ones; importing the compiler is not counted")
    return Card(says, tuple(rows), Axis(min(ends), max(ends), ticks, line=0), ("", "lead over eager"), **stamp)
