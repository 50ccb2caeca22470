"""What the lesson draws to scale: where the time of a step goes, and who waits for whom."""

from __future__ import annotations

from course_utils.records.kinds.comparison import Case, Comparison
from course_utils.records.kinds.sweep import Sweep
from course_utils.records.store import recorded
from course_utils.show.formats import format_seconds
from course_utils.show.timeline import Span, Timeline, timeline

_COLOURS = {"GPU": "green", "CPU": "blue", "Python": "ochre", "waits": "grey"}
_GPU, _ALL, _ONE = "the GPU", "all CPU threads", "one CPU thread"


def where_time_goes(steps: Sweep) -> Timeline:
    """A bar a step: the GPU's own work, then what it waits, beside all CPU threads; one of them without a GPU."""
    labels = (_GPU, _ALL) if _GPU in steps.points[0].comparison.labels else (_ONE, _ALL)
    panels, said = {}, []
    for point in steps:
        cases = [point.comparison[label] for label in labels]
        panels[f"width {point.value:,}"] = {_lane(case): _parts(case) for case in cases}
        said.append(f"At width {point.value:,}, {_in_words(*cases)}.")
    alt = "; ".join(f"{panel}: {', '.join(lanes)}" for panel, lanes in panels.items())
    return timeline(
        f"{said[0]} {said[-1]}", panels, _COLOURS, f"{alt}.", warning=_busy(steps), **steps.stamp("medians")
    )


def _busy(steps: Sweep) -> str:
    return next(filter(None, [steps.busy, *(point.comparison.busy for point in steps)]), "")


def _took(case: Case) -> str:
    return format_seconds(case.median_s)


def _lane(case: Case) -> str:
    return f"{case.label}, " + _took(case).replace(" ", "\u00a0")  # a number and its unit stay on one line


def _parts(case: Case) -> list[Span]:
    """One span for a CPU; for a GPU its own work, put together, and the rest."""
    own_s = case.measurement.queued_ahead_s
    if own_s is None:
        return [Span(0.0, case.median_s, "waits" if case.label == _GPU else "CPU", "works")]
    own_s, waits = min(own_s, case.median_s), "waits for Python" if case.measurement.launch_bound else ""
    return [Span(0.0, own_s, "GPU", "works"), Span(own_s, case.median_s, "waits", waits)]


def _in_words(first: Case, every: Case) -> str:
    own_s = first.measurement.queued_ahead_s
    if first.label == _GPU:
        return f"the GPU works for {'?' if own_s is None else format_seconds(own_s)} of {_took(first)}"
    return f"one thread takes {_took(first)} and all take {_took(every)}"


def few_and_more(price: Comparison) -> str:
    """What a hundred times as many numbers cost, as a sentence."""
    few, more = price["100 numbers"], price["10,000 numbers"]
    return f"100 numbers take {_took(few)}, 100 times as many {_took(more)}: that is Python's time."


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
            "GPU": [
                Span(0.0, step_s - own_s, "waits", "waits for Python"),
                Span(step_s - own_s, step_s, "GPU", "works"),
            ],
        },
    }
    says = f"A doubling takes Python {call} and the GPU {each}. The step takes Python {queues} and the GPU {own}."
    stamp = steps.stamp("medians", "a step's work is put together") | {"title": f"{price.name}, {steps.name}"}
    return timeline(says, panels, _COLOURS, says, **stamp)
