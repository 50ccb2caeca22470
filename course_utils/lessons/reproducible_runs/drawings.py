"""Drawing of the lesson: what an image fixes, what the host decides, and what your program has to fix itself."""

from __future__ import annotations

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import NOTE, PALE_BLUE, PALE_GREEN, Pen

_COLUMNS = (
    ("in the image", PALE_GREEN, ("Python", "PyTorch and packages", "CUDA libraries", "your code")),
    ("from the host", PALE_BLUE, ("driver and kernel", "the GPU", "the CPU", "cores, and so threads")),
    (
        "in your program",
        "white",
        ("seeds", "deterministic algorithms", "order of files and sets", "what a checkpoint holds"),
    ),
)


def who_fixes_what() -> ResultFigure:
    """Draw three columns: the image, the host and the program."""
    pen = Pen(8.0, 3.0)
    for place, (head, colour, items) in enumerate(_COLUMNS):
        x = 0.15 + 2.6 * place
        pen.area(x, 0.45, 2.45, 2.45)
        pen.write(x + 1.22, 2.65, head, size=11, ha="center", weight="bold")
        for row, words in enumerate(items):
            pen.box(x + 0.12, 2.02 - 0.48 * row, 2.2, 0.4, words, colour, bold=False)
    pen.write(0.15, 0.2, "An image carries your program, and does not make it deterministic.", NOTE)
    return pen.described(
        "Three columns. "
        + " ".join(f"{head.capitalize()}: {', '.join(items)}." for head, _, items in _COLUMNS)
        + " An image carries your program, and does not make it deterministic."
    )
