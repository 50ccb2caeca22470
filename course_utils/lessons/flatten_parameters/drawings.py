"""Drawing of lesson 08: the weights of an RNN, scattered and in one buffer, and what cuDNN is handed."""

from __future__ import annotations

from matplotlib.patches import FancyBboxPatch

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import (
    BLUE,
    BLUE_INK,
    EDGE,
    FAINT,
    INK,
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

# The four weights of one layer, and widths that hint at their sizes; in cuDNN's order.
_WEIGHTS = (("weight_ih", 1.15), ("weight_hh", 1.15), ("bias_ih", 0.72), ("bias_hh", 0.72))


def weights_in_memory() -> ResultFigure:
    """Draw what cuDNN is handed in each call: a buffer filled anew, or the buffer that the weights live in.

    Returns:
        A figure that shows itself.
    """
    width, height = 8.0, 4.3
    fig, ax = canvas(width, height)
    ax.add_patch(FancyBboxPatch((0.1, 0.1), 6.1, height - 0.55, boxstyle=rounded(0.08), fc=FAINT, ec="none"))
    ax.text(0.2, height - 0.3, "GPU memory", fontsize=10.5, color=INK, weight="bold", va="center")
    ax.text(6.35, height - 0.3, "reads one buffer", fontsize=10.5, color=INK, weight="bold", va="center")
    total = sum(wide for _, wide in _WEIGHTS)
    left = 0.3

    top = 3.0
    ax.text(left, top + 0.62, "Scattered: four pieces of memory", fontsize=10, color=INK, style="italic", va="center")
    starts = (left, 1.72, 3.55, 5.05)
    fresh = 1.95
    x = left + 0.6
    for (name, wide), start in zip(_WEIGHTS, starts, strict=True):
        box(ax, start, top, wide, 0.4, name, PLAIN, bold=False)
        ax.add_patch(FancyBboxPatch((x, fresh), wide, 0.4, boxstyle="square,pad=0", fc=PALE_BLUE, ec=EDGE, lw=1))
        ax.text(x + wide / 2, fresh + 0.2, "copy", ha="center", va="center", fontsize=10, color=INK)
        arrow(ax, (start + wide / 2, top - 0.03), (x + wide / 2, fresh + 0.43), ORANGE, "--", width=2)
        x += wide
    said = "at every call: allocate a buffer, zero it, copy all weights into it"
    ax.text(left + 0.6 + total / 2, fresh - 0.15, said, ha="center", va="center", fontsize=9.5, color=ORANGE_INK)
    box(ax, 6.75, fresh - 0.12, 1.05, 0.64, "cuDNN", PALE_GREEN)
    arrow(ax, (left + 0.65 + total, fresh + 0.2), (6.73, fresh + 0.2), ORANGE, "--")

    flat = 0.62
    ax.text(left, flat + 0.72, "Flat: four views of one buffer", fontsize=10, color=INK, style="italic", va="center")
    x = left + 0.6
    for name, wide in _WEIGHTS:
        ax.add_patch(FancyBboxPatch((x, flat), wide, 0.4, boxstyle="square,pad=0", fc=PALE_BLUE, ec=EDGE, lw=1))
        ax.text(x + wide / 2, flat + 0.2, name, ha="center", va="center", fontsize=10, color=INK)
        x += wide
    said = "at every call: compare the addresses, copy nothing"
    ax.text(left + 0.6 + total / 2, flat - 0.2, said, ha="center", va="center", fontsize=9.5, color=BLUE_INK)
    box(ax, 6.75, flat - 0.12, 1.05, 0.64, "cuDNN", PALE_GREEN)
    arrow(ax, (left + 0.65 + total, flat + 0.2), (6.73, flat + 0.2), BLUE)
    fig.alt = (
        "Two ways to hold the four weights of one layer in GPU memory. Scattered: four pieces of memory; at every call "
        "a fresh buffer is allocated, zeroed, and all weights are copied into it, and cuDNN reads that buffer. Flat: "
        "the four weights are views of one buffer, side by side; at every call their addresses are compared, nothing "
        "is copied, and cuDNN reads the buffer in place."
    )
    return fig
