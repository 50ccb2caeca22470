"""Drawing of the lesson: each seed's way to the target."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from course_utils.show.canvas import ResultFigure, grid, legend, name_rows, styled, titled_figure
from course_utils.show.colours import BLUE, GREY_22, ORANGE

if TYPE_CHECKING:
    from course_utils.records.kinds.table import Table


@styled
def seeds_to_target(runs: Table) -> ResultFigure:
    """Draw each seed's steps to the target for each start: at one rate for all, and at a rate chosen for each."""
    rows = list(runs)
    most = runs.parameters["most"]
    looks = {
        "one rate": (ORANGE, "o", -0.18),
        "own rate": (BLUE, "D", 0),
        "own rate, warm-up": (GREY_22, "s", 0.18),
    }
    starts = list(dict.fromkeys(label.split(", one rate")[0].split(", own rate")[0] for label in rows[0]))[1:]
    fig = titled_figure("The embeddings' size decides most of it; the rate takes back a part", 3.4, runs.caption)
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
    fig.alt = f"Steps to the target, median of {len(rows)} seeds. {'; '.join(words)}. {runs.caption}."
    return fig
