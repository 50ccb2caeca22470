"""Drawing of the lesson: two nodes, who meets where, and what travels between them."""

from __future__ import annotations

from matplotlib.patches import FancyArrowPatch, Rectangle

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import BLUE_INK, EDGE, NOTE, ORANGE_INK, PALE_BLUE, PALE_GREEN, Pen


def two_nodes() -> ResultFigure:
    """Draw two nodes with their ranks: shards within each, copies across, and one meeting point on the first."""
    width, height = 8.0, 2.75
    pen = Pen(width, height)
    for node, left in enumerate((0.15, 4.25)):
        pen.ax.add_patch(Rectangle((left, 0.42), 3.6, 2.2, fc="white", ec=EDGE, lw=1.2))
        pen.write(left + 0.12, 2.42, f"node {node}: one torchrun", size=10, weight="bold")
        for rank in range(4):
            x = left + 0.14 + rank * 0.86
            pen.ax.add_patch(Rectangle((x, 1.1), 0.74, 0.62, fc=PALE_BLUE, ec=EDGE, lw=1))
            pen.write(x + 0.37, 1.53, f"rank {4 * node + rank}", size=9, ha="center")
            pen.write(x + 0.37, 1.26, f"shard {rank + 1}", NOTE, 9, ha="center")
        pen.write(left + 1.8, 0.86, "weights gathered, gradients scattered", BLUE_INK, 9, ha="center")
        pen.write(left + 1.8, 0.62, "NVLink", NOTE, 9, ha="center")
    pen.ax.add_patch(Rectangle((1.9, 2.0), 1.7, 0.3, fc=PALE_GREEN, ec=EDGE, lw=1))
    pen.write(2.75, 2.15, "meeting point :29400", size=9, ha="center")
    look = {"mutation_scale": 11, "lw": 1.4}
    pen.ax.add_patch(FancyArrowPatch((4.4, 2.15), (3.62, 2.15), arrowstyle="-|>", color=EDGE, **look))
    twins = {"arrowstyle": "<|-|>", "connectionstyle": "arc3,rad=-0.09", "color": ORANGE_INK, **look}
    pen.ax.add_patch(FancyArrowPatch((0.66, 1.7), (4.76, 1.7), **twins))
    note = "HSDP: each rank adds up its shard's gradients with its twin's (0 and 4, 1 and 5, ...)"
    pen.write(4.0, 0.24, note, ORANGE_INK, 9, ha="center")
    return pen.described(
        "Two nodes, each with one torchrun and four ranks. Node 0 has the meeting point at port 29400, which node 1 "
        "connects to. Within a node, each rank holds a quarter of the model; weights are gathered and gradients "
        "scattered over NVLink. Between the nodes, each rank adds up its shard's gradients with the rank "
        "that has the same shard."
    )
