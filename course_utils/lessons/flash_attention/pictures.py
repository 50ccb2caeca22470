"""What the lesson shows: time beside memory, what storing the scores costs, and the GPU's own time by kernel."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from course_utils.records.kinds.comparison import Case, Comparison
from course_utils.records.kinds.measurement import bytes_text
from course_utils.records.kinds.sweep import Sweep
from course_utils.records.kinds.table import Table
from course_utils.show.cards import Card
from course_utils.show.formats import format_seconds, listed, three_digits
from course_utils.show.lanes import Span
from course_utils.show.tables import Column, Grid
from course_utils.show.timeline import Timeline, timeline

STORED = {"cudnn": "no scores in memory", "by hand": "scores in memory", "math": "scores in memory, in float32"}


def with_memory(detours: Comparison) -> Card:
    """The comparison's card, and beside each time the memory that the call needs beyond its inputs."""
    card = detours.card()
    memory = [bytes_text(case.measurement.peak_allocated_bytes) for case in detours]
    rows = tuple(replace(row, second=text) for row, text in zip(card.rows, memory, strict=True))
    return replace(card, rows=rows, second="extra memory")


def dearest(detours: Comparison, label: str) -> str:
    """What a card says of the dearest of some calls: its time and its memory against the first."""
    case, first = detours[label], next(iter(detours))
    memory = case.measurement.peak_allocated_bytes / first.measurement.peak_allocated_bytes
    return f"One missing dimension: {case.ratio:.0f} times as long, with {memory:.0f} times the memory."


def who_served(fallbacks: Table) -> str:
    """How many of the calls each kernel served, and which were left to math."""
    counts = Counter(row["kernel"] for row in fallbacks)
    served = listed(f"{count} ran {kernel}" for kernel, count in counts.most_common())
    slow = listed(row["call"] for row in fallbacks if row["kernel"] == "math")
    return f"Of {len(fallbacks.rows)} calls, {served}: {slow}."


def own_s(case: Case) -> float:
    """What a call takes of the GPU alone; on a CPU, the whole call."""
    return case.measurement.queued_ahead_s or case.median_s


def by_length(forward: Sweep, training: Sweep) -> Card:
    """The GPU's own time of each kernel at each length; the whole call's where there is no GPU."""
    points = [(f"forward {point.value}", point.comparison) for point in forward]
    points += [(f"train {point.value}", point.comparison) for point in training]
    leads = {min(comparison, key=own_s).label for _, comparison in points}
    last, longest = points[-1]
    whose = "GPU's own" if longest.cases[0].queued_ahead_s else "CPU's"
    more = own_s(longest[longest.baseline]) / min(map(own_s, longest))
    says = f"Of the {whose} time, {' or '.join(sorted(leads))} needs least; by hand, {more:.1f} times that ({last})."
    names = [name for name in longest.labels if name != "flex"]  # training has no math
    table = [Column(head, tuple(three_digits(1e6 * own_s(each[name])) for name in names)) for head, each in points]
    return Card(says, table=Grid("", (Column("µs", names, numeric=False), *table)), **forward.stamp())


def scores_stored(forward: Sweep, length: int = 4096) -> Timeline:
    """What a forward pass takes that stores no scores, stores them in 16 bits, and in float32: to scale."""
    took = {name: own_s(forward[length][name]) for name in STORED}
    words, end = {name: f"{format_seconds(took[name])}: {STORED[name]}" for name in STORED}, took["math"]
    lanes = {name: [Span(0.0, took[name], name), Span(took[name], end, "words", words[name])] for name in STORED}
    lanes["math"] = [Span(0.0, end, "math", words["math"])]
    scores, wide = took["by hand"] / took["cudnn"], end / took["by hand"]
    says = f"Scores in memory: {scores:.1f} times cuDNN's time. In float32: another {wide:.1f} times."
    alt = listed(f"{name} {format_seconds(took[name])} ({STORED[name]})" for name in STORED)
    colours = {"cudnn": "green", "by hand": "orange", "math": "purple", "words": ""}
    size = f"the GPU's own time, {length} positions, 16 heads of 128, not causal"
    return timeline(says, {"": lanes}, colours, f"Forward over {length} positions: {alt}.", **forward.stamp(size))
