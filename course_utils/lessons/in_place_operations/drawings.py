"""Drawing of the lesson: which tensors autograd keeps of a linear layer, an activation and the next linear layer."""

from __future__ import annotations

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import BLUE_INK, INK, NOTE, ORANGE_INK, PALE_BLUE, Pen

# An activation; whether it is in place; who keeps its input: nobody, the activation itself, or a copy; tensors kept.
_ROWS = (
    ("ReLU", False, "freed", 1),
    ("ReLU, in place", True, "gone", 1),
    ("LeakyReLU", False, "kept", 2),
    ("LeakyReLU, in place", True, "gone", 1),
    ("SiLU", False, "kept", 2),
    ("SiLU, in place", True, "copy", 2),
)
_HEIGHT_IN, _ROW_IN = 4.45, 0.56


def who_keeps_what() -> ResultFigure:
    """Draw for three activations what is kept for the backward pass, out of place and in place."""
    pen = Pen(8.0, _HEIGHT_IN)
    top = _HEIGHT_IN - 0.3
    for x, text in ((3.05, "what comes in"), (5.05, "what comes out"), (7.1, "kept for a pair")):
        pen.write(x, top, text, NOTE, ha="center")
    for place, (name, in_place, comes_in, count) in enumerate(_ROWS):
        y = top - 0.65 - place * _ROW_IN - 0.12 * (place // 2)
        pen.write(0.2, y + 0.19, name, size=10, weight="bold")
        if in_place:
            pen.box(4.2, y, 1.7, 0.38, "overwritten, kept", PALE_BLUE, bold=False)
            if comes_in == "copy":
                pen.box(2.2, y, 1.7, 0.38, "a copy", PALE_BLUE, bold=False)
        else:
            kept = comes_in == "kept"
            pen.box(2.2, y, 1.7, 0.38, "kept" if kept else "freed at once", PALE_BLUE if kept else "white", bold=False)
            pen.box(4.2, y, 1.7, 0.38, "kept", PALE_BLUE, bold=False)
        words = "1 tensor" if count == 1 else f"{count} tensors"
        pen.write(7.1, y + 0.19, words, BLUE_INK if count == 1 else ORANGE_INK, 10, ha="center", weight="bold")
    pen.write(0.2, 0.16, "Blue: kept for the backward pass. The next linear layer keeps what comes out, anyway.", INK)
    return pen.described(
        "Six rows: for ReLU, LeakyReLU and SiLU, each out of place and in place, which tensors are kept between two "
        "linear layers. ReLU frees what comes in and keeps what comes out: one tensor, in place as well. LeakyReLU "
        "keeps both, and in place only the overwritten one: two tensors become one. SiLU keeps both, and in place it "
        "keeps a copy of what came in beside the overwritten one: two tensors either way."
    )
