"""What the lesson shows: time beside memory, who stores the scores, the kernel of each call, and time by length."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

from course_utils.results.comparison import Comparison
from course_utils.results.measurement import bytes_text
from course_utils.results.sweep import Sweep
from course_utils.results.table import Table
from course_utils.show.cards import Card
from course_utils.show.formats import format_seconds, listed, three_digits
from course_utils.show.tables import Column, Grid
from course_utils.show.timeline import Span, Timeline, timeline

_SCORES = {"by hand": "stores the scores", "math": "stores the scores in float32"}
# Calls that people meet; then those that no fast kernel takes, and what to write instead.
_MET = ("is_causal=True", "boolean mask", "fewer heads in k and v", "fewer heads, and a mask", "one query, many keys")
_INSTEAD = {
    "three dimensions": "q[None], then [0] of the result",
    "last dimension not contiguous": ".contiguous()",
    "k and v of batch 1": ".expand(len(q), -1, -1, -1)",
    "float64": "float32, or 16 bits",
}


def with_memory(detours: Comparison) -> Card:
    """The comparison's card, and beside each time the memory that the call needs beyond its inputs."""
    card = detours.card()
    memory = [bytes_text(case.measurement.peak_allocated_bytes) for case in detours]
    rows = tuple(replace(row, second=text) for row, text in zip(card.rows, memory, strict=True))
    return replace(card, rows=rows, second="extra memory")


def by_call(fallbacks: Table) -> Card:
    """The kernel of the calls that people meet, and of those that need a change, with it; all others folded."""
    rows = [fallbacks[call] for call in (*_MET, "float32", "dropout", *_INSTEAD)]
    fixes = (_INSTEAD.get(row["call"], "") if row["kernel"] == "math" else "" for row in rows)
    columns = [Column(head, tuple(row[head] for row in rows), numeric=False) for head in ("call", "kernel")]
    table = Grid("", (*columns, Column("write instead", tuple(fixes), numeric=False)))
    slow = sum(row["kernel"] == "math" for row in fallbacks)
    says = f"{slow} of {len(fallbacks.rows)} kinds of call ran math, without a warning."
    more = f"The other {len(fallbacks.rows) - len(rows)} ran a fast kernel: they are under All numbers."
    return replace(fallbacks.card(), sentence=says, table=table, notes=(more,))


def by_length(forward: Sweep, training: Sweep) -> Card:
    """The GPU's own time of each kernel at each length; the whole call's where that is not known."""
    sweeps = ("forward", forward), ("train", training)
    points = [(f"{what} {point.value}", point.comparison) for what, sweep in sweeps for point in sweep]
    names = [name for name in points[-1][1].labels if name != "flex"]  # training has no math
    alone = all(each[name].measurement.queued_ahead_s for _, each in points for name in names)
    took = attrgetter("measurement.queued_ahead_s" if alone else "median_s")
    more = listed(f"{took(each['by hand']) / min(took(each[name]) for name in names):.1f}" for _, each in points)
    says = f"By hand takes {more} times the fastest kernel's time, column by column."
    table = [Column(head, tuple(three_digits(1e6 * took(each[name])) for name in names)) for head, each in points]
    stamp = forward.stamp("the GPU's own time" if alone else "whole calls")
    return Card(says, table=Grid("", (Column("µs", tuple(names), numeric=False), *table)), **stamp)


def by_storage(forward: Sweep, length: int = 4096) -> Timeline:
    """What a forward pass takes of the GPU by kernels that store no scores, and by those that do: to scale."""
    names = ("cudnn", "flash", "efficient", *_SCORES)
    took = {name: forward[length][name].measurement.queued_ahead_s for name in names}
    words = {name: f"{format_seconds(took[name])} ({_SCORES.get(name, 'stores no scores')})" for name in names}
    end, lanes = took["math"], {}
    for name in names:
        bar = Span(0.0, took[name], "stored" if name in _SCORES else "not stored", words[name])
        lanes[name] = [bar, Span(took[name], end, "words", words[name])]
    more = took["efficient"] / took["cudnn"]
    says = f"No scores stored, yet efficient takes {more:.1f} times cudnn's time: kernels differ in more than storage."
    alt = listed(f"{name} {words[name]}" for name in names)
    colours = {"not stored": "green", "stored": "orange", "words": ""}
    size = f"the GPU's own time, {length} positions, 16 heads of 128, not causal"
    return timeline(says, {"": lanes}, colours, f"Forward over {length} positions: {alt}.", **forward.stamp(size))
