"""Who was busy when, to scale: lanes of named spans in a page's own letters, without a legend, on a phone as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from course_utils.show.cards import Card, Shown
from course_utils.show.formats import axis_unit, format_seconds
from course_utils.show.lanes import Span
from course_utils.show.page import dressed

_PAGE = Path(__file__).with_name("timeline.html.j2")
_MOST_TICKS = 6


Panels = Mapping[str, Mapping[str, Sequence[Span]]]


@dataclass(frozen=True, repr=False)
class Timeline(Shown):
    """Panels of lanes on one axis of time, under a sentence; `timeline` makes it."""

    sentence: str
    panels: Panels
    colours: Mapping[str, str]
    alt: str
    stamp: Mapping[str, Any]

    def card(self) -> Card:
        """The sentence, and the picture in words."""
        return Card(self.sentence, notes=(self.alt,), **self.stamp)

    def _repr_html_(self) -> str:
        return dressed(self.html())

    def html(self) -> str:
        """The picture for a page that has the course's style."""
        end = self.end_s
        factor, unit = axis_unit("s", end)
        ticks = [(100 * tick / end, f"{round(tick / factor, 9):g} {unit}" if tick else "0") for tick in _ticks(end)]
        head = Card(self.sentence, **{**self.stamp, "provenance": ""}).html().rstrip().removesuffix("</div>")
        return head + _template().render(
            panels=self.panels, colours=self.colours, alt=self.alt, ticks=ticks, at=lambda s: round(100 * s / end, 2),
            fits=lambda span, letter: letter * (len(span.text) + 1) < 100 * (span.end_s - span.start_s) / end,
            words=lambda span: f"{span.text or span.what}: {format_seconds(span.end_s - span.start_s)}",
            provenance=self.stamp.get("provenance", ""),
        )  # fmt: skip

    @property
    def end_s(self) -> float:
        """Where the axis ends: with the last span."""
        return max(span.end_s for lanes in self.panels.values() for spans in lanes.values() for span in spans)


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


def timeline(says: str, panels: Panels, colours: Mapping[str, str], alt: str, **stamp: Any) -> Timeline:
    """Draw lanes of spans to scale, as a card.

    Args:
        says: the sentence above it: its point, with its number.
        panels: spans by the panel's title ("" for none) and the lane's name; all panels share one axis, from 0 s.
        colours: of each kind of span: blue, orange, green, purple, ochre or grey; "" leaves the lane's ground, which
            is idle time, with the words on it.
        alt: what the picture shows, in words.
        **stamp: of a result, as `Result.stamp` gives it: who, when and on what.

    Raises:
        ValueError: if a span ends before it begins, or its kind has no colour.

    Example:
        >>> shown = timeline("The GPU waits.", {"": {"GPU": [Span(0, 1e-3, "waits"), Span(1e-3, 4e-3, "work")]}},
        ...                  {"waits": "", "work": "green"}, "The GPU waits for 1 ms, then works for 3.")
        >>> shown.end_s
        0.004
    """
    for lanes in panels.values():
        for span in (span for spans in lanes.values() for span in spans):
            if span.end_s < span.start_s or span.what not in colours:
                raise ValueError(f"{span} ends before it begins, or its kind is none of {', '.join(colours)}.")
    return Timeline(says, panels, colours, alt, stamp)
