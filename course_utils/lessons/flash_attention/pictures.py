"""What the lesson shows: time beside memory, where by hand's time goes, and the GPU's own time by kernel."""

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

# NVIDIA's data sheet of the H200 SXM, 2024: 16-bit tensor cores without sparsity, and memory bandwidth.
PEAK_FLOPS, PEAK_BYTES_S = 989e12, 4.8e12


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
    names = longest.labels  # training has no math
    table = [Column(head, tuple(three_digits(1e6 * own_s(each[name])) for name in names)) for head, each in points]
    return Card(says, table=Grid("", (Column("µs", names, numeric=False), *table)), **forward.stamp())


def floors(forward: Sweep, length: int = 4096, heads: int = 16, head_size: int = 128) -> Timeline:
    """Where a forward pass has to spend its time at the least, and what it took, to scale."""
    products_s = 4 * heads * length**2 * head_size / PEAK_FLOPS
    moving_s = 4 * 2 * heads * length**2 / PEAK_BYTES_S  # scores and weights, each written and read once, in 16 bits
    lanes = {}
    for name in ("by hand", "flash", "cudnn"):
        spans = [Span(0.0, products_s, "products", "products")]
        if name == "by hand":
            spans.append(Span(products_s, products_s + moving_s, "scores", "scores to memory and back"))
        lanes[name] = [*spans, Span(spans[-1].end_s, own_s(forward[length][name]), "rest", "the rest")]
    took = {name: format_seconds(own_s(forward[length][name])) for name in lanes}
    says = (
        f"By the data sheet, moving the scores takes {format_seconds(moving_s)}; cuDNN's kernel took {took['cudnn']}."
    )
    alt = listed(f"{name} {time}" for name, time in took.items())
    floor = f"products, scores: by the data sheet's {PEAK_FLOPS / 1e12:.0f} TFLOP/s and {PEAK_BYTES_S / 1e12:.1f} TB/s"
    colours = {"products": "green", "scores": "orange", "rest": "grey"}
    return timeline(says, {"": lanes}, colours, f"Forward over {length} positions: {alt}.", **forward.stamp(floor))
