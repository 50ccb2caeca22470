"""Drawings of the lesson: what a read in each step costs, as lanes that are worked out."""

from __future__ import annotations

from course_utils.lessons.host_device_syncs.timeline import KERNELS, PREPARES, WAITS, simulate_loop
from course_utils.show.canvas import ResultFigure
from course_utils.show.lanes import Span, lanes_figure

_STEPS = 6
_COLOURS = {PREPARES: "#E69F00", WAITS: "#CCCCCC", KERNELS: "#00664B"}


def four_loops() -> ResultFigure:
    """Draw two loops, each with a read in every step and with one read at the end."""
    loops = {
        "A · Python 2 ms, GPU 2 ms a step": 2e-3,
        "B · Python 0.25 ms, GPU 2 ms a step": 0.25e-3,
    }
    panels = {}
    for name, prepare_s in loops.items():
        for read_every, how in ((1, "a read in each step"), (_STEPS, "one read at the end")):
            timeline = simulate_loop(_STEPS, prepare_s, 2e-3, read_every)
            # What takes no time is not drawn.
            python: list[Span] = [span for span in timeline.python if span.end_s > span.start_s]
            panels[f"{name} · {how}"] = {"Python": python, "GPU": timeline.gpu}
    return lanes_figure(
        "A read costs the GPU's extra idle time, not Python's wait",
        panels,
        _COLOURS,
        "Four timelines of six steps, worked out. Loop A, where Python prepares each batch for as long as the GPU "
        "works: with a read in each step they take turns, and the GPU idles half of the time; with one read at the end "
        "they work side by side, in about half of the time. Loop B, where Python prepares for an eighth of that: with "
        "a read in each step Python waits nearly all of the time, and yet the gaps of the GPU are short; with one read "
        "at the end it is hardly sooner done.",
        "Worked out, not recorded: queueing itself takes no time here. The numbers are the steps.",
    )
