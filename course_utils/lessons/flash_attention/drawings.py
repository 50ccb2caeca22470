"""Drawing of lesson 09: the matrix of scores, stored as a whole and passed tile by tile."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import (
    BLUE,
    BLUE_INK,
    EDGE,
    FAINT,
    INK,
    NOTE,
    ORANGE_INK,
    PALE_BLUE,
    PALE_GREEN,
    PLAIN,
    arrow,
    box,
    canvas,
    rounded,
)

_PALE_ORANGE = "#F8E3D3"


def tiles_and_running_sums() -> ResultFigure:
    """Draw attention by hand, which stores the matrix of scores, beside attention that passes it tile by tile.

    Returns:
        A figure that shows itself.
    """
    width, height = 8.0, 3.75
    fig, ax = canvas(width, height)
    for x, w, title in ((0.1, 2.75, "By hand"), (2.98, 4.92, "FlashAttention")):
        ax.add_patch(FancyBboxPatch((x, 0.1), w, height - 0.2, boxstyle=rounded(0.08), fc=FAINT, ec="none"))
        ax.text(x + 0.12, height - 0.33, title, fontsize=10.5, color=INK, weight="bold", va="center")

    side, low = 1.88, 0.82
    _matrix_labels(ax, 0.7, low, side)
    ax.add_patch(Rectangle((0.7, low), side, side, fc=_PALE_ORANGE, ec=EDGE, lw=1.2))
    ax.text(0.7 + side / 2, low + side / 2, "all scores,\nlength × length,\nin memory", **_middle(10), linespacing=1.4)
    ax.text(0.7 + side / 2, 0.56, "written, read for the softmax,", **_middle(9, ORANGE_INK))
    ax.text(0.7 + side / 2, 0.34, "written, and read once more", **_middle(9, ORANGE_INK))

    left, tile = 3.58, side / 4
    _matrix_labels(ax, left, low, side)
    for row in range(4):
        for column in range(4):
            done, now = row == 0 or (row == 1 and column < 2), row == 1 and column == 2
            ax.add_patch(
                Rectangle(
                    (left + column * tile, low + side - (row + 1) * tile),
                    tile,
                    tile,
                    fc=BLUE if now else (PALE_GREEN if done else PLAIN),
                    ec=EDGE,
                    lw=1,
                    ls="-" if now else ":",
                )
            )
            if done:
                centre = left + (column + 0.5) * tile, low + side - (row + 0.5) * tile
                ax.text(*centre, "gone", **_middle(9, NOTE), style="italic")
    ax.text(left + side / 2, 0.56, "one tile at a time;", **_middle(9, BLUE_INK))
    ax.text(left + side / 2, 0.34, "the matrix is never stored", **_middle(9, BLUE_INK))

    x, w = 5.85, 1.9
    ax.add_patch(FancyBboxPatch((x, 0.42), w, 2.74, boxstyle=rounded(0.06), fc=PALE_BLUE, ec=BLUE, lw=1.5))
    ax.text(x + w / 2, 2.95, "fast memory on the chip", **_middle(9, BLUE_INK))
    box(ax, x + 0.13, 2.1, w - 0.26, 0.62, "tiles of q, k and v,\none tile of scores", PLAIN, bold=False)
    box(
        ax,
        x + 0.13,
        0.98,
        w - 0.26,
        0.98,
        "for each query:\nlargest score so far,\nsum so far,\nresult so far",
        PLAIN,
        bold=False,
    )
    ax.text(x + w / 2, 0.79, "a new largest score?", **_middle(9, NOTE))
    ax.text(x + w / 2, 0.59, "rescale sum and result", **_middle(9, NOTE))
    now_y = low + side - 1.5 * tile
    arrow(ax, (left + 3 * tile + 0.02, now_y), (x - 0.03, now_y), BLUE, width=2.5)
    fig.alt = (
        "Left, attention by hand: a square of all scores, length by length, lies in memory; it is written, read for "
        "the softmax, written and read once more. Right, FlashAttention: the same square is passed tile by tile. Tiles "
        "that are done are gone; the current one is in fast memory on the chip, together with tiles of q, k and v and, "
        "for each query, the largest score so far, the sum so far and the result so far. When a larger score appears, "
        "sum and result are rescaled. The matrix is never stored."
    )
    return fig


def _middle(size: float, colour: str = INK) -> dict[str, object]:
    return {"fontsize": size, "color": colour, "ha": "center", "va": "center"}


def _matrix_labels(ax: Axes, x: float, y: float, side: float) -> None:
    ax.text(x + side / 2, y + side + 0.16, "keys →", **_middle(9, NOTE))
    ax.text(x - 0.2, y + side / 2, "← queries", **_middle(9, NOTE), rotation=90)
