"""The picture of the lesson: where a step's time goes, at each reading."""

from __future__ import annotations

from itertools import accumulate

from course_utils.lessons.your_own_program.cases import PARTS
from course_utils.results.table import Table
from course_utils.show.formats import format_percent, format_seconds
from course_utils.show.timeline import Span, Timeline, timeline

STATES = "as it was", "anomaly mode off", "and 2 workers", "and AdamW fused"
COLOURS = {"data": "ochre", "forward": "blue", "backward": "purple", "optimizer": "orange"}
WORDS = {"data": "data", "forward": "forward", "backward": "back", "optimizer": "opt"}


def where_the_time_goes(readings: Table) -> Timeline:
    """A lane for each reading, from the table that `cases.readings` makes."""
    lanes, words = {}, []
    for state, row in zip(STATES, readings, strict=True):
        ends = list(accumulate(row[part] for part in PARTS))
        lanes[state] = [Span(end - row[part], end, part, WORDS[part]) for part, end in zip(PARTS, ends, strict=True)]
        words.append(f"{state}: " + ", ".join(f"{part} {format_seconds(row[part])}" for part in PARTS))
    first, second, *_ = readings
    shares = [format_percent(row["data"] / row["a step"]) for row in (first, second)]
    return timeline(
        f"The wait for data stays {format_seconds(second['data'])}: {shares[0]} of the first step, {shares[1]} of the "
        "second.",
        {"": lanes},
        COLOURS,
        alt=f"One lane for each reading of the step, with its parts to scale: {'; '.join(words)}.",
        **readings.stamp(),
    )
