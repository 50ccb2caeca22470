"""Checks of the lesson: self time, the time in which a GPU idles, and the planted bottlenecks of a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from course_utils.lessons.answers import NotRight, ask, exercise, listed, number
from course_utils.lessons.profiler.timeline import CPU, LONG_S, planted

Event = tuple[str, float, float]  # name, start and end in microseconds, of one thread

# Calls in the order in which they began: nested ones, and names that occur twice.
_NESTED: tuple[Sequence[Event], ...] = (
    [("step", 0, 100), ("linear", 10, 40), ("addmm", 15, 35), ("relu", 50, 60)],
    [("linear", 0, 30), ("addmm", 5, 25), ("copy_", 10, 15), ("linear", 40, 60), ("addmm", 45, 60)],
)
# Two calls that begin and end together, as `aten::item` and its wait do in exercise 3: the first made the second.
_SAME_SPAN: Sequence[Event] = [("item", 0, 12), ("wait", 0, 12), ("print", 12, 20)]


def _covers(outer: Event, inner: Event) -> bool:
    return outer is not inner and outer[1] <= inner[1] and inner[2] <= outer[2]


def _length(event: Event) -> float:
    return event[2] - event[1]


def _children(event: Event, events: Sequence[Event]) -> list[Event]:
    inside = [other for other in events if _covers(event, other)]
    return [other for other in inside if not any(_covers(between, other) for between in inside)]


def _summed(events: Sequence[Event], own: Callable[[Event], float]) -> dict[str, float]:
    times: dict[str, float] = {}
    for event in events:
        times[event[0]] = times.get(event[0], 0.0) + own(event)
    return times


# What people return; None is what is right.
_SELF: Mapping[str | None, Callable[[Sequence[Event]], dict[str, float]]] = {
    None: lambda events: _summed(events, lambda each: _length(each) - sum(map(_length, _children(each, events)))),
    "total": lambda events: _summed(events, _length),
    "all_inside": lambda events: _summed(
        events, lambda each: _length(each) - sum(_length(other) for other in events if _covers(each, other))
    ),
    "last_call": lambda events: {
        each[0]: _length(each) - sum(map(_length, _children(each, events))) for each in events
    },
}


@exercise
def check_self_time(answer: Any) -> str | None:
    """Compares the times by name with what people write: calls that nest, that share a name, that share a span."""
    given = [_times(ask(answer, list(events))) for events in _NESTED]
    for key, way in _SELF.items():
        if all(_same(times, way(events)) for times, events in zip(given, _NESTED, strict=True)):
            if key is None and not _same(_times(ask(answer, list(_SAME_SPAN))), {"item": 0, "wait": 12, "print": 8}):
                return "same_span"
            return key
    for times, events in zip(given, _NESTED, strict=True):
        for name, right in _SELF[None](events).items():
            if name not in times:
                raise NotRight(f"Your dictionary has no {name!r}.")
            if not math.isclose(times[name], right, abs_tol=1e-6):
                raise NotRight(f"For {events} you return {times[name]:g} µs for {name!r}; {right:g} µs is right.")
    raise NotRight("Your dictionary has names that no event has.")


def _times(given: Any) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise NotRight(f"A dictionary is asked for, and you return {type(given).__name__}.")
    return {str(name): number(value, "A number of microseconds for each name") for name, value in given.items()}


def _same(given: Mapping[str, float], right: Mapping[str, float]) -> bool:
    return given.keys() == right.keys() and all(math.isclose(given[key], right[key], abs_tol=1e-6) for key in right)


# Kernels of all streams as (start, end), and the window: kernels that overlap, that leave the window, that are nested.
_KERNELS: tuple[tuple[Sequence[tuple[float, float]], float, float], ...] = (
    ([(10, 30), (40, 70), (20, 35)], 0, 100),
    ([(-20, 15), (30, 60), (35, 50), (90, 140)], 0, 100),
    ([(50, 60), (5, 25)], 0, 80),
    ([], 0, 50),
)
_OUTSIDE = ([(10, 30), (120, 140), (-50, -10)], 0, 100)  # two of them lie outside of the window as a whole


def _united(kernels: Iterable[tuple[float, float]]) -> float:
    total, until = 0.0, -math.inf
    for start, end in sorted(kernels):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _clipped(kernels: Iterable[tuple[float, float]], low: float, high: float) -> list[tuple[float, float]]:
    return [(max(start, low), min(end, high)) for start, end in kernels if end > low and start < high]


def _between(kernels: Sequence[tuple[float, float]], low: float, high: float) -> float:
    inside = _clipped(kernels, low, high)
    return max(end for _, end in inside) - min(start for start, _ in inside) - _united(inside) if inside else 0.0


_IDLE: Mapping[str | None, Callable[[Sequence[tuple[float, float]], float, float], float]] = {
    None: lambda kernels, low, high: high - low - _united(_clipped(kernels, low, high)),
    "counted_twice": lambda kernels, low, high: (
        high - low - sum(end - start for start, end in _clipped(kernels, low, high))
    ),
    "counted_twice_unclipped": lambda kernels, low, high: high - low - sum(end - start for start, end in kernels),
    "not_clipped": lambda kernels, low, high: high - low - _united(kernels),
    "edges": _between,
}


@exercise
def check_gpu_idle(answer: Any) -> str | None:
    """Compares idle times with what people write, on kernels that overlap and leave the window."""
    given = [number(ask(answer, list(kernels), low, high), "Microseconds") for kernels, low, high in _KERNELS]
    for key, way in _IDLE.items():
        if all(math.isclose(value, way(*case), abs_tol=1e-6) for value, case in zip(given, _KERNELS, strict=True)):
            if key is None and not math.isclose(
                number(ask(answer, list(_OUTSIDE[0]), *_OUTSIDE[1:]), "Microseconds"), 80
            ):
                return "not_clipped"
            return "counted_twice" if key == "counted_twice_unclipped" else key
    for value, case in zip(given, _KERNELS, strict=True):
        if not math.isclose(value, right := _IDLE[None](*case), abs_tol=1e-6):
            kernels, low, high = case
            raise NotRight(
                f"With kernels {kernels} between {low} and {high} the GPU idles {right:g} µs, not {value:g}."
            )
    return None


_LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_ABOVE_THE_GAPS = {_LOADER, "print", "clip_gradients"}
# What else people name, by the hint that answers it.
_OTHERS: Mapping[str, set[str]] = {
    "before_the_gap": {"aten::item", "cudaStreamSynchronize"},
    "queue_was_full": {"cudaEventSynchronize", "cudaDeviceSynchronize"},
    "busy": {"forward", "backward"},
    "whole_step": {"ProfilerStep#3"},
}


@exercise
def check_bottlenecks(answer: Any) -> str | None:
    """Looks which names lie above the gaps."""
    if isinstance(answer, str):
        raise NotRight("One text is no list: write the three names between brackets, with commas.")
    names = [str(name) for name in listed(answer)]
    known = {span.text for span in planted().lanes[CPU] if span.end_s - span.start_s > LONG_S}
    for name in names:
        if name not in known:
            raise NotRight(f"{name!r} is not in the list: copy the names from there.")
    for key, those in _OTHERS.items():
        if those & set(names):
            return key
    if missing := _ABOVE_THE_GAPS - set(names):
        raise NotRight(f"What you name is right. {len(missing)} of the three are missing.")
    return None
