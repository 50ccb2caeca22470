"""The picture of the lesson: where a step's time goes, at each reading."""

from __future__ import annotations

from itertools import accumulate

from course_utils.lessons.your_own_program.cases import PARTS
from course_utils.records.kinds.table import Table
from course_utils.show.formats import format_percent, format_seconds
from course_utils.show.timeline import Span, Timeline, timeline

STATES = "as it was", "anomaly mode off", "and 2 workers", "and AdamW fused"
COLOURS = {"data": "ochre", "forward": "blue", "backward": "purple", "optimizer": "orange"}
WORDS = {"data": "data", "forward": "forward", "backward": "back", "optimizer": "opt"}


def where_the_time_goes(readings: Table) -> Timeline:
    """A lane for each reading, from the table that `cases.readings` makes."""
    lanes = {}
    for state, row in zip(STATES, readings, strict=True):
        ends = list(accumulate(row[part] for part in PARTS))
        begins = [0.0, *ends[:-1]]
        lanes[state] = [
            Span(begin, end, part, WORDS[part]) for begin, end, part in zip(begins, ends, PARTS, strict=True)
        ]
    first, second, *_ = readings
    waits = [f"{format_percent(row['data'] / row['a step'])}" for row in (first, second)]
    return timeline(
        f"The wait for data stays {format_seconds(second['data'])}: {waits[0]} of the first step, {waits[1]} of the "
        "second.",
        {"": lanes},
        COLOURS,
        alt="One lane for each reading of the step, with its parts to scale: "
        + "; ".join(
            f"{state}: {', '.join(f'{part} {format_seconds(row[part])}' for part in PARTS)}"
            for state, row in zip(STATES, readings, strict=True)
        )
        + ".",
        **readings.stamp(),
    )
