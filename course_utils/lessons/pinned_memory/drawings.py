"""Drawings of lesson 04: the ways from main memory to a GPU, and copies beside work."""

from __future__ import annotations

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import BLUE, BLUE_INK, EDGE, NOTE, ORANGE, ORANGE_INK, PALE_BLUE, PALE_GREEN, Pen


def host_to_device_paths() -> ResultFigure:
    """Draw how a tensor gets from main memory to a GPU: through a staging buffer, or straight from pinned memory."""
    width, height = 8.0, 3.7
    pen = Pen(width, height)
    # Main memory and GPU memory as two areas, with the link between them.
    for x, w, name in ((0.12, 5.5, "Main memory"), (6.55, 1.33, "GPU memory")):
        pen.area(x, 0.12, w, height - 0.56)
        pen.write(x + 0.02, height - 0.31, name, size=10.5, weight="bold")
    pen.write(6.085, height - 0.31, "the link", NOTE, ha="center")
    pen.ax.plot([5.77, 5.77], [0.2, height - 0.52], color=EDGE, lw=1, ls=":")
    pen.ax.plot([6.4, 6.4], [0.2, height - 0.52], color=EDGE, lw=1, ls=":")

    rows = ((1.98, "Your tensor is pageable: two copies"), (0.32, "Your tensor is pinned: one copy"))
    for y, title in rows:
        pen.write(0.27, y + 1.06, title, size=10, style="italic")
        pen.box(6.67, y, 1.09, 0.84, "tensor on\nthe GPU", PALE_GREEN)
    upper, lower = (y for y, _ in rows)

    pen.box(0.27, upper, 1.35, 0.84, "your tensor,\npageable")
    pen.box(3.55, upper, 1.97, 0.84, "staging buffer of\nthe driver, pinned", PALE_BLUE)
    pen.arrow((1.68, upper + 0.42), (3.51, upper + 0.42), ORANGE, "--")
    pen.write(2.57, upper + 0.58, "copy 1: by the CPU,", ORANGE_INK, va="bottom", ha="center")
    pen.write(2.57, upper + 0.26, "piece by piece", ORANGE_INK, va="top", ha="center")
    pen.arrow((5.57, upper + 0.42), (6.65, upper + 0.42), BLUE)
    pen.write(6.085, upper + 0.58, "copy 2:", BLUE_INK, va="bottom", ha="center")
    pen.write(6.085, upper + 0.26, "by DMA", BLUE_INK, va="top", ha="center")

    pen.box(0.27, lower, 1.35, 0.84, "your tensor,\npinned", PALE_BLUE)
    pen.arrow((1.68, lower + 0.42), (6.65, lower + 0.42), BLUE)
    above, below = "the only copy: the GPU reads it by DMA;", "the CPU only starts it"
    pen.write(3.7, lower + 0.58, above, BLUE_INK, va="bottom", ha="center")
    pen.write(3.7, lower + 0.26, below, BLUE_INK, va="top", ha="center")
    return pen.described(
        "Two ways from main memory to a GPU. A pageable tensor is copied twice: by the CPU, piece by piece, into a "
        "pinned staging buffer of the driver, and from there by DMA across the link into GPU memory. A pinned tensor "
        "is copied once: by DMA across the link, straight into GPU memory."
    )


def copy_and_compute_lanes() -> ResultFigure:
    """Draw three batches that are copied and computed, on one stream and on two. Lengths are not measured."""
    width, height = 8.0, 2.9
    pen = Pen(width, height)
    copy_w, work_w, left, lane_h = 0.82, 0.95, 1.55, 0.36

    def bar(x: float, y: float, w: float, text: str, colour: str) -> None:
        pen.area(x + 0.02, y, w - 0.04, lane_h, 0.04, fc=colour)
        pen.write(x + w / 2, y + lane_h / 2, text, "white", ha="center", weight="bold")

    single, copies, works = 1.98, 0.98, 0.52
    one_stream = "One stream: in the order in which you queued it"
    pen.write(0.12, single + lane_h + 0.24, one_stream, "black", 10, va="baseline", style="italic")
    pen.write(0.12, single + lane_h / 2, "stream")
    x = left
    for n in (1, 2, 3):
        bar(x, single, copy_w, f"copy {n}", BLUE)
        bar(x + copy_w, single, work_w, f"work {n}", ORANGE_INK)
        x += copy_w + work_w
    two_streams = "Two streams: batch 2 is copied while batch 1 is worked on"
    pen.write(0.12, copies + lane_h + 0.24, two_streams, "black", 10, va="baseline", style="italic")
    pen.write(0.12, copies + lane_h / 2, "copy stream")
    pen.write(0.12, works + lane_h / 2, "main stream")
    for n in (1, 2, 3):
        start = left + copy_w + (n - 1) * work_w
        bar(left + (n - 1) * copy_w, copies, copy_w, f"copy {n}", BLUE)
        bar(start, works, work_w, f"work {n}", ORANGE_INK)
    pen.axis((left, 0.28), (width - 0.15, 0.28), lw=1)
    pen.write(width - 0.15, 0.12, "time (a sketch, not measured)", NOTE, 9, ha="right")
    return pen.described(
        "A sketch of three batches. On one stream copies and work alternate, each waiting for the one before. On two "
        "streams the copy of batch 2 runs while batch 1 is worked on, so that all are done earlier."
    )
