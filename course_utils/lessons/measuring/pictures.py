"""What the lesson draws to scale: where the time of a step goes, and who waits for whom."""

from __future__ import annotations

from course_utils.results.comparison import Case, Comparison
from course_utils.results.store import recorded
from course_utils.results.sweep import Sweep
from course_utils.show.formats import format_seconds
from course_utils.show.timeline import Span, Timeline, timeline

_PARTS = 2  # in which a GPU's work is drawn: a record holds its sum, and a phone has room for two
_COLOURS = {"GPU": "green", "CPU": "blue", "Python": "ochre", "waits": "grey"}
_PUT_TOGETHER = f"a step's many kernels: {_PARTS} bars"
_GPU, _ALL, _ONE = "the GPU", "all CPU threads", "one CPU thread"


def where_time_goes(steps: Sweep) -> Timeline:
    """A bar a step: the GPU's own work, then what it waits, beside the quicker CPU case; without a GPU, both."""
    panels, said, spreads = {}, [], []
    for point in steps:
        cases = [point.comparison[label] for label in (_ONE, _ALL)]
        if _GPU in point.comparison.labels:
            cases = [point.comparison[_GPU], min(cases, key=lambda case: case.median_s)]
        panels[f"width {point.value:,}"] = {_lane(case): _parts(case) for case in cases}
        said.append(f"At width {point.value:,}, {_in_words(*cases)}.")
        spreads.append(f"all readings at {point.value:,}: {', '.join(map(_spread, cases))}")
    alt = "; ".join(f"{panel}: {', '.join(lanes)}" for panel, lanes in panels.items())
    stamp = steps.stamp("medians", *spreads, _PUT_TOGETHER if cases[0].label == _GPU else "")
    return timeline(f"{said[0]} {said[-1]}", panels, _COLOURS, f"{alt}.", warning=_busy(steps), **stamp)


def _busy(steps: Sweep) -> str:
    return next(filter(None, [steps.busy, *(point.comparison.busy for point in steps)]), "")


def _spread(case: Case) -> str:
    low, high = map(format_seconds, (min(case.measurement.elapsed_s), max(case.measurement.elapsed_s)))
    return f"{case.label} {low} to {high}"


def _took(case: Case) -> str:
    return format_seconds(case.median_s)


def _lane(case: Case) -> str:
    return f"{case.label}, " + _took(case).replace(" ", "\u00a0")  # a number and its unit stay on one line


def _parts(case: Case) -> list[Span]:
    """One span for a CPU; for a GPU its work, and what it waits."""
    own_s = case.measurement.queued_ahead_s
    if own_s is None:
        return [Span(0.0, case.median_s, "waits" if case.label == _GPU else "CPU", "works")]
    return _by_turns(min(own_s, case.median_s), case.median_s)


def _by_turns(own_s: float, whole_s: float) -> list[Span]:
    """A GPU that waits for what Python queues, and works, in equal parts."""
    part_s, waits_s = whole_s / _PARTS, (whole_s - own_s) / _PARTS
    starts = [part_s * n for n in range(_PARTS)]
    waits = [Span(start_s, start_s + waits_s, "waits", "waits") for start_s in starts]
    return waits + [Span(start_s + waits_s, start_s + part_s, "GPU") for start_s in starts]


def _in_words(first: Case, every: Case) -> str:
    own_s = first.measurement.queued_ahead_s
    if first.label == _GPU:
        return f"the GPU works for {'?' if own_s is None else format_seconds(own_s)} of {_took(first)}"
    return f"one thread takes {_took(first)} and all take {_took(every)}"


def few_and_more(price: Comparison) -> str:
    """What a hundred times as many numbers cost, as a sentence."""
    few, more = price["100 numbers"], price["10,000 numbers"]
    return (
        f"One wait for {few.measurement.calls} calls: 100 numbers take {_took(few)} a call, 100 times as many "
        f"{_took(more)}. You pay the call's fixed price; a kernel has one, too."
    )


def who_waits() -> Timeline:
    """The H200 and its Python: the lesson's first operation, called in a row, and the narrowest step."""
    price, steps = (recorded(f"measuring/{name}", machine="nvidia-h200") for name in ("fixed_price", "training_step"))
    double, step = price["100,000,000 numbers"].measurement, steps[16][_GPU].measurement
    calls, call_s, each_s = double.calls, double.enqueue_median_s, double.median_s
    queues_s, step_s, own_s = step.enqueue_median_s, step.median_s, step.queued_ahead_s
    call, each, queues, own = map(format_seconds, (call_s, each_s, queues_s, own_s))
    panels = {
        f"100 million numbers doubled, {calls} calls in a row": {
            "Python": [
                Span(0.0, calls * call_s, "Python", "queues"),
                Span(calls * call_s, calls * each_s, "waits", "waits for the GPU"),
            ],
            "GPU": [Span(call_s, calls * each_s, "GPU", f"works for {calls} × {each}")],
        },
        "one training step of width 16": {
            "Python": [Span(0.0, queues_s, "Python", f"queues for {queues}")],
            "GPU": _by_turns(own_s, step_s),
        },
    }
    says = f"A doubling takes Python {call} and the GPU {each}. The step takes Python {queues} and the GPU {own}."
    alt = f"{calls} doublings: Python queues, then waits. The step: the GPU waits for what Python queues, and works."
    stamp = steps.stamp("medians", _PUT_TOGETHER) | {"title": f"{price.name}, {steps.name}"}
    return timeline(says, panels, _COLOURS, alt, **stamp)
