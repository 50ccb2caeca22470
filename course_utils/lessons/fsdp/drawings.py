"""Drawings of the lesson: what a rank keeps under each strategy, and when weights are gathered."""

from __future__ import annotations

from matplotlib.patches import Rectangle

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import BLUE_INK, EDGE, NOTE, ORANGE_INK, PALE_BLUE, PALE_GREEN, Pen

_PALE_ORANGE = "#FBE3D0"
# Part, bytes per parameter in fp32 with AdamW, colour.
_PARTS = (("weights", 4, PALE_BLUE), ("gradients", 4, PALE_GREEN), ("optimizer state", 8, _PALE_ORANGE))


def what_a_rank_keeps() -> ResultFigure:
    """Draw what one of four ranks keeps after a backward pass: all of it, or a quarter of some of it."""
    width, height, ranks = 8.0, 3.7, 4
    pen = Pen(width, height)
    left, unit, bar_h = 1.68, 0.28, 0.42
    x = left
    for name, size, _ in _PARTS:
        pen.write(x + size * unit / 2, height - 0.24, name, size=10, ha="center")
        pen.write(x + size * unit / 2, height - 0.46, f"{size} bytes", NOTE, ha="center")
        x += size * unit + 0.12
    rows = (
        ("DDP", (False, False, False), "4 + 4 + 8"),
        ("ZeRO-1", (False, False, True), "4 + 4 + 8/N"),
        ("ZeRO-2", (False, True, True), "4 + 4/N + 8/N"),
        ("FSDP, ZeRO-3", (True, True, True), "(4 + 4 + 8)/N"),
    )
    for number, (strategy, sharded, formula) in enumerate(rows):
        y = height - 1.14 - number * 0.6
        pen.write(0.1, y + bar_h / 2, strategy, size=10, weight="bold")
        x = left
        for (_, size, colour), cut in zip(_PARTS, sharded, strict=True):
            whole = size * unit
            pen.ax.add_patch(Rectangle((x, y), whole, bar_h, fc="white", ec=EDGE, lw=1, ls=":"))
            pen.ax.add_patch(Rectangle((x, y), whole / ranks if cut else whole, bar_h, fc=colour, ec=EDGE, lw=1))
            x += whole + 0.12
        pen.write(x + 0.03, y + bar_h / 2, formula, size=10)
    note = (
        "Filled: what this rank keeps after a backward pass, for each parameter.\nDotted: on other ranks. N = 4 ranks."
    )
    pen.write(0.1, 0.24, note, NOTE, linespacing=1.4)
    return pen.described(
        "What one of four ranks keeps after a backward pass, for each parameter in fp32 with AdamW. DDP keeps all: 4 "
        "bytes of weights, 4 of gradients and 8 of optimizer state. ZeRO-1 keeps a quarter of the optimizer state. "
        "ZeRO-2 keeps a quarter of the gradients as well. FSDP, which is ZeRO-3, keeps a quarter of everything."
    )


def when_weights_are_gathered() -> ResultFigure:
    """Draw which weights a rank holds whole, of three blocks and the root, while a step runs. Not measured."""
    width, height = 8.0, 4.95
    pen = Pen(width, height)
    left, slot, lane_h, ahead = 2.05, 0.97, 0.2, 0.6
    phases = ("forward 1", "forward 2", "forward 3", "backward 3", "backward 2", "backward 1")
    for number, phase in enumerate(phases):
        colour = BLUE_INK if number < 3 else ORANGE_INK
        pen.write(left + (number + 0.5) * slot, height - 0.22, phase, colour, 9, ha="center")
    always = [(0, 6)]
    rows = (
        (
            "per block",
            "",
            {"block 1": [(0, 1), (5, 6)], "block 2": [(1, 2), (4, 5)], "block 3": [(2, 3), (3, 4)], "root": always},
            "one block, the next one that is fetched ahead, and the root",
        ),
        (
            "per block,",
            "no reshard",
            {"block 1": always, "block 2": [(1, 5)], "block 3": [(2, 4)], "root": always},
            "all blocks, when the forward pass ends, and the root",
        ),
        (
            "root only",
            "",
            dict.fromkeys(("block 1", "block 2", "block 3", "root"), always),
            "everything, all the time",
        ),
    )
    for number, (title, second, held, words) in enumerate(rows):
        top = height - 0.48 - number * 1.4
        pen.area(0.08, top - 1.28, 7.84, 1.28, 0.06)
        pen.write(0.18, top - 0.22, title, size=10, weight="bold")
        if second:
            pen.write(0.18, top - 0.44, second, size=10, weight="bold")
        pen.write(left + 3 * slot, top - 1.16, words, NOTE, ha="center")
        for lane, (weights, spans) in enumerate(held.items(), start=1):
            y = top - 0.08 - lane * (lane_h + 0.03)
            pen.write(left - 0.1, y + lane_h / 2, weights, size=9, ha="right")
            for start, end in spans:
                x, length = left + start * slot + 0.02, (end - start) * slot - 0.04
                if start not in (0, 3):  # while the block before it computes; the last one has just been freed
                    early = ahead * slot
                    pen.area(x - early, y, early, lane_h, 0.03, fc=BLUE_INK, alpha=0.3)
                pen.area(x, y, length, lane_h, 0.03, fc=BLUE_INK, alpha=0.85)
    pen.write(
        7.9, 0.09, "pale: on its way, fetched ahead. Time, left to right (a sketch, not measured)", NOTE, 9, ha="right"
    )
    return pen.described(
        "Which weights a rank holds whole during a step, of three blocks and the root. Wrapped per block, each is "
        "gathered for its forward pass while the block before it computes, freed, and gathered again for its backward "
        "pass; the root stays. Without resharding after the forward pass, the blocks add up until all are there when "
        "the forward pass ends, and go one by one in the backward pass. With only the root wrapped, everything is "
        "there all the time."
    )
