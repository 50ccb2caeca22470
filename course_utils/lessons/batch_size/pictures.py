"""What the lesson shows: the time to the target, as a card and to scale."""

from __future__ import annotations

from course_utils.lessons.batch_size.cases import BATCHES
from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.table import Table
from course_utils.show.cards import Card
from course_utils.show.formats import format_ratio, format_seconds, listed, three_digits
from course_utils.show.tables import Column, Grid
from course_utils.show.timeline import Span, Timeline, timeline

_COLOURS = {"GPU works": "green", "GPU waits for Python": "grey"}


def _ways(needed: Table, speed: Comparison) -> list[tuple[str, float, float, float, float | None]]:
    """By size, the largest first: its name, steps, samples a second, seconds, and of these the GPU's own work."""
    found = []
    for batch in reversed(BATCHES):
        run, name = speed[f"batch {batch}"].measurement, f"batch {batch:,}"
        share, ahead_s = (steps := needed[name]["steps"]) * batch / run.items, run.queued_ahead_s
        found.append((name, steps, run.rate("items"), share * run.median_s, ahead_s and share * ahead_s))
    return found


def to_target(needed: Table, speed: Comparison) -> Card:
    """When each size is at the target: steps that were counted, times the seconds of a step that were measured."""
    names, steps, per_s, times, _ = zip(*_ways(needed, speed), strict=True)
    columns = (Column("batch", tuple(f"{batch:,}" for batch in reversed(BATCHES)), numeric=False),)
    columns += (Column("steps", tuple(f"{each:g}" for each in steps)),)
    columns += (Column("samples/s", tuple(f"{three_digits(each / 1e3)}k" for each in per_s)),)
    columns += (Column("ms", tuple(three_digits(1e3 * each) for each in times)),)
    runs = (list(map(float, needed[x]["steps of each seed"].replace("none", "inf").split(", "))) for x in names)
    spread = [[1e3 * f(run) * n / r for f in (min, max)] for run, n, r in zip(runs, BATCHES[::-1], per_s, strict=True)]
    columns += (Column("by seed", tuple("{:.0f}–{:.0f}".format(*each) for each in spread)),)
    told = "sooner" if spread[0][1] < spread[2][0] else "later" if spread[0][0] > spread[2][1] else "too close to call"
    more, best, (large, _, small, _) = per_s[0] / per_s[2], names[times.index(min(times))], map(format_seconds, times)
    says = f"Batch 1,024 does {format_ratio(more)} times the samples a second of 64, and takes {large} to its {small}: "
    says += f"{told}. {best.capitalize()} has the best median."
    return Card(says, table=Grid("", columns), **speed.stamp(f"steps counted on: {needed.who}"))


def on_whose_time(needed: Table, speed: Comparison) -> Timeline:
    """The time to the target: what of it the GPU works, and what it waits for Python."""
    lanes = {}
    for name, _, _, time_s, own_s in reversed(_ways(needed, speed)):
        if own_s is not None:
            works = Span(0.0, own_s, "GPU works", format_seconds(own_s))
            lane = f"{name}, " + format_seconds(time_s).replace(" ", "\u00a0")
            lanes[lane] = works, Span(own_s, time_s, "GPU waits for Python", "waits")
    said = listed(f"{works.text} with {lane.rpartition(',')[0]}" for lane, (works, _) in lanes.items())
    says, alt = f"The GPU works for {said}. The rest it waits for Python.", f"{listed(lanes)}."
    return timeline(says, {"": lanes}, _COLOURS, alt, **speed.stamp("each wait drawn in one piece"))
