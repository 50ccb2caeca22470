"""Drawing of the lesson: where the bytes of a new tensor are made, and which way they go."""

from __future__ import annotations

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import BLUE, BLUE_INK, EDGE, INK, NOTE, ORANGE, ORANGE_INK, PALE_BLUE, PALE_GREEN, Pen


def ways_to_a_tensor() -> ResultFigure:
    """Draw three ways to a new tensor: made on the CPU and moved, made on the GPU, and on ``meta`` without data."""
    width, height, below = 8.0, 6.15, 1.65
    pen = Pen(width, height)
    for x, w, name in ((0.12, 5.0, "Main memory"), (6.05, 1.83, "GPU memory")):
        pen.area(x, below + 0.12, w, height - below - 0.56)
        pen.write(x + 0.1, height - 0.31, name, size=10.5, weight="bold")
    pen.write(5.585, height - 0.31, "the link", NOTE, ha="center")
    for x in (5.27, 5.9):
        pen.ax.plot([x, x], [below + 0.2, height - 0.52], color=EDGE, lw=1, ls=":")
    moved, built, meta = below + 2.72, below + 1.42, below + 0.27
    for y, code, rest in (
        (moved, 'torch.rand(n).to("cuda")', "made here, then moved"),
        (built, 'torch.rand(n, device="cuda")', "made there"),
        (meta, 'torch.rand(n, device="meta")', "made nowhere"),
    ):
        pen.write(0.27, y + 0.9, code, size=9, family="monospace")
        pen.write(3.1, y + 0.9, rest, size=10, style="italic")

    pen.box(0.27, moved, 1.62, 0.68, "the CPU draws\nn numbers")
    pen.box(3.3, moved, 1.62, 0.68, "staging buffer\nof the driver", PALE_BLUE)
    pen.box(6.2, moved, 1.53, 0.68, "n numbers", PALE_GREEN)
    pen.arrow((1.95, moved + 0.34), (3.26, moved + 0.34), ORANGE, "--")
    pen.write(2.6, moved + 0.46, "copy 1: CPU", ORANGE_INK, va="bottom", ha="center")
    pen.arrow((4.98, moved + 0.34), (6.16, moved + 0.34), BLUE)
    pen.write(5.585, moved + 0.46, "copy 2", BLUE_INK, va="bottom", ha="center")
    pen.write(2.6, moved + 0.18, "Python waits", ORANGE_INK, va="top", ha="center")

    pen.box(0.27, built, 1.62, 0.68, "the CPU starts\na kernel")
    pen.box(6.2, built, 1.53, 0.68, "n numbers,\ndrawn here", PALE_GREEN)
    pen.arrow((1.95, built + 0.34), (6.16, built + 0.34), BLUE, ":", width=2)
    pen.write(3.6, built + 0.44, "only the launch crosses the link;", BLUE_INK, va="bottom", ha="center")
    pen.write(3.6, built + 0.22, "Python goes on at once", BLUE_INK, va="top", ha="center")

    pen.area(0.27, meta, 1.62, 0.68, 0.06, fc="white", ec=EDGE, lw=1, ls="--")
    label = {"fontsize": 10, "color": INK, "ha": "center", "va": "center", "weight": "bold", "linespacing": 1.3}
    pen.ax.text(1.08, meta + 0.34, "shape, dtype,\nstrides", **label)
    pen.write(2.1, meta + 0.34, "no memory, no kernel", NOTE)
    _wait_and_gap(pen)
    return pen.described(
        "Three ways to a new tensor. Made here, then moved: the CPU draws the numbers into main memory, copies them "
        "into the driver's staging buffer, and from there they cross the link into GPU memory, while Python waits. "
        "Made there: the CPU starts a kernel that draws the numbers in GPU memory; only the launch crosses the link. "
        "Made on meta: shape, dtype and strides, and no memory at all. Below, a wait over time: Python launches "
        "kernels faster than the GPU works, then waits while the GPU empties its queue. After the copy the GPU stands "
        "idle, until Python has launched the next kernel."
    )


def _wait_and_gap(pen: Pen) -> None:
    pen.write(0.27, 1.5, "A wait, over time", size=10.5, weight="bold")
    python, gpu, tall = 0.78, 0.3, 0.36
    for y, name in ((python, "Python"), (gpu, "GPU")):
        pen.write(0.27, y + tall / 2, name, size=10)
    pen.box(1.1, python, 1.2, tall, "launches")
    pen.area(2.34, python, 3.2, tall, 0.06, fc="white", ec=ORANGE, lw=1, ls="--")
    pen.write(3.94, python + tall / 2, "waits", ORANGE_INK, ha="center")
    pen.box(5.58, python, 2.2, tall, "launches again")
    pen.box(1.4, gpu, 3.5, tall, "kernels from the queue", PALE_GREEN)
    pen.box(4.94, gpu, 0.6, tall, "copy", PALE_BLUE)
    pen.area(5.58, gpu, 0.68, tall, 0.06, fc="white", ec=ORANGE, lw=1, ls="--")
    pen.write(5.92, gpu + tall / 2, "idle", ORANGE_INK, ha="center")
    pen.box(6.3, gpu, 1.48, tall, "kernels", PALE_GREEN)
    pen.axis((1.1, 0.12), (7.8, 0.12))
    pen.write(7.8, 1.5, "the queue is empty: the GPU idles until the next launch", ORANGE_INK, ha="right")
