"""What the lesson shows: each way's verdict, and tokens that count in a second."""

from __future__ import annotations

from dataclasses import replace

from course_utils.results.comparison import Comparison
from course_utils.results.table import Table
from course_utils.show.cards import Card


def per_second(steps: Comparison) -> Card:
    """The comparison's card, and beside each time the tokens that count in a second; padding does not."""
    card, best, masked = steps.card(), max(steps, key=lambda way: way.speedup), steps["one row, block mask"].speedup
    says = f"Times as fast as padding: one row with a block mask {masked:.3g}, {best.label} {best.speedup:.3g}."
    rates = [f"{round(case.items / case.median_s, -2):,.0f}" for case in steps.cases]
    rows = tuple(replace(row, second=rate) for row, rate in zip(card.rows, rates, strict=True))
    return replace(card, sentence=says, rows=rows, second="tokens a second")


def found(eight: Table) -> str:
    """How many of the eight leak in training, and how many a test in eval() would find."""
    seen = [sum(row[mode] > 1e-5 for row in eight) for mode in ("train()", "eval(), no_grad")]
    return f"{seen[0]} of 8 leak in training. A test in `eval()` finds {seen[1]} of them."
