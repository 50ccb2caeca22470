"""Drawing of the lesson: what a training step's memory is made of, and the places where gradients can be dropped."""

from __future__ import annotations

from course_utils.records.memory_pictures import KIND_COLOURS
from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import INK, NOTE, Pen

# Of each kind, from the bottom to the top: its height in inches at each of these places.
_X = (0.75, 3.1, 5.3, 5.32, 6.6, 6.62, 7.4)
_HEIGHTS = {
    "weights": (0.42,) * 7,
    "optimizer state": (0.6,) * 7,
    "gradients": (0, 0, 0.42, 0.42, 0.42, 0, 0),
    "activations": (0, 1.35, 0, 0, 0, 0, 0),
    "temporaries": (0.1, 0.16, 0.1, 0.38, 0.38, 0, 0),
}
_FLOOR_IN = 0.62


def anatomy_of_a_step() -> ResultFigure:
    """Draw a step's memory by kind, and three places for ``zero_grad``. Heights are not measured."""
    width, height = 8.0, 4.1
    pen = Pen(width, height)
    low = [_FLOOR_IN] * len(_X)
    for kind, heights in _HEIGHTS.items():
        high = [a + b for a, b in zip(low, heights, strict=True)]
        pen.ax.fill_between(_X, low, high, color=KIND_COLOURS[kind], lw=0)
        low = high
    inside = {"ha": "center", "va": "center", "fontsize": 10, "weight": "bold"}
    pen.ax.text(3.7, 0.83, "weights: always there", color="white", **inside)
    pen.ax.text(3.7, 1.34, "optimizer state: from the first step() on", color=INK, **inside)
    pen.ax.text(2.35, 2.0, "activations", color="white", **inside)
    pen.ax.text(5.96, 1.86, "gradients", color=INK, **inside)
    pen.ax.text(5.96, 2.25, "temporaries", color=INK, **inside)

    top = height - 0.28
    for start, end, name in ((0.75, 3.08, "forward"), (3.12, 5.29, "backward"), (5.33, 6.6, "step()")):
        pen.ax.fill_between([start, end], top - 0.13, top + 0.13, color="#E8E8E8", lw=0)
        pen.write((start + end) / 2, top, name, size=10, ha="center")
    pen.ax.annotate(
        "about here is the peak:\nall activations, hardly a gradient",
        xy=(3.1, 3.17),
        xytext=(4.85, 3.2),
        fontsize=9.5,
        color=INK,
        ha="center",
        va="center",
        arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1},
    )
    for x, letter in ((0.75, "A"), (3.1, "B"), (6.61, "C")):
        pen.ax.plot([x, x], [_FLOOR_IN - 0.08, top - 0.18], color=INK, lw=1, ls=(0, (2, 2)))
        pen.write(x, _FLOOR_IN - 0.2, letter, size=10.5, ha="center", weight="bold")
    pen.axis((0.6, _FLOOR_IN), (0.6, top), lw=1)
    pen.write(0.36, 2.1, "memory", NOTE, ha="center", rotation=90)
    pen.write(0.75, 0.15, "A, B, C: places for zero_grad()")
    pen.write(width - 0.15, 0.15, "time (a sketch, not measured)", NOTE, 9, ha="right")
    return pen.described(
        "A sketch of the memory of one training step, as stacked areas. Weights and optimizer state lie below and stay "
        "the same. Activations grow during the forward pass and shrink during the backward pass, while gradients grow "
        "from nothing. In step() activations are gone, gradients are all there, and temporaries are added. The peak is "
        "about where the forward pass ends and the backward pass begins. Three places for zero_grad are marked: A "
        "before the forward pass, B between forward and backward, C after step()."
    )
