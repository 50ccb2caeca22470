"""Drawings of lesson 04: the ways from main memory to a GPU, and copies beside work."""

from __future__ import annotations

from matplotlib.patches import FancyBboxPatch

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import (
    BLUE,
    BLUE_INK,
    EDGE,
    FAINT,
    INK,
    NOTE,
    ORANGE,
    ORANGE_INK,
    PALE_BLUE,
    PALE_GREEN,
    PLAIN,
    arrow,
    box,
    canvas,
    rounded,
)


def host_to_device_paths() -> ResultFigure:
    """Draw how a tensor gets from main memory to a GPU: through a staging buffer, or straight from pinned memory.

    Returns:
        A figure that shows itself.
    """
    width, height = 8.0, 3.7
    fig, ax = canvas(width, height)
    # Main memory and GPU memory as two areas, with the link between them.
    for x, w, name in ((0.12, 5.5, "Main memory"), (6.55, 1.33, "GPU memory")):
        ax.add_patch(FancyBboxPatch((x, 0.12), w, height - 0.56, boxstyle=rounded(0.08), fc=FAINT, ec="none"))
        ax.text(x + 0.1, height - 0.31, name, fontsize=10.5, color=INK, weight="bold", va="center")
    ax.text(6.085, height - 0.31, "the link", fontsize=9.5, color=NOTE, va="center", ha="center")
    ax.plot([5.77, 5.77], [0.2, height - 0.52], color=EDGE, lw=1, ls=":")
    ax.plot([6.4, 6.4], [0.2, height - 0.52], color=EDGE, lw=1, ls=":")

    rows = ((1.98, "Your tensor is pageable: two copies"), (0.32, "Your tensor is pinned: one copy"))
    for y, title in rows:
        ax.text(0.27, y + 1.06, title, fontsize=10, color=INK, va="center", style="italic")
        box(ax, 6.67, y, 1.09, 0.84, "tensor on\nthe GPU", PALE_GREEN)
    upper, lower = (y for y, _ in rows)

    box(ax, 0.27, upper, 1.35, 0.84, "your tensor,\npageable", PLAIN)
    box(ax, 3.8, upper, 1.67, 0.84, "staging buffer of\nthe driver, pinned", PALE_BLUE)
    arrow(ax, (1.68, upper + 0.42), (3.76, upper + 0.42), ORANGE, "--")
    ax.text(2.7, upper + 0.58, "copy 1: by the CPU,", fontsize=9.5, color=ORANGE_INK, ha="center", va="bottom")
    ax.text(2.7, upper + 0.26, "piece by piece", fontsize=9.5, color=ORANGE_INK, ha="center", va="top")
    arrow(ax, (5.52, upper + 0.42), (6.65, upper + 0.42), BLUE)
    ax.text(6.085, upper + 0.58, "copy 2:", fontsize=9.5, color=BLUE_INK, ha="center", va="bottom")
    ax.text(6.085, upper + 0.26, "by DMA", fontsize=9.5, color=BLUE_INK, ha="center", va="top")

    box(ax, 0.27, lower, 1.35, 0.84, "your tensor,\npinned", PALE_BLUE)
    arrow(ax, (1.68, lower + 0.42), (6.65, lower + 0.42), BLUE)
    above, below = "the only copy: the GPU reads main memory by DMA;", "the CPU only starts it"
    ax.text(3.7, lower + 0.58, above, fontsize=9.5, color=BLUE_INK, ha="center", va="bottom")
    ax.text(3.7, lower + 0.26, below, fontsize=9.5, color=BLUE_INK, ha="center", va="top")
    fig.alt = (
        "Two ways from main memory to a GPU. A pageable tensor is copied twice: by the CPU, piece by piece, into a "
        "pinned staging buffer of the driver, and from there by DMA across the link into GPU memory. A pinned tensor "
        "is copied once: by DMA across the link, straight into GPU memory."
    )
    return fig


def copy_and_compute_lanes() -> ResultFigure:
    """Draw three batches that are copied and computed, on one stream and on two. Lengths are not measured.

    Returns:
        A figure that shows itself.
    """
    width, height = 8.0, 2.9
    fig, ax = canvas(width, height)
    copy_w, work_w, left, lane_h = 0.82, 0.95, 1.55, 0.36

    def bar(x: float, y: float, w: float, text: str, colour: str) -> None:
        ax.add_patch(FancyBboxPatch((x + 0.02, y), w - 0.04, lane_h, boxstyle=rounded(0.04), fc=colour, ec="none"))
        ax.text(x + w / 2, y + lane_h / 2, text, color="white", fontsize=9.5, ha="center", va="center", weight="bold")

    one, copies, works = 1.98, 0.98, 0.52
    ax.text(0.12, one + lane_h + 0.24, "One stream: in the order in which you queued it", fontsize=10, style="italic")
    ax.text(0.12, one + lane_h / 2, "stream", fontsize=9.5, va="center", color=INK)
    x = left
    for n in (1, 2, 3):
        bar(x, one, copy_w, f"copy {n}", BLUE)
        bar(x + copy_w, one, work_w, f"work {n}", ORANGE_INK)
        x += copy_w + work_w
    two_streams = "Two streams: batch 2 is copied while batch 1 is worked on"
    ax.text(0.12, copies + lane_h + 0.24, two_streams, fontsize=10, style="italic")
    ax.text(0.12, copies + lane_h / 2, "copy stream", fontsize=9.5, va="center", color=INK)
    ax.text(0.12, works + lane_h / 2, "main stream", fontsize=9.5, va="center", color=INK)
    for n in (1, 2, 3):
        start = left + copy_w + (n - 1) * work_w
        bar(left + (n - 1) * copy_w, copies, copy_w, f"copy {n}", BLUE)
        bar(start, works, work_w, f"work {n}", ORANGE_INK)
    ax.annotate(
        "", xy=(width - 0.15, 0.28), xytext=(left, 0.28), arrowprops={"arrowstyle": "-|>", "color": EDGE, "lw": 1}
    )
    ax.text(width - 0.15, 0.12, "time (a sketch, not measured)", fontsize=9, color=NOTE, ha="right", va="center")
    fig.alt = (
        "A sketch of three batches. On one stream copies and work alternate, each waiting for the one before. On two "
        "streams the copy of batch 2 runs while batch 1 is worked on, so that all are done earlier."
    )
    return fig
