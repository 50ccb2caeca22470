"""What the lesson shows: who works in a step, to scale; where trainings end, as a slider; memory beside time."""

from __future__ import annotations

from dataclasses import replace

from course_utils.lessons.mixed_precision.cases import VOCABULARY
from course_utils.results.comparison import Comparison
from course_utils.results.measurement import bytes_text
from course_utils.results.sweep import Sweep
from course_utils.results.table import Table
from course_utils.show.cards import Axis, Bar, Card, Row, amount_axis
from course_utils.show.formats import format_seconds, listed
from course_utils.show.timeline import Span, Timeline, timeline
from course_utils.show.viewer import StoredView, slider


def ladders(steps: Sweep) -> Timeline:
    """What of each step the GPU works, and what it waits for Python; both ladders on one axis."""
    panels, works = {}, []
    for step in ("wide step", "narrow step"):
        lanes = {}
        for case in steps[step]:
            own_s, whole_s = case.measurement.queued_ahead_s, case.median_s
            bar = [Span(0.0, own_s, "GPU works", "works")]
            if own_s < 0.95 * whole_s:  # less is no wait that one could see
                bar.append(Span(own_s, whole_s, "GPU waits for Python", "waits"))
            lanes[f"{case.label}, {format_seconds(whole_s)}"] = bar
            works.append(f"{format_seconds(own_s)} of {step}, {case.label}, {format_seconds(whole_s)}")
        panels[step.capitalize()] = lanes
    fp32, bf16 = (format_seconds(steps["narrow step"][each].measurement.queued_ahead_s) for each in ("fp32", "bf16"))
    says = f"In the narrow step the GPU works {fp32} in fp32, {bf16} in bf16. The rest it waits for Python."
    alt, stamp = f"The GPU works: {listed(works)}.", steps.stamp("medians; each wait is drawn in one piece")
    colours = {"GPU works": "green", "GPU waits for Python": "grey"}
    return timeline(says, panels, colours, alt, legend=True, **stamp)


def by_tokens(trained: Table, at: int = 0) -> StoredView:
    """Where trainings end, by the number of tokens and classes in their loss: a slider over them."""
    over, *names = trained.columns
    ends = {row[over]: {name: row[name] for name in names if row[name] is not None} for row in trained}
    low, high = (end(loss for row in ends.values() for loss in row.values()) for end in (min, max))
    cards, axis = [], Axis(low, high, ((low, f"{low:.2f}"), (high, f"{high:.2f}")))
    stamp = trained.stamp("one seed; mean loss of the last 20 steps, nats per byte or word")
    for size, row in ends.items():
        fp32, gap = row["fp32"], row["fp16"] - row["fp32"]
        rows = tuple(Row(name, "", f"{to:.3f}", "", Bar(*sorted((to, fp32)), to)) for name, to in row.items())
        says = f"{size.replace(' × ', ' tokens, ')} classes: unscaled, fp16 ends at fp32's loss {gap:+.3f}."
        cards.append((size, Card(says, rows, axis, heads=("", "loss"), **stamp)))
    return slider(over, cards, replace(trained.card(), sentence=says), at)


def peaks(vocabulary: Comparison) -> Card:
    """What a step with many classes needs by precision, and what three tensors of its logits' size take."""
    peak = {case.label: case.measurement.peak_allocated_bytes for case in vocabulary}
    says = f"In {(last := vocabulary.labels[-1])} the step needs {peak[last] / peak['fp32']:.0%} of fp32's memory."
    peak["worked out: 3 × logits"] = 3 * 4 * VOCABULARY * vocabulary.parameters["tokens"]
    rows = tuple(Row(name, "", bytes_text(size), "", Bar(0.0, size, size)) for name, size in peak.items())
    axis = amount_axis(peak.values(), bytes_text)
    stamp = vocabulary.stamp(f"{VOCABULARY:,} classes, {vocabulary.parameters['tokens']:,} tokens")
    return Card(says, rows, axis, heads=("", "peak"), numbers=vocabulary.card().numbers, **stamp)
