"""The drawing of the lesson: a step of two ranks, and where one waits for the other."""

from __future__ import annotations

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import NOTE, ORANGE, ORANGE_INK, PALE_BLUE, PALE_GREEN, Pen


def a_step_of_two_ranks() -> ResultFigure:
    """Draw a training step of DDP on two ranks, with what travels between them."""
    pen = Pen(8.0, 3.5)
    lanes = {0: 2.2, 1: 0.6}
    for rank, y in lanes.items():
        pen.area(0.1, y - 0.18, 7.8, 1.0)
        pen.write(0.22, y + 0.64, f"rank {rank}", weight="bold")
        for x, width, words, colour in (
            (0.95, 1.05, "its\nshare", "white"),
            (2.1, 0.9, "forward", PALE_BLUE),
            (3.1, 2.7, "backward", PALE_BLUE),
            (6.75, 1.05, "optimizer\nstep", PALE_GREEN),
        ):
            pen.box(x, y - 0.05, width, 0.6, words, colour)
        pen.write(6.275, y + 0.25, "waits", ORANGE_INK, ha="center")
    for x, words in ((4.0, "bucket 1"), (4.9, "bucket 2"), (5.8, "bucket 3")):
        pen.area(x, 1.55, 0.86, 0.34, 0.04, fc="white", ec=ORANGE, lw=1.5)
        pen.write(x + 0.43, 1.72, words, ORANGE_INK, 9.5, ha="center")
    pen.ax.plot([5.8, 5.8], [0.55, 2.75], ls=":", lw=1.2, color=NOTE, zorder=0)
    pen.write(0.22, 1.72, "all-reduce: whoever is first waits", ORANGE_INK)
    pen.write(6.72, 1.72, "exposed", ORANGE_INK, weight="bold")
    pen.write(
        0.22,
        0.18,
        "All ranks must start the same collectives in the same order. Nobody checks.",
        NOTE,
    )
    pen.write(0.22, 3.28, "One step of DDP", size=11, weight="bold")
    return pen.described(
        "A training step of DDP on two ranks. Each takes its share of the batch and runs forward. During the backward "
        "pass buckets 1 and 2 of the gradients are averaged over both ranks, one after the other, while the pass goes "
        "on. Bucket 3, the last, starts when the pass ends: it is exposed, and both ranks wait for it. Then each rank "
        "takes the same optimizer step."
    )
