"""Lanes of time: to scale, nothing overlaps, and nesting goes downwards."""

from __future__ import annotations

import re

import pytest

from course_utils.show.timeline import Span, timeline

WORK = {"waits": "", "work": "green"}
PLACE = re.compile(r'left:([\d.]+)%;width:([\d.]+)%(?:;--row:(\d+))?" title="(.+?)"')


def places(*spans: Span) -> list[tuple[float, float, int]]:
    """Left end, width and row of what is drawn of one lane."""
    html = timeline("", {"": {"CPU": spans}}, WORK, "").html()
    return [(float(left), float(width), int(row or 0)) for left, width, row, _ in PLACE.findall(html)]


def test_spans_are_to_scale_and_words_that_do_not_fit_are_told_as_a_title():
    lanes = {"GPU": [Span(0, 1e-3, "waits"), Span(1e-3, 4e-3, "work", "work"), Span(4e-3, 4.01e-3, "work", "more")]}
    shown = timeline("It waits for 1 ms.", {"A step": lanes}, WORK, "It waits, then works.", head="Recorded: GPU")
    html = shown.html()
    assert [float(width) for _, width, *_ in PLACE.findall(html)] == pytest.approx([24.94, 74.81, 0.25])
    assert html.count(">work</div>") == html.count('title="more: 10.0 µs"></div>') == 1
    assert re.findall(r'data-text="(.+?)"', html) == ["0", "1 ms", "2 ms", "3 ms", "4 ms"]


def test_what_is_called_lies_below_its_caller_and_what_follows_beside_its_sibling():
    outer, inner, following = Span(0, 10, "work"), Span(1, 4, "work"), Span(4, 6, "work")
    assert places(following, inner, outer) == [(0, 100, 0), (10, 30, 1), (40, 20, 1)]


def test_the_axis_begins_with_the_first_span_and_all_panels_share_it():
    panels = {"short": {"CPU": [Span(101, 102, "work")]}, "long": {"CPU": [Span(100, 104, "work")]}}
    html = timeline("", panels, WORK, "").html()
    assert [match[:2] for match in PLACE.findall(html)] == [("25.0", "25.0"), ("0.0", "100.0")]
    assert re.findall(r'data-text="(.+?)"', html) == ["0", "1 s", "2 s", "3 s", "4 s"]


def test_many_spans_too_short_to_be_told_apart_are_drawn_as_one():
    short = [Span(i * 1e-6, (i + 0.9) * 1e-6, "work") for i in range(5000)]
    html = timeline("", {"": {"CPU": [*short, Span(5e-3, 10e-3, "work", "long")]}}, WORK, "").html()
    assert [title for *_, title in PLACE.findall(html)] == ["5000 × work: 5.00 ms", "long: 5.00 ms"]
