"""One step of a real training on eight H100s, as its trace shows it: threads, streams and the step's two labels.

Others measured it (``source`` of :mod:`course_utils.materials.h100_step`, the trace after the change). It is step 11,
which runs both optimizers: what it launched, whenever that ran, and what ran before that since it began on the CPU.
A launch is long above 500 µs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from course_utils.materials.h100_step import h100_steps
from course_utils.show.canvas import ResultFigure
from course_utils.show.colours import AMBER, BLUE, GREY_99, GREY_DD, SKY
from course_utils.show.lanes import Span, lanes_figure

PATH = Path(__file__).with_suffix(".json")
_COLOURS = {
    "label": GREY_DD,
    "call": AMBER,
    "kernel from Python's thread": BLUE,
    "kernel from the autograd thread": SKY,
    "kernel of the step before": GREY_99,
}


@functools.cache
def h100_lanes() -> Mapping[str, Any]:
    """What is stored: ``numbers``, and ``lanes_us`` with ``[start, end, kind, text]`` of each span.

    Example:
        >>> sorted(h100_lanes())
        ['lanes_us', 'numbers']
    """
    return json.loads(PATH.read_text(encoding="utf-8"))


def h100_lanes_figure() -> ResultFigure:
    """The lanes of that step, from where it begins on the CPU to the end of its last kernel."""
    lanes = {
        lane: [Span(start / 1e6, end / 1e6, kind, text) for start, end, kind, text in spans]
        for lane, spans in h100_lanes()["lanes_us"].items()
    }
    source = h100_steps().source
    return lanes_figure(
        "The GPU is a whole step behind the CPU, and hardly idle",
        {"": lanes},
        _COLOURS,
        "Lanes of one training step on an H100. The label of the step on the CPU covers forward, the wait for the "
        "backward pass, which runs in the thread pt_autograd_0, and two optimizers. The kernels that they launch begin "
        "on stream 7 only when the step is nearly over on the CPU; until then it runs those of the step before. "
        "The label of the step on the GPU covers the kernels of the forward pass alone. NCCL's kernels, on stream 23, "
        "come last.",
        f"Published: {source['repository']}, {source['hardware']}, {source['measured']}. Gaps under 150 µs are closed.",
        "Stream 7 computes and copies, stream 23 communicates (NCCL).",
    )
