"""The spans that torch's profiler recorded, as lanes: for a short look inside the notebook."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch.autograd import DeviceType

from course_utils.show.canvas import ResultFigure
from course_utils.show.colours import AMBER, BLUE, GREY_DD, SKY
from course_utils.show.lanes import Span, lanes_figure

_COLOURS = {"label": GREY_DD, "operator": AMBER, "backward": SKY, "kernel": BLUE}
_MOST_ROWS = 4


def lanes_of(profile: Any, first: str) -> dict[str, list[Span]]:
    """The spans of a finished ``torch.profiler.profile``, by thread and stream.

    Operators that other operators call are left out below the fourth row.

    Raises:
        ValueError: if no event has this label.
    """
    events = profile.events()
    within = next((e.time_range for e in events if _name(e) == first and e.device_type == DeviceType.CPU), None)
    if within is None:
        raise ValueError(f"No event of the profile is called {first!r}.")
    lanes: dict[str, list[Span]] = defaultdict(list)
    for event in events:
        span = event.time_range
        on_gpu = event.device_type != DeviceType.CPU
        if span.start < within.start or (span.end > within.end and not on_gpu) or span.elapsed_us() <= 0:
            continue
        if not on_gpu and _depth(event) >= _MOST_ROWS:
            continue
        lane = f"stream {event.device_resource_id}" if on_gpu else f"thread {event.thread}"
        start_s, end_s = ((at - within.start) / 1e6 for at in (span.start, span.end))
        lanes[lane].append(Span(start_s, end_s, _kind(event, on_gpu), _name(event).removeprefix("aten::")))
    return dict(lanes)


def lanes_figure_of(profile: Any, first: str, title: str = "") -> ResultFigure:
    """The same as a figure, from the begin of ``first`` to its end."""
    lanes = lanes_of(profile, first)
    words = ", ".join(f"{lane}: {len(spans)} spans" for lane, spans in lanes.items())
    return lanes_figure(title, {"": lanes}, _COLOURS, f"Lanes of the events inside of {first}. {words}.")


def _name(event: Any) -> str:
    """With the number of a step: in ``name`` all steps are called ``ProfilerStep*``."""
    return event.trace_name or event.name


def _depth(event: Any) -> int:
    depth = 0
    while event.cpu_parent is not None:
        depth, event = depth + 1, event.cpu_parent
    return depth


def _kind(event: Any, on_gpu: bool) -> str:
    if event.is_user_annotation:
        return "label"
    if on_gpu:
        return "kernel"
    return "backward" if event.name.startswith("autograd::engine") else "operator"
