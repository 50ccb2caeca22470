"""Drawings of lesson 17: one process against several, and when gradients travel."""

from __future__ import annotations

from collections.abc import Sequence

from course_utils.records.kinds.rank_results import RankResults
from course_utils.records.unrecorded import Unrecorded
from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import BLUE, BLUE_INK, EDGE, NOTE, ORANGE, ORANGE_INK, PALE_BLUE, PALE_GREEN, Pen

_MOST_BUCKETS = 6  # that can be drawn


def one_process_or_several() -> ResultFigure:
    """Draw a training step on two GPUs with ``DataParallel`` and with DDP."""
    width, height = 8.0, 4.1
    pen = Pen(width, height)
    half = 3.8
    for x, name in ((0.12, "DataParallel: one process"), (4.08, "DDP: a process for each GPU")):
        pen.write(x + 0.05, height - 0.24, name, size=11, weight="bold")

    pen.area(0.12, 0.12, half, height - 0.55)
    pen.box(0.32, 2.78, half - 0.4, 0.55, "one Python, two threads, one GIL")
    pen.box(0.32, 0.3, 1.05, 2.2, "GPU 0\n\nweights,\noptimizer", PALE_GREEN)
    pen.box(2.67, 0.3, 1.05, 2.2, "GPU 1\n\nreplica,\nfor one\nstep", PALE_BLUE)
    rows = (
        (2.2, "weights", True, ORANGE, ORANGE_INK),
        (1.65, "inputs", True, BLUE, BLUE_INK),
        (1.1, "outputs", False, BLUE, BLUE_INK),
        (0.55, "gradients", False, ORANGE, ORANGE_INK),
    )
    for y, word, away, colour, ink in rows:
        start, end = (1.42, 2.63) if away else (2.63, 1.42)
        pen.arrow((start, y - 0.08), (end, y - 0.08), colour, width=2.2)
        pen.write(2.02, y + 0.07, word, ink, va="bottom", ha="center")

    for x, gpu in ((4.08, 0), (6.08, 1)):
        pen.area(x, 0.12, 1.8, height - 0.55)
        pen.box(x + 0.15, 2.78, 1.5, 0.55, "its own Python")
        pen.box(x + 0.15, 1.3, 1.5, 1.2, f"GPU {gpu}\n\nweights,\noptimizer", PALE_GREEN)
    for start, end in (((5.3, 1.05), (6.66, 1.05)), ((6.66, 1.05), (5.3, 1.05))):
        pen.arrow(start, end, ORANGE, width=2.2)
    pen.write(5.98, 0.82, "gradients: all-reduce", ORANGE_INK, ha="center")
    pen.write(5.98, 0.58, "of buckets, while backward", ORANGE_INK, ha="center")
    pen.write(5.98, 0.34, "still runs", ORANGE_INK, ha="center")
    return pen.described(
        "A training step on two GPUs. With DataParallel one process with two threads and one GIL copies weights and "
        "inputs from GPU 0 to a replica on GPU 1 in each step, and brings outputs and gradients back to GPU 0. With "
        "DDP each GPU has a process with a Python of its own and keeps weights and optimizer; gradients travel, "
        "bucket by bucket, while the backward pass still runs."
    )


def overlap_lanes(run: RankResults | Unrecorded) -> ResultFigure | Unrecorded:
    """Draw when the backward pass of rank 0 ran, and when each bucket travelled."""
    if isinstance(run, Unrecorded):
        return run
    # A record sorts names; the setting with more buckets comes first.
    lanes = dict(sorted(run[0]["lanes"].items(), key=lambda item: -len(item[1]["all-reduce"])))
    rows = sum(2 + len(of["all-reduce"][:_MOST_BUCKETS]) for of in lanes.values())
    width, left, row = 8.0, 1.72, 0.34
    height = 0.62 + row * rows
    pen = Pen(width, height)
    longest = max(end for of in lanes.values() for spans in of.values() for _, end in spans)
    scale = (width - left - 0.25) / longest
    y, described = height - 0.3, []
    for name, of in lanes.items():
        pen.write(0.12, y, name, size=10.5, weight="bold")
        y -= row
        _lane(pen, y, left, scale, "backward pass", of["backward"], BLUE, "")
        done = of["backward"][-1][1]
        for number, span in enumerate(of["all-reduce"][:_MOST_BUCKETS], start=1):
            y -= row
            _lane(pen, y, left, scale, f"bucket {number} travels", [span], ORANGE, "//")
        lowest, ended = y, left + done * scale
        highest = lowest + row * (len(of["all-reduce"]) + 0.4)
        pen.ax.plot([ended, ended], [lowest - 0.14, highest], color=EDGE, lw=1, ls=":")
        spans = ", ".join(f"{start * 1e3:.1f} to {end * 1e3:.1f}" for start, end in of["all-reduce"]) or "none"
        described.append(f"{name}: backward until {done * 1e3:.1f} ms, buckets travel {spans} ms")
        y -= row
    pen.axis((left, 0.26), (width - 0.2, 0.26))
    pen.write(width - 0.2, 0.1, f"{longest * 1e3:.1f} ms", NOTE, 9, ha="right")
    pen.write(0.12, 0.1, run.environment.caption, NOTE, 9)
    return pen.described(
        f"Lanes of one backward pass on rank 0. {'; '.join(described)}. The "
        "dotted line marks the end of the backward pass: what travels before it is hidden behind it."
    )


def _lane(
    pen: Pen, y: float, left: float, scale: float, name: str, spans: Sequence[Sequence[float]], colour: str, hatch: str
) -> None:
    pen.write(0.3, y, name)
    for start, end in spans:
        length = max((end - start) * scale, 0.02)
        pen.area(left + start * scale, y - 0.11, length, 0.22, 0.02, fc=colour, ec="white", lw=0.6, hatch=hatch)
