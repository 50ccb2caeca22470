"""Checks of the lesson: which entry of a plan comes first, what a bound leaves, and what a trace lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from course_utils.lessons.answers import UNKNOWN, NotRight, ask, exercise, listed, number, recognise

Entry = Mapping[str, Any]
Event = Mapping[str, Any]


def _entry(change: str, saves: float | None, known: str, low: float | None = None, of: str = "a step") -> Entry:
    return {"change": change, "saves": saves, "known": known, "low": low, "of": of}


# In each, the largest number is no tried one of a step, and the largest tried one is not the surest.
_PLANS: tuple[Sequence[Entry], ...] = (
    [
        _entry("free what is kept", 0.60, "tried", 0.60, "the peak"),
        _entry("load with workers", 0.50, "at most"),
        _entry("compile the model", 0.30, "tried", 0.02),
        _entry("fuse the optimizer", 0.20, "tried", 0.15),
        _entry("freeze the teacher", 0.05, "tried", 0.049),
        _entry("look at the lanes", None, "at most"),
    ],
    [
        _entry("switch anomaly detection off", 0.11, "tried", 0.09),
        _entry("look at the lanes", None, "at most"),
        _entry("use channels_last", 0.12, "tried", 0.04),
        _entry("read the loss less often", 0.40, "at most"),
        _entry("use expandable segments", 0.30, "tried", 0.30, "the peak"),
    ],
    # The widest interval may have the largest low end.
    [
        _entry("copy from pinned memory", 0.10, "tried", 0.09),
        _entry("take the hooks off", 0.50, "tried", 0.20),
        _entry("load with workers", 0.60, "at most"),
        _entry("leave out a forward pass", 0.22, "tried", 0.19),
    ],
)


def _of_a_step(plan: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in plan if entry["of"] == "a step"]


def _most(plan: Iterable[Entry], what: str) -> str:
    return max(plan, key=lambda entry: -1.0 if entry[what] is None else entry[what])["change"]


_CHOICES: Mapping[str | None, Callable[[Sequence[Entry]], str]] = {
    None: lambda plan: _most(_of_a_step(plan), "low"),
    "first": lambda plan: plan[0]["change"],
    "another_thing": lambda plan: _most(plan, "low"),
    "largest": lambda plan: _most(plan, "saves"),
    "a_bound": lambda plan: _most(_of_a_step(plan), "saves"),
    "not_its_low_end": lambda plan: _most([e for e in _of_a_step(plan) if e["known"] == "tried"], "saves"),
}


@exercise
def check_surest(answer: Any) -> str | None:
    """Hands out three plans, and compares the entry that is chosen of each with what people choose."""
    given = [ask(answer, [dict(entry) for entry in plan]) for plan in _PLANS]
    for value, plan in zip(given, _PLANS, strict=True):
        if value not in [entry["change"] for entry in plan]:
            raise NotRight(f"Return the `change` of one entry, a text of the plan; you return {value!r}.")
    for key, way in _CHOICES.items():
        if given == [way(plan) for plan in _PLANS]:
            return key
    raise NotRight(
        f"Of one plan you choose {given[0]!r}. Which of the entries about a step were tried, and how much does each "
        "save at the very least?"
    )


# Seconds of a batch: its loading and its computing; and workers.
_LOOPS = ((0.016, 0.02, 1), (0.06, 0.02, 2), (0.09, 0.01, 3), (0.03, 0.02, 3))
_SHARES: Mapping[str | None, Callable[[float, float, int], float]] = {
    None: lambda load, compute, workers: 1 - max(compute, load / workers) / (load + compute),
    "bound": lambda load, compute, workers: load / (load + compute),
    "no_overlap": lambda load, compute, workers: 1 - (compute + load / workers) / (load + compute),
    "one_worker": lambda load, compute, workers: 1 - max(compute, load) / (load + compute),
    "seconds": lambda load, compute, workers: load + compute - max(compute, load / workers),
    "percent": lambda load, compute, workers: 100 - 100 * max(compute, load / workers) / (load + compute),
    "what_is_left": lambda load, compute, workers: max(compute, load / workers) / (load + compute),
}


@exercise
def check_saved_share(answer: Any) -> str | None:
    """Compares with the shares that people work out, for loops where computing or loading is the limit."""
    given = [number(ask(answer, *loop), "A share from 0 to 1") for loop in _LOOPS]
    key = recognise(given, _SHARES, _LOOPS)
    if key != UNKNOWN:
        return key
    load, compute, workers = _LOOPS[1]
    right = _SHARES[None](load, compute, workers)
    raise NotRight(
        f"With {load} s to load, {compute} s to compute and {workers} workers you return {given[1]:.3g}, and "
        f"{right:.3g} is saved. How long is a step then, if loading and computing run side by side?"
    )


def _event(cat: str, name: str) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "ts": 10.0, "dur": 5.0}


_CPU = [_event("cpu_op", "aten::mm"), _event("cuda_runtime", "cudaLaunchKernel")]
_METADATA = {"ph": "M", "name": "process_name", "args": {"name": "ProfilerStep"}}
# Events of a trace, and what it has: steps, and the GPU's own events.
_TRACES: tuple[tuple[Sequence[Event], bool, bool], ...] = (
    ([*_CPU, _event("kernel", "gemm"), _event("user_annotation", "ProfilerStep#3")], True, True),
    ([*_CPU, _event("kernel", "gemm")], False, True),
    ([*_CPU, _METADATA, _event("user_annotation", "ProfilerStep#10")], True, False),
    ([*_CPU, _METADATA, _event("user_annotation", "forward")], False, False),
    # Fills are the GPU's work, and so is nothing else here; a step has its number.
    ([*_CPU, _event("gpu_memset", "Memset"), _event("user_annotation", "ProfilerStep")], False, True),
    # Copies are the GPU's work as well, and a name that only speaks of a step is none.
    ([*_CPU, _event("gpu_memcpy", "Memcpy HtoD"), _event("user_annotation", "after ProfilerStep#2")], False, True),
    # An annotation of the GPU's is no work of its own.
    ([*_CPU, _event("gpu_user_annotation", "ProfilerStep#5")], True, False),
)


def _lacks(
    events: Sequence[Event],
    is_step: Callable[[str], bool] = lambda name: name.startswith("ProfilerStep#"),
    is_gpus: Callable[[str], bool] = lambda cat: cat in ("kernel", "gpu_memcpy", "gpu_memset"),
) -> set[str]:
    steps = any(is_step(event["name"]) for event in events)
    kernels = any(is_gpus(event.get("cat", "")) for event in events)
    return {what for what, there in (("steps", steps), ("kernels", kernels)) if not there}


_READINGS: Mapping[str | None, Callable[[Sequence[Event]], set[str]]] = {
    None: _lacks,
    "exact_name": lambda events: _lacks(events, is_step="ProfilerStep".__eq__),
    "named_so": lambda events: _lacks(events, is_step=lambda name: "ProfilerStep" in name),
    "kernels_alone": lambda events: _lacks(events, is_gpus="kernel".__eq__),
    "launches": lambda events: _lacks(
        events, is_gpus=lambda cat: cat in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime")
    ),
    "annotations": lambda events: _lacks(events, is_gpus=lambda cat: cat == "kernel" or cat.startswith("gpu_")),
    "what_is_there": lambda events: {"steps", "kernels"} - _lacks(events),
}


@exercise
def check_missing(answer: Any) -> str | None:
    """Hands out events of seven small traces, with and without steps and kernels."""
    given = []
    for events, *_ in _TRACES:
        value = ask(answer, [dict(event) for event in events])
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise NotRight(f"Return a set, such as {{'steps'}}; you return {type(value).__name__}.")
        given.append(set(listed(value, at_most=10)))
    for key, way in _READINGS.items():
        if given == [way(events) for events, *_ in _TRACES]:
            return key
    wrong = next(n for n, (events, *_) in enumerate(_TRACES) if given[n] != _lacks(events))
    names = ", ".join(f"{event.get('cat', 'no cat')} {event['name']!r}" for event in _TRACES[wrong][0])
    raise NotRight(
        f"For a trace with the events {names} you say {sorted(given[wrong])}. Which of them marks a step, and which is "
        "work of the GPU's?"
    )
