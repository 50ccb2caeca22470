"""Drawing of the lesson: from Python to kernels, and what fusion saves."""

from __future__ import annotations

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import BLUE, BLUE_INK, EDGE, NOTE, ORANGE, ORANGE_INK, PALE_BLUE, PALE_GREEN, PLAIN, Pen

_STAGES = (
    ("your function", "Python bytecode", PLAIN),
    ("Dynamo", "bytecode in,\ngraph and\nguards out", PALE_BLUE),
    ("AOTAutograd", "adds the\nbackward graph\nif needed", PALE_BLUE),
    ("Inductor", "fuses, writes\nC++ or Triton,\ncompiles", PALE_BLUE),
    ("kernels", "kept in memory\nand on disk", PALE_GREEN),
)


def compile_and_fuse() -> ResultFigure:
    """Draw the stages of ``torch.compile``, and a chain of three operations before and after fusion."""
    width, height = 8.0, 5.3
    pen = Pen(width, height)
    _stages(pen, width, height)
    _memory(pen, 1.52, "Not fused: three operations, each reads memory and writes memory", ORANGE, ORANGE_INK, 3)
    _memory(pen, 0.12, "Fused: one kernel; what lies between stays in registers", BLUE, BLUE_INK, 1)
    return pen.described(
        "Above: the stages of torch.compile. At the first call Dynamo turns the bytecode of your function into a graph "
        "with guards, AOTAutograd adds the backward graph if needed, Inductor fuses operations and compiles kernels, "
        "which are kept in memory and on disk; those of the backward are compiled at the first .backward(). At each "
        "later call only the guards are checked; if they hold, the kernels run, and if not, the way begins anew. "
        "Below: a chain of three operations reads and writes memory three times; fused into one kernel it reads once "
        "and writes once."
    )


def _stages(pen: Pen, width: float, height: float) -> None:
    """The row of stages, and the short way that later calls take."""
    w, h, gap, left = 1.4, 1.1, 0.16, 0.2
    y = height - 1.66
    pen.write(
        left,
        height - 0.28,
        "First call: trace, compile the forward. First .backward(): compile the backward",
        size=10,
        style="italic",
    )
    for index, (title, what, colour) in enumerate(_STAGES):
        x = left + index * (w + gap)
        pen.area(x, y, w, h, 0.06, fc=colour, ec=EDGE, lw=1)
        pen.write(x + w / 2, y + h - 0.2, title, size=10, ha="center", weight="bold")
        pen.write(x + w / 2, y + 0.43, what, size=9, ha="center", linespacing=1.25)
        if index:
            pen.arrow((x - gap, y + h / 2), (x + 0.02, y + h / 2), EDGE, width=1.6)
    start, end, low = left + w / 2, left + 4 * (w + gap) + w / 2, y - 0.32
    pen.ax.plot([start, start, end], [y - 0.02, low, low], color=BLUE, lw=2)
    pen.arrow((end, low), (end, y - 0.01), BLUE, width=2)
    later = "each later call: check the guards, run the kernels; if a guard fails, compile anew"
    pen.write(width / 2, low - 0.17, later, BLUE_INK, ha="center")


def _memory(pen: Pen, y: float, title: str, colour: str, ink: str, kernels: int) -> None:
    """Memory as a bar below, kernels above it, an arrow for each pass over the data."""
    pen.area(0.2, y, 7.6, 0.26, 0.05)
    pen.write(0.3, y + 0.13, "memory", NOTE, 9)
    pen.write(0.2, y + 1.2, title, size=10, style="italic")
    names = ("x * 1.5", "+ 1", "clamp") if kernels == 3 else ("x * 1.5 + 1, clamp",)
    w = 1.15 if kernels == 3 else 1.9
    for index, name in enumerate(names):
        x = 1.5 + index * 2.1 if kernels == 3 else 3.05
        pen.box(x, y + 0.66, w, 0.36, name, bold=False)
        for at, ends, word in (
            (x + 0.22, (y + 0.26, y + 0.66), "read"),
            (x + w - 0.22, (y + 0.66, y + 0.26), "write"),
        ):
            pen.arrow((at, ends[0]), (at, ends[1]), colour, width=2)
            side = -0.06 if word == "read" else 0.06
            pen.write(at + side, y + 0.46, word, ink, 9, ha="right" if side < 0 else "left")
