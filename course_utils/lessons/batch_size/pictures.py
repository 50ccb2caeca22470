"""What the lesson shows: who is at the target first, as a card, and whose time it is, to scale."""

from __future__ import annotations

from statistics import median

from course_utils.lessons.batch_size.cases import BATCHES
from course_utils.results.comparison import Comparison
from course_utils.results.table import Table
from course_utils.show.cards import Card
from course_utils.show.formats import format_ratio, format_seconds, listed
from course_utils.show.tables import Column, Grid
from course_utils.show.timeline import Span, Timeline, timeline

_COLOURS = {"GPU works": "green", "GPU waits for Python": "grey"}


def _ways(speed: Comparison) -> dict[str, list[float]]:
    """Seconds a sample in batches of 64, 256 and 1,024, by what they are the time of."""
    runs, place = [speed[f"batch {batch}"].measurement for batch in BATCHES[1:]], speed.measured_on
    waits = f"{place.device_name}, one thread" if place.device_kind == "cpu" else f"{place.short_name} with Python"
    times = {f"{place.short_name}, its own work": [run.queued_ahead_s for run in runs]}
    times[waits] = [run.median_s for run in runs]
    return {where: [s / runs[0].items for s in each] for where, each in times.items() if None not in each}


def to_target(needed: Table, *speeds: Comparison) -> Card:
    """Which of 64 and 1,024 is at the target first: samples that were counted, over samples a second measured."""
    steps = [needed[f"batch {n:,}"]["steps of each seed"].replace("none", "inf").split(", ") for n in (64, 1024)]
    samples = [sorted(n * float(step) for step in each) for n, each in zip((64, 1024), steps, strict=True)]
    rows, more = [("", "samples/s grow", "batch 64", "batch 1,024", "first")], median(samples[1]) / median(samples[0])
    for where, (small_s, _, large_s) in (way for speed in speeds for way in _ways(speed).items()):
        small, large = runs = [small_s * n for n in samples[0]], [large_s * n for n in samples[1]]
        first = "64" if small[-1] < large[0] else "1,024" if large[-1] < small[0] else "too close to call"
        told = (f"{format_seconds(median(run))} ({1e3 * run[0]:.1f}–{1e3 * run[-1]:.1f})" for run in runs)
        rows.append((where, f"{format_ratio(small_s / large_s)}×", *told, first))
    columns = tuple(Column(head, tuple(cells), numeric=False) for head, *cells in zip(*rows, strict=True))
    won = [f"on {where}" for where, *_, first in rows if first == "1,024"] or ["nowhere"]
    says = f"Batch 1,024 needs {format_ratio(more)} times the samples of 64, and clearly wins {listed(won)}."
    stamp = speeds[-1].stamp("in brackets: ms by the steps of each seed", f"steps: {needed.who}")
    return Card(says, table=Grid("", columns), **stamp)


def on_whose_time(needed: Table, speed: Comparison) -> Timeline:
    """The time to the target: what of it the GPU works, and what it waits for Python."""
    lanes = {}
    for batch, *each_s in zip(BATCHES[1:], *_ways(speed).values(), strict=True):
        own_s, time_s = (s * needed[f"batch {batch:,}"]["samples"] for s in each_s)
        works = Span(0.0, own_s, "GPU works", format_seconds(own_s))
        lane = f"batch {batch:,}, " + format_seconds(time_s).replace(" ", "\u00a0")
        lanes[lane] = works, Span(own_s, time_s, "GPU waits for Python", "waits")
    said = listed(f"{works.text} with {lane.rpartition(',')[0]}" for lane, (works, _) in lanes.items())
    says, alt = f"The GPU works for {said}. The rest it waits for Python.", f"{listed(lanes)}."
    return timeline(says, {"": lanes}, _COLOURS, alt, **speed.stamp("each wait drawn in one piece"))
