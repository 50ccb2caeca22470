"""Checks of lesson 01: self time, the time in which a GPU idles, and the planted bottlenecks of a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from course_utils.lessons.answers import NotRight, ask, exercise, listed, number
from course_utils.lessons.profiler.timeline import CPU, planted

Event = tuple[str, float, float]  # name, start and end in microseconds, of one thread

_NESTED: tuple[Sequence[Event], ...] = (
    [("step", 0, 100), ("linear", 10, 40), ("addmm", 15, 35), ("relu", 50, 60)],
    [("linear", 0, 30), ("addmm", 5, 25), ("copy_", 10, 15), ("linear", 40, 60), ("addmm", 45, 60)],
)


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
    """Compares the times by name with what people write, on nested calls and on a name that occurs twice."""
    given = [_times(ask(answer, list(events))) for events in _NESTED]
    for key, way in _SELF.items():
        if all(_same(times, way(events)) for times, events in zip(given, _NESTED, strict=True)):
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
            return "counted_twice" if key == "counted_twice_unclipped" else key
    for value, case in zip(given, _KERNELS, strict=True):
        if not math.isclose(value, right := _IDLE[None](*case), abs_tol=1e-6):
            kernels, low, high = case
            raise NotRight(
                f"With kernels {kernels} between {low} and {high} the GPU idles {right:g} µs, not {value:g}."
            )
    return None


# The places where the stream idles, each by the names that lead there, and what else people name.
_PLACES: Mapping[str, set[str]] = {
    "loading": {"enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"},
    "the number that is read": {"aten::item", "cudaStreamSynchronize", "print"},
    "short kernels": {"clip_gradients", "aten::linalg_vector_norm"},
}
_BUSY = {
    "forward",
    "backward",
    "aten::linear",
    "aten::to",
    "aten::scaled_dot_product_attention",
    "autograd::engine::evaluate_function",
    "Optimizer.step#AdamW.step",
    "aten::_fused_adamw_",
}


@exercise
def check_bottlenecks(answer: Any) -> str | None:
    """Looks which of the idle places the names lead to."""
    names = [str(name) for name in listed(answer)]
    known = {span.text for span in planted().lanes[CPU]}
    for name in names:
        if name not in known:
            raise NotRight(f"No event of the CPU is called {name!r}: copy the name from the list.")
    if any(name in _BUSY for name in names):
        return "busy"
    if any(name.startswith("cudaDevice") or name.startswith("cudaEvent") for name in names):
        return "queue_was_full"
    if any(name.startswith("ProfilerStep") for name in names):
        return "whole_step"
    found = [place for place, those in _PLACES.items() if those & set(names)]
    if len(found) < len(names):
        return "same_place"
    if len(found) < len(_PLACES):
        raise NotRight(f"That is right for {' and '.join(found) or 'none'}; there are three places.")
    return None
