"""The spans that torch's profiler recorded, as lanes: for a short look inside the notebook."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch.autograd import DeviceType

from course_utils.measure.machine import environment
from course_utils.records.result import JUST_NOW
from course_utils.show.formats import format_seconds
from course_utils.show.timeline import Span, Timeline, timeline

_COLOURS = {"label": "grey", "operator": "blue", "backward": "purple", "kernel": "green"}
_BACKWARD = "autograd::engine::evaluate_function: "
_MOST_ROWS = 4


def lanes_of(profile: Any, first: str) -> dict[str, list[Span]]:
    """The spans of a finished ``torch.profiler.profile``, by thread and stream.

    Operators that other operators call are left out below the fourth row.

    Raises:
        ValueError: if no event has this label.
    """
    within = _time_range(profile, first)
    lanes: dict[str, list[Span]] = defaultdict(list)
    for event in profile.events():
        span = event.time_range
        on_gpu = event.device_type != DeviceType.CPU
        if span.start < within.start or (span.end > within.end and not on_gpu) or span.elapsed_us() <= 0:
            continue
        if not on_gpu and _depth(event) >= _MOST_ROWS:
            continue
        lane = f"stream {event.device_resource_id}" if on_gpu else f"thread {event.thread}"
        start_s, end_s = ((at - within.start) / 1e6 for at in (span.start, span.end))
        text = _name(event).removeprefix("aten::").removeprefix(_BACKWARD)
        lanes[lane].append(Span(start_s, end_s, _kind(event, on_gpu), text))
    return dict(lanes)


def timeline_of(profile: Any, first: str, title: str = "") -> Timeline:
    """The same to scale, from the begin of ``first``."""
    lanes = lanes_of(profile, first)
    words = ", ".join(f"{lane}: {len(spans)} spans" for lane, spans in lanes.items())
    says = f"{title or first}: {format_seconds(_time_range(profile, first).elapsed_us() / 1e6)} inside of the profile."
    alt = f"Lanes of the events inside of {first}. {words}."
    who = {"head": JUST_NOW, "provenance": environment().caption}
    return timeline(says, {"": lanes}, _COLOURS, alt, legend=True, **who)


def _time_range(profile: Any, first: str) -> Any:
    for event in profile.events():
        if _name(event) == first and event.device_type == DeviceType.CPU:
            return event.time_range
    raise ValueError(f"No event of the profile is called {first!r}.")


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
    return "backward" if event.name.startswith(_BACKWARD) else "operator"
