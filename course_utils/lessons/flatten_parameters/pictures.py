"""What the lesson shows: who copies in each call, whose time a call takes, to scale, and what a question costs."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from course_utils.lessons.flatten_parameters.cases import QUESTIONS
from course_utils.lessons.flatten_parameters.stand_in import EIGHT
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.kinds.sweep import Sweep
from course_utils.records.kinds.table import Table
from course_utils.show.cards import Card
from course_utils.show.formats import format_seconds, listed
from course_utils.show.tables import Column, Grid
from course_utils.show.timeline import Span, Timeline, timeline

_COLOURS = {"GPU, flat": "green", "GPU, more": "orange", "CPU, flat": "grey", "CPU, more": "blue"}


def copying(rules: Table) -> list[str]:
    """After which operations each call copies all weights: for this call alone, or by flattening them anew."""
    return [row["operation"] for row in rules if row["scattered in forward 2"] or row["called in forward 2"]]


def which_copy(rules: Table, on_gpu: Table | None = None) -> Card:
    says, columns = f"{len(copying(rules))} of 8 leave an LSTM that copies in each call.", {"copies": copying(rules)}
    if on_gpu is not None:
        head = f"PyTorch warns ({on_gpu.environment.short_name})"
        columns[head] = [name for name in EIGHT if on_gpu[name]["cuDNN warns"]]
        says += f" PyTorch warns of {len(columns[head])}."
    texts = {head: tuple("yes" if name in those else "no" for name in EIGHT) for head, those in columns.items()}
    table = Grid("", tuple(Column(head, cells, numeric=False) for head, cells in {"": (*EIGHT,), **texts}.items()))
    return replace(rules.card(), sentence=says, table=table)


def _lane(flat: Measurement, call: Measurement) -> list[Span]:
    """The parts of a call, the GPU's own work first, then its waiting; what is less than a microsecond is not drawn."""
    own_s, idle_s = flat.queued_ahead_s, flat.median_s - flat.queued_ahead_s
    more_s, waits_s = call.queued_ahead_s - own_s, call.median_s - call.queued_ahead_s
    parts = own_s, more_s, min(idle_s, waits_s), max(waits_s - idle_s, 0.0)
    drawn = zip(_COLOURS, parts, accumulate(parts), strict=True)
    return [Span(end - part, end, what, format_seconds(part)) for what, part, end in drawn if part > 1e-6]


def bars(lstm: Sweep) -> Timeline:
    """A call of a flat and of a deepcopied LSTM by size, to scale: the GPU's work, and its waiting for the CPU."""
    panels, lost = {}, []
    for point in lstm:
        flat, copied = (point.comparison[way].measurement for way in ("flat", "scattered"))
        panels[f"{point.value:,} units"] = {
            f"flat, {format_seconds(flat.median_s)}": _lane(flat, flat),
            f"copied, {format_seconds(copied.median_s)}": _lane(flat, copied),
        }
        more, gpu = copied.median_s - flat.median_s, copied.queued_ahead_s - flat.queued_ahead_s
        lost.append(f"{format_seconds(more)} at {point.value:,} units (the GPU: {format_seconds(gpu)})")
    says = f"After deepcopy, a call loses {listed(lost)}."
    return timeline(says, panels, _COLOURS, says, True, **lstm.stamp("medians. CPU: the GPU waits for it"))


def questions(tiny: Sweep) -> str:
    words = []
    for point in tiny:
        flat, copied = (point.comparison[way].measurement for way in ("flat", "scattered"))
        more = format_seconds(copied.enqueue_median_s - flat.enqueue_median_s)
        words.append(f"{more} for {QUESTIONS[point.value]:,} questions ({point.value})")
    return f"CPU, more: {listed(words)}."
