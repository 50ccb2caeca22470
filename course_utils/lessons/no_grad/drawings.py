"""Drawing of the lesson: the memory of a forward pass, with a graph and without."""

from __future__ import annotations

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import BLUE, BLUE_INK, EDGE, NOTE, ORANGE, ORANGE_INK, Pen

_BLOCKS = 6
_FLOOR_IN, _UNIT_IN = 0.62, 0.135  # one activation is so high


def with_and_without_a_graph() -> ResultFigure:
    """Draw the memory of a forward pass, block by block, with gradients on and under ``no_grad``. Not measured."""
    width, height = 8.0, 3.6
    pen = Pen(width, height)
    for left, colour, grows in ((0.75, ORANGE, True), (4.75, BLUE, False)):
        xs, ys, held = [], [], 0.0
        for block in range(_BLOCKS):
            start = left + 0.48 * block
            for part in range(3):  # Linear, BatchNorm and GELU each make one activation
                held = held + 1 if grows else min(held + 1, 2.0) if part == 0 and block == 0 else 2.0 + (part == 1)
                xs += [start + 0.16 * part, start + 0.16 * (part + 1)]
                ys += [_FLOOR_IN + _UNIT_IN * held] * 2
        pen.ax.fill_between(xs, _FLOOR_IN, ys, color=colour, alpha=0.35, lw=0)
        pen.ax.plot(xs, ys, color=colour, lw=2)
        for block in range(_BLOCKS + 1):
            pen.ax.plot([left + 0.48 * block] * 2, [_FLOOR_IN - 0.06, _FLOOR_IN], color=EDGE, lw=1)
        pen.axis((left - 0.12, _FLOOR_IN), (left + 3.1, _FLOOR_IN), lw=1)
        pen.axis((left - 0.12, _FLOOR_IN), (left - 0.12, height - 0.32), lw=1)
        pen.write(left + 1.44, _FLOOR_IN - 0.22, "block after block", NOTE, 9, ha="center")
    pen.write(0.8, height - 0.2, "gradients on", ORANGE_INK, 11, weight="bold")
    pen.write(0.8, 2.62, "each operation keeps\nwhat its backward\npass needs", size=9.5)
    pen.write(4.8, height - 0.2, "no_grad, inference_mode", BLUE_INK, 11, weight="bold")
    pen.write(4.85, 1.75, "what the next operation\nhas used, goes", size=9.5)
    pen.write(0.32, 1.9, "memory", NOTE, ha="center", rotation=90)
    pen.write(width - 0.15, 0.14, "a sketch, not measured", NOTE, 9, ha="right")
    return pen.described(
        "Two sketches of the memory of a forward pass, block after block. With gradients on it climbs like a staircase "
        "to the last block, since each operation keeps what its backward pass needs. Under no_grad or inference_mode "
        "it stays at two or three activations, however many blocks there are, since what the next operation has used "
        "is given back."
    )
