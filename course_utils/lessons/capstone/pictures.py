"""The lesson's pictures: what a technique brings as the first and as the last, the ladder, and equal losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from course_utils.lessons.capstone.cases import FULL, LINES, NAIVE
from course_utils.results.comparison import Comparison
from course_utils.results.sweep import Sweep
from course_utils.results.table import Table
from course_utils.show.canvas import ResultFigure, label_right, legend, name_rows, speed_axis, styled, titled_figure
from course_utils.show.cards import Card
from course_utils.show.colours import BLUE, GREY_44, GREY_E4, ORANGE, PURPLE
from course_utils.show.formats import format_bytes, format_percent, format_seconds, listed
from course_utils.show.tables import Column, Grid

_MARKS = {"first": (BLUE, "o", -0.22), "share": (PURPLE, "D", 0.0), "last": (ORANGE, "s", 0.22)}
_NAMES = {"first": "as the first", "last": "as the last", "share": "fair share"}


@styled
def first_and_last(gains: Table, steps: Comparison) -> ResultFigure:
    """Each technique as the first and as the last one, its fair share, and how far identical code differs."""
    rows, noise = list(gains), steps.noise_floor
    alone = [row["first"] for row in rows if row["share"]]
    product = 1.0
    for each in alone:
        product *= each
    title = f"Alone, multiplied: {product:.3g} times as fast. Together: {steps[FULL].speedup:.3g}."
    key = "bars: 99% intervals · grey: identical code, timed twice · numbers: first and last"
    fig = titled_figure(title, 0.5 * len(rows) + 0.9, key, gains.caption)
    ax, handles, reach = fig.subplots(), {}, [1.0]
    ax.axvspan(1 / noise, noise, color=GREY_E4, lw=0, zorder=0)
    ax.axvline(1.0, color=GREY_44, lw=1, zorder=1)
    ax.axhline(len(alone) - 0.5, color=GREY_44, lw=0.6, ls=":")
    for y, row in enumerate(rows):
        for what, (colour, mark, off) in _MARKS.items():
            if row[what]:
                ends = [row[f"{what} {end}"] or row[what] for end in ("low", "high")]  # none after too few rounds
                ax.plot(ends, [y + off] * 2, color=colour, lw=2, alpha=0.6)
                handles[_NAMES[what]] = ax.plot([row[what]], [y + off], mark, color=colour, ms=6)[0]
                reach += [*ends, row[what]]
        label_right(ax, y, f"{row['first']:.2f}×\n{row['last']:.2f}×")
    speed_axis(ax, reach, "x", apart=0.2)
    name_rows(ax, [row["technique"] for row in rows])
    legend(fig, list(handles.values()), list(handles), 3)
    told = listed(f"{row['technique']} {row['first']:.2f} and {row['last']:.2f}" for row in rows)
    fig.alt = f"Times as fast, as the first and as the last technique: {told}. {gains.caption}."
    return fig


def _card(card: Card, says: str, heads: Sequence[str], rows: Sequence[Sequence[str]], **more: Any) -> Card:
    columns = [Column(head, cells, at > 0) for at, (head, *cells) in enumerate(zip(heads, *rows, strict=True))]
    table = Grid("", tuple(replace(column, cells=tuple(column.cells)) for column in columns))
    return replace(card, sentence=says, table=table, rows=(), axis=None, second="", heads=("", ""), **more)


def ladder(gains: Table, steps: Comparison, largest: Comparison, dollars_an_hour: float) -> Card:
    """The stack as a ladder: speed, memory and price at an equal batch, speed at the largest; all else is folded."""
    base_s = steps[NAIVE].median_s
    rows, stack = [], [row["technique"] for row in gains if row["share"]]
    for name, new in zip(largest.labels, (NAIVE, *stack), strict=True):
        case, big = steps[name].measurement, largest[name].measurement
        # As many times the naive one's as the rounds say.
        rate = case.items * (steps[name].speedup if rows else 1.0) / base_s
        share = format_percent(case.flops * rate / case.items / steps.ceiling.value)
        dollars = f"${dollars_an_hour * 1e9 / rate / 3600:,.3g}"
        written = str(LINES[new].count("\n") + 1) if rows else ""
        peak, best = format_bytes(case.peak_allocated_bytes), f"{big.items / big.median_s:,.0f}"
        rows.append(
            (
                f"+ {new}" if rows else new,
                written,
                f"{rate:,.0f}",
                share,
                peak,
                dollars,
                best,
                f"{big.items / case.items:.2g}",
            )
        )
    top = min(rows, key=lambda row: float(row[5].strip("$").replace(",", "")))
    says = f"A billion tokens for {rows[0][5]} naive, {top[5]} at {top[0]!r}, {rows[-1][5]} with all."
    heads = "rung", "lines", "tokens/s", "MFU", "peak", "1e9 tokens", "at the largest batch", "times the batch"
    return _card(steps.showing(largest.labels).card(), says, heads, rows)


def quality(losses: Table, steps: Comparison) -> Card:
    """Whether a stack trains as well, against a margin, and how long it takes to an equal loss."""
    rows, tokens = [], losses.parameters["tokens"]
    for row in losses:
        low, high = (f"{row[end]:+.3f}" if row[end] is not None else "?" for end in ("low", "high"))
        apart = (f"{low} to {high}", row["verdict"]) if rows else ("", "")
        share, goal = row["tokens to the goal"], "not reached"
        if share and row["stack"] in steps.labels:
            case = steps[row["stack"]].measurement
            step_s = steps[NAIVE].median_s / steps[row["stack"]].speedup
            goal = format_seconds(share * tokens * step_s / case.items)
        rows.append((row["stack"], f"{row['validation loss']:.3f}", *apart, goal))
    told = " ".join(f"{name[0].upper()}{name[1:]}: {verdict}." for name, _, _, verdict, _ in rows[1:])
    heads = "stack", "validation loss", "apart, 95% sure", "verdict", "time to the same loss"
    return _card(losses.card(), f"Equal means: within ±{losses[NAIVE]['margin'] or 0:.2f}. {told}", heads, rows)


def kinds(losses: Table) -> str:
    """Which techniques change no bit, and how far the others get at most."""
    same = listed(row["step"] for row in losses if row["changes"] == "same bits" and row["step"] != NAIVE)
    problem, rest = (
        format_percent(max(row["off by"] for row in losses if (row["changes"] == "another problem") is kind))
        for kind in (True, False)
    )
    return f"Same bits: {same}. Another problem is off by {problem}, all else by {rest} at most."


def how_few(few: Table) -> str:
    """What two lines bring, beside all."""
    _, two, *_, full = few
    told = f"{two['the fastest choice']}: {two['times as fast']:.3g} times as fast"
    return f"{told}. All {full['lines']} lines: {full['times as fast']:.3g}."


def attention(kinds: Sweep) -> str:
    """What fused attention brings by itself, by length and dtype."""
    told = (f"{point.comparison['SDPA'].speedup:.2f} times at {point.value}" for point in kinds.points)
    return f"Attention by SDPA is {listed(told)} as fast as by hand."
