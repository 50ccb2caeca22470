"""Drawing of the lesson: the weights of an RNN, scattered and in one buffer, and what cuDNN is handed."""

from __future__ import annotations

from matplotlib.patches import FancyBboxPatch

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import BLUE, BLUE_INK, EDGE, ORANGE, ORANGE_INK, PALE_BLUE, PALE_GREEN, Pen

# The four weights of one layer, and widths that hint at their sizes; in cuDNN's order.
_WEIGHTS = (("weight_ih", 1.15), ("weight_hh", 1.15), ("bias_ih", 0.72), ("bias_hh", 0.72))


def weights_in_memory() -> ResultFigure:
    """Draw what cuDNN is handed in each call: a buffer filled anew, or the buffer that the weights live in."""
    width, height = 8.0, 4.3
    pen = Pen(width, height)
    pen.area(0.1, 0.1, 6.1, height - 0.55)
    pen.write(0.2, height - 0.3, "GPU memory", size=10.5, weight="bold")
    pen.write(7.92, height - 0.3, "reads one buffer", size=10.5, weight="bold", ha="right")
    total = sum(wide for _, wide in _WEIGHTS)
    left = 0.3

    top = 3.0
    pen.write(left, top + 0.62, "Scattered: four pieces of memory", size=10, style="italic")
    starts = (left, 1.72, 3.55, 5.05)
    fresh = 1.95
    x = left + 0.6
    for (name, wide), start in zip(_WEIGHTS, starts, strict=True):
        pen.box(start, top, wide, 0.4, name, bold=False)
        pen.ax.add_patch(FancyBboxPatch((x, fresh), wide, 0.4, boxstyle="square,pad=0", fc=PALE_BLUE, ec=EDGE, lw=1))
        pen.write(x + wide / 2, fresh + 0.2, "copy", size=10, ha="center")
        pen.arrow((start + wide / 2, top - 0.03), (x + wide / 2, fresh + 0.43), ORANGE, "--", width=2)
        x += wide
    words = "at every call: allocate a buffer, zero it, copy all weights into it"
    pen.write(left + 0.6 + total / 2, fresh - 0.15, words, ORANGE_INK, ha="center")
    pen.box(6.75, fresh - 0.12, 1.05, 0.64, "cuDNN", PALE_GREEN)
    pen.arrow((left + 0.65 + total, fresh + 0.2), (6.73, fresh + 0.2), ORANGE, "--")

    flat = 0.62
    pen.write(left, flat + 0.72, "Flat: four views of one buffer", size=10, style="italic")
    x = left + 0.6
    for name, wide in _WEIGHTS:
        pen.ax.add_patch(FancyBboxPatch((x, flat), wide, 0.4, boxstyle="square,pad=0", fc=PALE_BLUE, ec=EDGE, lw=1))
        pen.write(x + wide / 2, flat + 0.2, name, size=10, ha="center")
        x += wide
    words = "at every call: compare the addresses, copy nothing"
    pen.write(left + 0.6 + total / 2, flat - 0.2, words, BLUE_INK, ha="center")
    pen.box(6.75, flat - 0.12, 1.05, 0.64, "cuDNN", PALE_GREEN)
    pen.arrow((left + 0.65 + total, flat + 0.2), (6.73, flat + 0.2), BLUE)
    return pen.described(
        "Two ways to hold the four weights of one layer in GPU memory. Scattered: four pieces of memory; at every call "
        "a fresh buffer is allocated, zeroed, and all weights are copied into it, and cuDNN reads that buffer. Flat: "
        "the four weights are views of one buffer, side by side; at every call their addresses are compared, nothing "
        "is copied, and cuDNN reads the buffer in place."
    )
