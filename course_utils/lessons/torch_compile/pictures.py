"""The lesson's picture: how far ahead a compiled training is after so many steps."""

from __future__ import annotations

from typing import Any

from course_utils.show.cards import Axis, Bar, Card, Row
from course_utils.show.formats import plain_number


def ahead(case: Any, break_even: Any) -> Card:
    """How far the compiled training step is ahead of the eager one; below zero it is behind."""
    row, later_s = break_even["training step"], case.ratio * case.comparison["eager"].median_s
    ways = {"empty cache": ("first of all calls", "pays at call")}
    ways |= {"filled cache": ("first call, filled cache", "then pays at call")}
    rows, pays = [], [row[pays] for _, pays in ways.values()]
    for (cache, (first, _)), even in zip(ways.items(), pays, strict=True):
        for step in sorted({1, 1000, 4000, even}):
            lead_s = step * later_s / case.ratio - (row[first] + (step - 1) * later_s)
            words, tone = (("even", "same"), ("ahead", "faster"), ("behind", "slower"))[(step > even) - (step < even)]
            bar = Bar(min(lead_s, 0.0), max(lead_s, 0.0))
            rows.append(Row(f"{cache}, step {plain_number(step)}", words, f"{lead_s:+.1f} s", tone, bar))
    ends, ticks = [value for each in rows for value in each.bar.values], ((-5, "-5 s"), (0, "0"), (5, "5 s"))
    says = f"The compiled training is even at step {plain_number(pays[0])}, with a filled cache at {pays[1]}."
    stamp = break_even.stamp("worked out from the first call and later ones; importing the compiler is not counted")
    return Card(says, tuple(rows), Axis(min(ends), max(ends), ticks, line=0), ("", "lead over eager"), **stamp)
