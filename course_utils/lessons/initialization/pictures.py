"""What the lesson shows: each start's loss, step by step, between what knows nothing and what counts."""

from __future__ import annotations

from course_utils.lessons.initialization.cases import COUNTS, KNOWS_NOTHING
from course_utils.results.curves import Curves
from course_utils.results.table import Table
from course_utils.show.canvas import ResultFigure, name_ends, styled, titled_figure
from course_utils.show.colours import BLUE, GREEN, GREY_11, GREY_66, ORANGE, PURPLE


@styled
def losses(runs: Curves, race: Table | None = None) -> ResultFigure:
    """Draw losses up to a little above that of what knows nothing; names say how many runs reached the target."""
    fig = titled_figure("", 4.0, runs.caption)
    panel, names, words = fig.subplots(), {}, []
    for curve, colour in zip(runs, (GREY_11, BLUE, GREEN, ORANGE, PURPLE, GREY_66, GREY_66), strict=True):
        words.append(f"{curve.label} from {curve.y[0]:.2f} to {curve.final:.2f}")
        if curve.label not in (KNOWS_NOTHING, COUNTS):
            panel.plot(curve.x, curve.y, color=colour, lw=2)
            reached = ": " + race[curve.label]["reached 2.8"].replace(" ", "\u00a0") if race else ""
            names[curve.label + reached] = curve.final, colour
            continue
        panel.axhline(curve.final, color=colour, ls="--", lw=1.2)
        at, look = (curve.x[-1], curve.final), {"textcoords": "offset points", "color": colour, "ha": "right"}
        panel.annotate(f"{curve.label}: {curve.final:.2f}", at, (-4, 4), fontsize=9.5, **look)
    heights = 0.97 * min(last for last, _ in names.values()), 1.12 * runs[KNOWS_NOTHING].final
    panel.set(xlim=(0, curve.x[-1]), ylim=heights, xlabel=runs.x_label, ylabel=f"{runs.y_label}; one seed")
    name_ends(panel, names, width=20)
    fig.alt = f"Loss by step, one seed: {'; '.join(words)}. {runs.caption}."
    return fig
