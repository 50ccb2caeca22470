"""Drawings of the lesson: what limits a step, as its lanes show it; one real step; the trace of an exercise."""

from __future__ import annotations

from dataclasses import replace

from course_utils.lessons.profiler.h100_lanes import h100_lanes_figure
from course_utils.lessons.profiler.timeline import (
    COLOURS,
    CPU,
    Timeline,
    data_bound,
    device_bound,
    host_bound,
    planted,
    sync_bound,
)
from course_utils.show.canvas import ResultFigure
from course_utils.show.lanes import lanes_figure


def four_limits() -> ResultFigure:
    """The lanes of four programs, each with another limit."""
    limits = {
        "host-bound": host_bound(),
        "device-bound": device_bound(),
        "data-bound": data_bound(),
        "sync-bound": sync_bound(),
    }
    panels = {f"{name}: the GPU idles {each.idle_share:.0%}": _short(each) for name, each in limits.items()}
    return lanes_figure(
        "Look at the gaps of the GPU's lane, then at the CPU above them",
        panels,
        COLOURS,
        "Lanes of four made-up programs. Host-bound: Python launches without a break, and short kernels have gaps "
        "between them. Device-bound: kernels follow each other without a gap, and Python waits at the end. Data-bound: "
        "Python is in the call for the next batch, and the GPU idles meanwhile. Sync-bound: Python waits for a number, "
        "prints it, and the GPU idles until new kernels come.",
        "Worked out, not measured: Python queues kernels, and one stream works through the queue.",
    )


def planted_trace() -> ResultFigure:
    """The lanes of exercise 3, with names for its longer calls."""
    names = {"enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": "next batch", "clip_gradients": "clip"}
    lanes = {
        lane: [replace(span, text=names.get(span.text, span.text)) for span in spans]
        for lane, spans in planted().lanes.items()
    }
    return lanes_figure(
        "Where does this GPU idle?",
        {"": lanes},
        COLOURS,
        "Lanes of a step of a made-up training. The stream idles while the next batch is loaded, after "
        "a wait in the middle of the step, and while many short kernels are launched near the end.",
        "Worked out, not measured.",
    )


def h100_step_lanes() -> ResultFigure:
    """One step of a real training, from its published trace."""
    return h100_lanes_figure()


def _short(timeline: Timeline) -> dict[str, list]:
    """Its lanes, without the names of the many calls that launch."""
    return {
        "Python" if lane == CPU else "GPU": [replace(span, text="") if span.text == "op" else span for span in spans]
        for lane, spans in timeline.lanes.items()
    }
