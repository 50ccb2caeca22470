"""The drawing of lesson 17: a step of two ranks, and where one waits for the other."""

from __future__ import annotations

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import NOTE, ORANGE, ORANGE_INK, PALE_BLUE, PALE_GREEN, Pen


def a_step_of_two_ranks() -> ResultFigure:
    """Draw a training step of DDP on two ranks, with what travels between them."""
    pen = Pen(8.0, 3.5)
    lanes = {0: 2.2, 1: 0.55}
    for rank, y in lanes.items():
        pen.area(0.1, y - 0.18, 7.8, 1.0)
        pen.write(0.22, y + 0.64, f"rank {rank}", weight="bold")
        for x, width, words, colour in (
            (0.95, 1.15, "its\nshare", "white"),
            (2.2, 1.0, "forward", PALE_BLUE),
            (3.3, 3.0, "backward", PALE_BLUE),
            (6.4, 1.35, "optimizer\nstep", PALE_GREEN),
        ):
            pen.box(x, y - 0.05, width, 0.6, words, colour)
    for x, words in ((4.1, "bucket 1"), (5.1, "bucket 2"), (6.1, "bucket 3")):
        pen.arrow((x, 2.02), (x, 1.37), ORANGE, width=2.2)
        pen.arrow((x, 1.37), (x, 2.02), ORANGE, width=2.2)
        pen.write(x - 0.08, 1.68, words, ORANGE_INK, 9.5, ha="right")
    pen.write(0.22, 1.68, "all-reduce: whoever is first waits", ORANGE_INK)
    pen.write(
        0.22,
        0.14,
        "All ranks must start the same collectives in the same order. Nobody checks.",
        NOTE,
    )
    pen.write(0.22, 3.28, "One step of DDP", size=11, weight="bold")
    return pen.described(
        "A training step of DDP on two ranks. Each takes its share of the batch and runs forward. During the backward "
        "pass three buckets of gradients are averaged over both ranks, one after the other, while the pass goes on; "
        "whoever comes first waits. Then each rank takes the same optimizer step."
    )
