"""What the lesson shows: who copies in each call, and whose time a call takes, to scale."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from course_utils.lessons.flatten_parameters.stand_in import EIGHT
from course_utils.results.comparison import Comparison
from course_utils.results.measurement import Measurement
from course_utils.results.sweep import Sweep
from course_utils.results.table import Table
from course_utils.show.cards import Card
from course_utils.show.formats import format_seconds, listed
from course_utils.show.tables import Column, Grid
from course_utils.show.timeline import Span, Timeline, timeline

_WHOLE = "GPU and CPU, not taken apart"
_COLOURS = {"GPU, flat": "green", "GPU, more": "orange", "CPU, flat": "grey", "CPU, more": "blue", _WHOLE: "purple"}


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
    """The GPU's own work, then its waiting, where both were queued ahead: between events, the CPU's gaps are in it."""
    if None in (flat.prequeued_s, call.prequeued_s):
        return [Span(0, call.median_s, _WHOLE, format_seconds(call.median_s))]
    own_s, idle_s = flat.prequeued_s, flat.median_s - flat.prequeued_s
    more_s, waits_s = call.prequeued_s - own_s, call.median_s - call.prequeued_s
    parts = own_s, more_s, min(idle_s, waits_s), max(waits_s - idle_s, 0.0)
    drawn = zip(_COLOURS, parts, accumulate(parts), strict=False)
    return [Span(end - part, end, what, format_seconds(part)) for what, part, end in drawn if part > 1e-6]


def bars(sweep: Sweep, unit: str = "units") -> Timeline:
    """A call of a flat and of a deepcopied LSTM, to scale: the GPU's work and its waiting, where these are known."""
    panels, lost = {}, []
    for point in sweep:
        flat, copied = (point.comparison[way].measurement for way in ("flat", "scattered"))
        at, own_s = f"{point.value:,} {unit}", [flat.prequeued_s, copied.prequeued_s]
        lanes = {"flat": flat, "copied": copied}.items()
        panels[at] = {f"{name}, {format_seconds(call.median_s)}": _lane(flat, call) for name, call in lanes}
        gpu = "" if None in own_s else f" (the GPU: {format_seconds(own_s[1] - own_s[0])})"
        lost.append(f"{format_seconds(copied.median_s - flat.median_s)} at {at}{gpu}")
    says = f"After deepcopy, a call loses {listed(lost)}."
    return timeline(says, panels, _COLOURS, says, True, **sweep.stamp("medians. CPU: the GPU waits for it"))


def smallest(sweep: Sweep) -> Comparison:
    """The first size's card; that of all sizes calls a time between events the GPU's own work, too."""
    point = sweep.points[0]
    says = f"At {point.value:,} units, {point.comparison['scattered'].words}"
    return replace(point.comparison, name=sweep.name, whose=sweep.whose, notes=sweep.notes, says=says)
