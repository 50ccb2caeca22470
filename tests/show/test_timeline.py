"""Lanes of time in a page's own letters."""

from __future__ import annotations

import re

import pytest

from course_utils.show.timeline import Span, timeline

WORK = {"waits": "", "work": "green"}


def test_spans_are_to_scale_and_words_that_do_not_fit_are_told_as_a_title():
    lanes = {"GPU": [Span(0, 1e-3, "waits"), Span(1e-3, 4e-3, "work", "work"), Span(4e-3, 4.01e-3, "work", "more")]}
    shown = timeline("It waits for 1 ms.", {"A step": lanes}, WORK, "It waits, then works.", head="Recorded: GPU")
    html = shown.html()
    assert [float(width) for width in re.findall(r"width:([\d.]+)%", html)] == pytest.approx([24.94, 74.81, 0.25])
    assert html.count(">work</div>") == html.count('title="more: 10.0 µs"></div>') == 1
    assert re.findall(r'data-text="(.+?)"', html) == ["0", "1 ms", "2 ms", "3 ms", "4 ms"]
    assert html.count("<div") == html.count("</div>")
    assert repr(shown).startswith("Recorded: GPU")


@pytest.mark.parametrize("span", [Span(2, 1, "work"), Span(0, 1, "rests")])
def test_a_span_that_cannot_be_drawn_is_an_error(span: Span):
    with pytest.raises(ValueError, match="ends before it begins, or its kind is none of waits, work"):
        timeline("", {"": {"GPU": [span]}}, WORK, "")
