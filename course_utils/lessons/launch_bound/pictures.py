"""The lesson's pictures: steps as lanes, to scale, and what a step calls."""

from __future__ import annotations

from course_utils import recorded
from course_utils.results.table import Table
from course_utils.show.formats import format_seconds
from course_utils.show.timeline import Span, Timeline, timeline

_GPU = "nvidia-h200"
_PARTS = 3  # in which a GPU's work is drawn: a record holds its sum
_COLOURS = {"Python": "blue", "GPU": "green", "waits": ""}


def lanes(*steps: tuple[str, str]) -> Timeline:
    """Python and the GPU in some steps; the first two are those that are compared."""
    record, panels = recorded("mixed_precision/baseline", machine=_GPU), {}
    cases = {(step, precision): record[step][precision].measurement for step, precision in steps}
    for (step, precision), case in cases.items():
        queues_s, own_s, whole_s = case.enqueue_median_s, case.queued_ahead_s, case.median_s
        python, gpu = [Span(0.0, queues_s, "Python", f"queues for {format_seconds(queues_s)}")], []
        if queues_s < 0.95 * whole_s:
            python.append(Span(queues_s, whole_s, "waits", "waits"))
        parts = 1 if own_s > 0.95 * whole_s else _PARTS
        for number in range(parts):  # what Python queues comes before what the GPU does
            end_s = whole_s * (number + 1) / parts
            gpu.append(Span(end_s - min(own_s, whole_s) / parts, end_s, "GPU", "works"))
        title = f"{step.capitalize()}, {precision}: {format_seconds(whole_s)}"
        panels[title] = {"Python": python, f"GPU, {format_seconds(own_s)}": gpu}
    old, new = [*cases.values()][:2]
    says = f"If only the GPU counted, bf16 would be {old.median_s / new.queued_ahead_s:.3g} times as fast. "
    says += f"It is {old.median_s / new.median_s:.3g} times: now Python is the slower one."
    alt = "TF32: Python has queued the step early, and waits. bf16: Python queues throughout, and the GPU has gaps."
    low, high = (format_seconds(end(new.elapsed_s)) for end in (min, max))
    note = f"medians; bf16, wide: {len(new.elapsed_s)} runs of {low} to {high}. Where the gaps lie is not recorded"
    return timeline(says, panels, _COLOURS, alt, **record.stamp(note))


def how_many(calls: Table) -> str:
    """What a step calls, what autocast adds, and what a fused optimizer saves."""
    plain, bf16, fused = (calls[step]["calls"] for step in calls.labels)
    return f"A step makes {plain} calls. Autocast adds {bf16 - plain} casts. `fused` saves {bf16 - fused} calls."
