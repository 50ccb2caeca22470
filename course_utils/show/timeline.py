"""Who was busy when, to scale: lanes of threads, streams or processes in a page's own letters, on a phone as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from course_utils.show.cards import Card, Shown
from course_utils.show.formats import axis_unit, format_seconds
from course_utils.show.page import dressed

_PAGE = Path(__file__).with_name("timeline.html.j2")
_MOST_TICKS = 6
_LEAST = 0.001  # of the axis: less than a dot wide


@dataclass(frozen=True)
class Span:
    """One bar of a lane.

    Attributes:
        start_s: where it begins, in seconds from a zero that all spans of a picture share.
        end_s: where it ends.
        what: its kind, which gives it its colour.
        text: what is written inside, where it fits.
    """

    start_s: float
    end_s: float
    what: str
    text: str = ""


Panels = Mapping[str, Mapping[str, Sequence[Span]]]


@dataclass(frozen=True, repr=False)
class Timeline(Shown):
    """Panels of lanes on one axis of time, under a sentence; `timeline` makes it."""

    sentence: str
    panels: Panels
    colours: Mapping[str, str]
    alt: str
    legend: bool
    stamp: Mapping[str, Any]

    def card(self) -> Card:
        """The sentence, and the picture in words."""
        return Card(self.sentence, notes=(self.alt,), **self.stamp)

    def _repr_html_(self) -> str:
        return dressed(self.html())

    def html(self) -> str:
        """The picture for a page that has the course's style."""
        start_s, length_s = min(span.start_s for span in self.spans), self.length_s
        factor, unit = axis_unit("s", length_s)
        ticks = [(100 * at / length_s, f"{round(at / factor, 9):g} {unit}" if at else "0") for at in _ticks(length_s)]
        kinds = {span.what for span in self.spans}
        head = Card(self.sentence, **{**self.stamp, "provenance": ""}).html().rstrip().removesuffix("</div>")
        return head + _template().render(
            panels={
                panel: {lane: [_runs(row, _LEAST * length_s) for row in _rows(spans)] for lane, spans in lanes.items()}
                for panel, lanes in self.panels.items()
            },
            colours=self.colours, alt=self.alt, ticks=ticks,
            legend=[kind for kind in self.colours if kind in kinds] if self.legend else [],
            left=lambda span: round(100 * (span.start_s - start_s) / length_s, 2),
            width=lambda span: round(100 * (span.end_s - span.start_s) / length_s, 2),
            fits=lambda span, letter: letter * (len(span.text) + 1) < 100 * (span.end_s - span.start_s) / length_s,
            words=lambda span: f"{span.text or span.what}: {format_seconds(span.end_s - span.start_s)}",
            provenance=self.stamp.get("provenance", ""),
        )  # fmt: skip

    @property
    def spans(self) -> list[Span]:
        """All spans of all lanes."""
        return [span for lanes in self.panels.values() for spans in lanes.values() for span in spans]

    @property
    def length_s(self) -> float:
        """Of the axis: from the first span's begin to the last one's end."""
        return max(span.end_s for span in self.spans) - min(span.start_s for span in self.spans)


def _rows(spans: Sequence[Span]) -> list[list[Span]]:
    """The spans of a lane in rows: each lies below all that are still open when it begins, as calls in a trace do."""
    rows: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        place = 1 + max((n for n, row in enumerate(rows) if row[-1].end_s > span.start_s), default=-1)
        if place == len(rows):
            rows.append([])
        rows[place].append(span)
    return rows


def _runs(row: Sequence[Span], least_s: float) -> list[Span]:
    """The spans of a row; those of one kind that follow each other, all too short to be told apart, are one."""
    runs: list[list[Span]] = []
    for span in row:
        if runs and _runs_on(runs[-1][-1], span, least_s):
            runs[-1].append(span)
        else:
            runs.append([span])
    return [
        run[0] if len(run) == 1 else replace(run[0], end_s=run[-1].end_s, text=f"{len(run)} × {run[0].what}")
        for run in runs
    ]


def _runs_on(span: Span, after: Span, least_s: float) -> bool:
    times = (span.end_s - span.start_s, after.start_s - span.end_s, after.end_s - after.start_s)
    return span.what == after.what and max(times) < least_s


def _ticks(end: float) -> list[float]:
    """Round places on an axis from 0."""
    steps = (digit * 10.0**power for power in range(-9, 4) for digit in (1, 2, 5))
    step = next(step for step in steps if end / step < _MOST_TICKS)
    return [step * count for count in range(int(end / step) + 1)]


@cache
def _template() -> jinja2.Template:
    return jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        _PAGE.read_text(encoding="utf-8")
    )


def timeline(
    says: str, panels: Panels, colours: Mapping[str, str], alt: str, legend: bool = False, **stamp: Any
) -> Timeline:
    """Draw lanes of spans to scale, as a card. Spans that overlap in a lane lie in rows below each other.

    Args:
        says: the sentence above it: its point, with its number.
        panels: spans by the panel's title ("" for none) and the lane's name; all panels share one axis, whose 0 is the
            first span's begin.
        colours: of each kind of span: blue, orange, green, purple, ochre or grey; "" leaves the lane's ground, which
            is idle time, with the words on it.
        alt: what the picture shows, in words.
        legend: whether to name the kinds: needed where few of the spans have room for their words.
        **stamp: of a result, as `Result.stamp` gives it: who, when and on what.

    Raises:
        ValueError: if no span takes time, one ends before it begins, or its kind has no colour.

    Example:
        >>> shown = timeline("The GPU waits.", {"": {"GPU": [Span(0, 1e-3, "waits"), Span(1e-3, 4e-3, "work")]}},
        ...                  {"waits": "", "work": "green"}, "The GPU waits for 1 ms, then works for 3.")
        >>> shown.length_s
        0.004
    """
    shown = Timeline(says, panels, colours, alt, legend, stamp)
    for span in shown.spans:
        if span.end_s < span.start_s or span.what not in colours:
            raise ValueError(f"{span} ends before it begins, or its kind is none of {', '.join(colours)}.")
    if not shown.spans or not shown.length_s:
        raise ValueError("There is nothing to draw: no span takes time.")
    return shown
