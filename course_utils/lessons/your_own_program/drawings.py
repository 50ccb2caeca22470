"""Drawing of the lesson: what you bring, which function reads it, how its numbers are known, and what you do then."""

from __future__ import annotations

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import BLUE_INK, EDGE, NOTE, ORANGE_INK, PALE_BLUE, PALE_GREEN, Pen

# What is brought, what reads it, and how what it says is known.
_WAYS = (
    ("a step\nthat you can call", "diagnose(step)", "tried: timed with and without"),
    ("a trace\nof torch.profiler", "read_trace(file)", "at most: all of what it costs"),
    ("a snapshot\nof CUDA's memory", "read_snapshot(file)", "replayed, where it can be"),
)


def from_symptom_to_gain() -> ResultFigure:
    """Draw the way from what somebody brings to a gain that is measured."""
    width, height = 8.0, 3.0
    pen = Pen(width, height)
    for y, (brought, reads, known) in zip((2.2, 1.25, 0.3), _WAYS, strict=True):
        pen.box(0.08, y, 1.7, 0.6, brought, bold=False)
        pen.arrow((1.8, y + 0.3), (2.1, y + 0.3), EDGE, width=1.4)
        pen.box(2.12, y + 0.12, 1.9, 0.36, reads, PALE_BLUE)
        pen.write(3.07, y - 0.02, known, BLUE_INK, 9, ha="center")
        pen.arrow((4.04, y + 0.3), (4.72, 1.55 + 0.2 * (y - 1.25)), EDGE, width=1.4)
    pen.box(4.75, 1.15, 1.3, 0.8, "a plan,\nthe most first", PALE_GREEN, bold=False)
    pen.box(6.55, 2.2, 1.37, 0.6, "mend\none entry", bold=False)
    pen.box(6.55, 0.3, 1.37, 0.6, "measure it,\nwith compare", bold=False)
    pen.arrow((6.07, 1.8), (6.6, 2.16), EDGE, width=1.4)
    pen.arrow((7.23, 2.16), (7.23, 0.94), EDGE, width=1.4)
    pen.arrow((6.6, 0.94), (6.07, 1.3), ORANGE_INK, width=1.4)
    pen.write(6.42, 1.24, "again", ORANGE_INK, 9)
    pen.write(5.4, 0.95, "or nothing stands out", NOTE, 9, ha="center")
    return pen.described(
        "Three things that you can bring: a step that you can call, which diagnose reads by timing it with and without "
        "a change; a trace of torch.profiler, which read_trace reads and which gives upper bounds; a snapshot of "
        "CUDA's memory, which read_snapshot reads and replays. Each leads to a plan with the largest saving first, or "
        "to: nothing stands out. Then mend one entry, measure with compare, and read again."
    )
