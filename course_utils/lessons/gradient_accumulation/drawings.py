"""Drawing of the lesson: the memory of a step, at once and in four parts."""

from __future__ import annotations

from course_utils.records.memory_pictures import KIND_COLOURS
from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import INK, NOTE, Pen

# Inches: the floor of the picture, what is always there, all gradients, and the activations of the whole batch.
_FLOOR, _ALWAYS, _GRADIENTS, _ACTIVATIONS = 0.62, 0.6, 0.3, 1.76
_PARTS = 4


def _step(pen: Pen, left: float, width: float, parts: int) -> float:
    """One step in so many parts; gives the height of its peak."""
    last = width * 0.1  # step()
    each = (width - last) / parts
    base = _FLOOR + _ALWAYS
    right = left + width
    pen.ax.fill_between([left, right], _FLOOR, base, color=KIND_COLOURS["weights"], lw=0)
    top = 0.0
    for part in range(parts):
        start, middle, end = (left + (part + share) * each for share in (0, 0.4, 1))
        low = [base + (_GRADIENTS if part else 0)] * 2 + [base + _GRADIENTS]
        activations = [0, _ACTIVATIONS / parts, 0]
        high = [a + b for a, b in zip(low, activations, strict=True)]
        pen.ax.fill_between([start, middle, end], base, low, color=KIND_COLOURS["gradients"], lw=0)
        pen.ax.fill_between([start, middle, end], low, high, color=KIND_COLOURS["activations"], lw=0)
        top = max(top, *high)
    pen.ax.fill_between([right - last, right], base, base + _GRADIENTS, color=KIND_COLOURS["gradients"], lw=0)
    return top


def at_once_and_in_parts() -> ResultFigure:
    """Draw the memory of one training step on a batch, at once and in four parts. Heights are not measured."""
    width, height = 8.0, 3.75
    pen = Pen(width, height)
    for left, parts, title in ((0.7, 1, "the batch at once"), (4.5, _PARTS, "the same batch in four parts")):
        top = _step(pen, left, 3.2, parts)
        pen.write(left + 1.6, height - 0.25, title, size=11, ha="center", weight="bold")
        pen.ax.plot([left, left + 3.2], [top, top], color=INK, lw=1, ls=(0, (4, 3)))
        pen.write(left + 3.2, top + 0.14, "peak", size=9.5, ha="right")
    inside = {"ha": "center", "va": "center", "fontsize": 9.5, "weight": "bold"}
    for left in (0.7, 4.5):
        pen.ax.text(left + 1.6, _FLOOR + _ALWAYS / 2, "weights, optimizer state", color="white", **inside)
        pen.write(left + 3.04, _FLOOR - 0.17, "step()", NOTE, 9, ha="center")
    pen.ax.text(1.92, 1.78, "activations", color="white", **inside)
    pen.ax.annotate(
        "gradients wait here,\nbeside the next activations",
        xy=(5.5, _FLOOR + _ALWAYS + 0.15),
        xytext=(6.1, 2.62),
        fontsize=9.5,
        color=INK,
        ha="center",
        va="center",
        arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1},
    )
    pen.axis((0.55, _FLOOR), (0.55, height - 0.45), lw=1)
    pen.write(0.3, 2.0, "memory", NOTE, ha="center", rotation=90)
    pen.write(width - 0.15, 0.15, "time (a sketch, not measured)", NOTE, 9, ha="right")
    return pen.described(
        "Two sketches of memory over the time of one training step. At once: above weights and optimizer state, "
        "activations grow to a tall peak in the forward pass and shrink in the backward pass, while gradients grow "
        "from nothing. In four parts: four small peaks of activations, a quarter as tall. From the second part on they "
        "stand on the gradients of the parts before, which stay until step()."
    )
