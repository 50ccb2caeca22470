"""Drawings of the lesson: what a start does to the signal and to AdamW's steps, and each seed's way to the target."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from course_utils.show.canvas import ResultFigure, grid, legend, name_rows, styled, titled_figure
from course_utils.show.shapes import BLUE, BLUE_INK, INK, NOTE, ORANGE, ORANGE_INK

if TYPE_CHECKING:
    from course_utils.records.kinds.table import Table


@styled
def two_mechanisms() -> ResultFigure:
    """Sketch how a signal passes twenty layers, and how many steps of AdamW move a weight by its own size."""
    fig = titled_figure(
        "A layer multiplies the signal. AdamW takes steps of one size.", 3.2, "Worked out, not measured."
    )
    signal, steps = fig.subplots(1, 2, width_ratios=(1.1, 1))
    layers = range(21)
    # Width 64 and ReLU: a layer multiplies the root mean square by std x sqrt(64 / 2).
    for std, colour, ink, style in (
        (0.5, ORANGE, ORANGE_INK, "-"),
        (0.1768, INK, INK, "-"),
        (0.05, BLUE, BLUE_INK, "--"),
    ):
        values = [(std * 32**0.5) ** layer for layer in layers]
        signal.plot(layers, values, style, color=colour, lw=2.5)
        signal.text(20.5, values[-1], f"std {std:.3g}", fontsize=9, color=ink, va="center")
    signal.set(yscale="log", xlim=(0, 26), xlabel="layer", ylabel="size of the signal", xticks=(0, 5, 10, 15, 20))
    stds = (0.001, 0.02, 0.1, 1.0)
    heights = [std / 0.003 for std in stds]
    steps.bar(range(4), heights, color=(BLUE, INK, NOTE, ORANGE), width=0.6)
    for at, height in enumerate(heights):
        steps.text(at, height * 1.25, f"{height:.2g}" if height < 10 else f"{height:.0f}", ha="center", fontsize=9)
    steps.set(yscale="log", ylim=(0.1, 1500), ylabel="std ÷ rate", xlabel="std of the weights; rate 0.003")
    steps.set_xticks(range(4), [str(std) for std in stds])
    steps.minorticks_off()
    signal.minorticks_off()
    fig.alt = (
        "Two panels. Left, the size of a signal after each of 20 layers of width 64 with ReLU, on a logarithmic axis: "
        "with a standard deviation of 0.177 it stays the same, with 0.5 it grows about a billion times, with 0.05 it "
        "shrinks to less than a billionth. Right, the standard deviation over AdamW's rate of 0.003, which is how many "
        "steps move a weight by its own size: 0.33 for 0.001, 6.7 for 0.02, 33 for 0.1, and 333 for 1."
    )
    return fig


@styled
def seeds_to_target(runs: Table) -> ResultFigure:
    """Draw each seed's steps to the target for each start: at one rate for all, and at a rate chosen for each.

    Args:
        runs: the table of the experiment ``initialization/seeds``.
    """
    rows = list(runs)
    most = runs.parameters["most"]
    looks = {
        "one rate": (ORANGE, "o", -0.18),
        "own rate": (BLUE, "D", 0),
        "own rate, warm-up": (INK, "s", 0.18),
    }
    starts = list(dict.fromkeys(label.split(", one rate")[0].split(", own rate")[0] for label in rows[0]))[1:]
    fig = titled_figure(
        "The embeddings' size decides most of it; the rate takes back a part", 3.4, runs.environment.caption
    )
    panel = fig.subplots()
    words = []
    for place, start in enumerate(starts):
        for which, (colour, marker, shift) in looks.items():
            label = f"{start}, {which}"
            if label not in rows[0]:
                continue
            needs = [row[label] for row in rows]
            reached = [need for need in needs if need is not None]
            missed = len(needs) - len(reached)
            panel.plot(reached, [place + shift] * len(reached), marker, color=colour, ms=6, alpha=0.7)
            if missed:
                panel.plot([most * 1.04], [place + shift], ">", color=colour, ms=8)
                panel.text(most * 1.07, place + shift, f"{missed} of {len(needs)} later", fontsize=9.5, va="center")
            middle = statistics.median(most + 1 if need is None else need for need in needs)
            words.append(f"{label}: {'more than ' + str(most) if middle > most else f'{middle:g}'}")
    for which, (colour, marker, _) in looks.items():
        panel.plot([], [], marker, color=colour, label=f"a seed, {which}")
    name_rows(panel, starts)
    panel.set(xlim=(0, most * 1.25), xlabel="steps to the target")
    grid(panel, "x")
    legend(fig, *panel.get_legend_handles_labels(), 3)
    fig.alt = f"Steps to the target, median of {len(rows)} seeds. {'; '.join(words)}. {runs.environment.caption}."
    return fig
