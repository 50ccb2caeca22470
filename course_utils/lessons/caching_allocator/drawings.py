"""Drawing of the lesson: what happens to a request for memory, and to memory that is freed."""

from __future__ import annotations

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import BLUE, BLUE_INK, EDGE, NOTE, ORANGE, ORANGE_INK, PALE_BLUE, PALE_GREEN, Pen

_PALE_ORANGE = "#F8E3D3"


def way_of_a_request() -> ResultFigure:
    """Draw the caching allocator's answer to a request, step by step, and what a free does."""
    width, height = 8.0, 4.05
    pen = Pen(width, height)
    for y, h, title in ((1.12, 2.83, "A tensor is made"), (0.1, 0.9, "A tensor is freed")):
        pen.area(0.1, y, width - 0.2, h)
        pen.write(0.24, y + h - 0.2, title, size=10.5, weight="bold")

    top, low, tall = 2.72, 1.3, 0.72
    pen.box(0.3, top, 1.5, tall, "round the size\nup to 512 B", bold=False)
    pen.box(2.4, top, 2.2, tall, "1. the smallest cached\nblock large enough", PALE_BLUE, bold=False)
    pen.box(5.8, top, 2.0, tall, "use it; cache the\nrest, if large enough", PALE_GREEN, bold=False)
    _along(pen, 1.82, 2.36, top + tall / 2, BLUE)
    _along(pen, 4.62, 5.76, top + tall / 2, BLUE, "found", BLUE_INK)

    pen.box(0.3, low, 1.75, tall, "2. cudaMalloc:\na new segment", _PALE_ORANGE, bold=False)
    last_way = "3. give back all wholly\nunused segments or pages,\nthen try 2 again"
    pen.box(2.85, low, 2.6, tall, last_way, _PALE_ORANGE, bold=False)
    pen.box(6.25, low, 1.55, tall, "out of memory")
    # From "none fits" down to the second row.
    pen.ax.plot([3.5, 3.5, 1.18], [top - 0.02, 2.3, 2.3], color=ORANGE, lw=2.5, solid_capstyle="butt")
    pen.arrow((1.18, 2.32), (1.18, low + tall + 0.02), ORANGE, width=2.5)
    pen.write(2.35, 2.43, "none fits", ORANGE_INK, ha="center")
    _along(pen, 2.07, 2.81, low + tall / 2, ORANGE, "fails", ORANGE_INK)
    _along(pen, 5.47, 6.21, low + tall / 2, ORANGE, "fails", ORANGE_INK)
    # Memory from the device is used like a cached block.
    pen.ax.plot([4.6, 4.6, 6.85], [low + tall + 0.02, 2.3, 2.3], color=BLUE, lw=2.5, solid_capstyle="butt")
    pen.arrow((6.85, 2.28), (6.85, top - 0.02), BLUE, width=2.5)
    pen.write(5.7, 2.43, "2 or 3 succeeds", BLUE_INK, ha="center")

    pen.box(0.3, 0.2, 2.75, 0.42, "join it with free neighbours", bold=False)
    pen.box(3.6, 0.2, 2.0, 0.42, "keep it in the cache", PALE_BLUE, bold=False)
    _along(pen, 3.07, 3.56, 0.41, BLUE)
    pen.write(6.72, 0.41, "no cudaFree, so\nreserved stays as it is", NOTE, ha="center")
    return pen.described(
        "Above, a tensor is made: the size is rounded up to 512 bytes; first, the smallest cached block that is large "
        "enough is looked for, and used if found, its rest cached. If none fits, second, cudaMalloc takes a new "
        "segment. Only if that fails, third, all segments and pages that are wholly unused are given back, and the "
        "second step is tried again. If that fails too: out of memory. Below, a tensor is freed: its block is joined "
        "with free neighbours and kept in the cache; there is no cudaFree, so reserved memory stays as it is."
    )


def _along(pen: Pen, start: float, end: float, y: float, colour: str, words: str = "", ink: str = EDGE) -> None:
    """An arrow to the right, with a word above."""
    pen.arrow((start, y), (end, y), colour, width=2.5)
    if words:
        pen.write((start + end) / 2, y + 0.14, words, ink, ha="center")
