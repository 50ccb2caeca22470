"""Drawing of the lesson: the matrix of scores, stored as a whole and passed tile by tile."""

from __future__ import annotations

from matplotlib.patches import Rectangle

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import BLUE, BLUE_INK, EDGE, NOTE, ORANGE_INK, PALE_BLUE, PALE_GREEN, PLAIN, Pen

_PALE_ORANGE = "#F8E3D3"


def tiles_and_running_sums() -> ResultFigure:
    """Draw attention by hand, which stores the matrix of scores, beside attention that passes it tile by tile."""
    width, height = 8.0, 3.75
    pen = Pen(width, height)
    for x, w, title in ((0.1, 2.75, "By hand"), (2.98, 4.92, "FlashAttention")):
        pen.area(x, 0.1, w, height - 0.2)
        pen.write(x + 0.12, height - 0.33, title, size=10.5, weight="bold")

    side, low = 1.88, 0.82
    _matrix_labels(pen, 0.7, low, side)
    pen.ax.add_patch(Rectangle((0.7, low), side, side, fc=_PALE_ORANGE, ec=EDGE, lw=1.2))
    whole = "all scores,\nlength × length,\nin memory"
    pen.write(0.7 + side / 2, low + side / 2, whole, size=10, ha="center", linespacing=1.4)
    pen.write(0.7 + side / 2, 0.56, "written, read for the softmax,", ORANGE_INK, 9, ha="center")
    pen.write(0.7 + side / 2, 0.34, "written, and read once more", ORANGE_INK, 9, ha="center")

    left, tile = 3.58, side / 4
    _matrix_labels(pen, left, low, side)
    for row in range(4):
        for column in range(4):
            done, now = row == 0 or (row == 1 and column < 2), row == 1 and column == 2
            corner = left + column * tile, low + side - (row + 1) * tile
            colour = BLUE if now else (PALE_GREEN if done else PLAIN)
            pen.ax.add_patch(Rectangle(corner, tile, tile, fc=colour, ec=EDGE, lw=1, ls="-" if now else ":"))
            if done:
                centre = left + (column + 0.5) * tile, low + side - (row + 0.5) * tile
                pen.write(*centre, "gone", NOTE, 9, ha="center", style="italic")
    pen.write(left + side / 2, 0.56, "one tile at a time;", BLUE_INK, 9, ha="center")
    pen.write(left + side / 2, 0.34, "the matrix is never stored", BLUE_INK, 9, ha="center")

    x, w = 5.66, 2.16
    pen.area(x, 0.42, w, 2.74, 0.06, fc=PALE_BLUE, ec=BLUE, lw=1.5)
    pen.write(x + w / 2, 2.95, "memory on the chip", BLUE_INK, 9, ha="center")
    pen.box(x + 0.13, 2.1, w - 0.26, 0.62, "tiles of q, k and v,\none tile of scores", bold=False)
    pen.box(
        x + 0.13, 0.98, w - 0.26, 0.98, "for each query:\nlargest score so far,\nsum so far,\nresult so far", bold=False
    )
    pen.write(x + w / 2, 0.79, "a new largest score?", NOTE, 9, ha="center")
    pen.write(x + w / 2, 0.59, "rescale sum and result", NOTE, 9, ha="center")
    now_y = low + side - 1.5 * tile
    pen.arrow((left + 3 * tile + 0.02, now_y), (x - 0.03, now_y), BLUE, width=2.5)
    return pen.described(
        "Left, attention by hand: a square of all scores, length by length, lies in memory; it is written, read for "
        "the softmax, written and read once more. Right, FlashAttention: the same square is passed tile by tile. Tiles "
        "that are done are gone; the current one is in fast memory on the chip, together with tiles of q, k and v and, "
        "for each query, the largest score so far, the sum so far and the result so far. When a larger score appears, "
        "sum and result are rescaled. The matrix is never stored."
    )


def _matrix_labels(pen: Pen, x: float, y: float, side: float) -> None:
    pen.write(x + side / 2, y + side + 0.16, "keys →", NOTE, 9, ha="center")
    pen.write(x - 0.2, y + side / 2, "← queries", NOTE, 9, ha="center", rotation=90)
