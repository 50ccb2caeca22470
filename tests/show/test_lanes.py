"""Lanes of spans: nothing overlaps, everything can be read, and nesting goes downwards."""

from __future__ import annotations

import pytest
from matplotlib.patches import Rectangle

from course_utils.show.lanes import Span, lanes_figure
from tests.figure_checks import problems_of_texts, visible_texts

COLOURS = {"operator": "#56B4E9", "kernel": "#0072B2", "waiting": "#D55E00"}
CPU = [Span(0, 8e-3, "operator", "outer"), Span(1e-3, 3e-3, "operator", "inner"), Span(3e-3, 5e-3, "operator")]
LANES = {
    "CPU": CPU,
    "a stream with a name that needs two lines": [Span(2e-3, 9e-3, "kernel", "matmul"), Span(0.5e-3, 0.5e-3, "kernel")],
}


def drawn(lanes=LANES, title="Two lanes", **panels):
    return lanes_figure(title, panels or {"": lanes}, COLOURS, "Two lanes.", "A note.")


def boxes(figure, panel: int = 0) -> list[Rectangle]:
    return [patch for patch in figure.axes[panel].patches if isinstance(patch, Rectangle)]


@pytest.mark.parametrize("title", ["", "Two lanes"])
def test_every_text_can_be_read(title: str):
    assert problems_of_texts(drawn(title=title)) == []
    twice = {**LANES, "another stream with a name of several lines": LANES["CPU"][:1]}
    assert problems_of_texts(drawn(title=title, before=LANES, after=LANES, later=twice)) == []


def test_what_is_called_lies_below_its_caller_and_what_follows_beside_its_sibling():
    outer, inner, following = boxes(drawn({"CPU": CPU}))
    assert inner.get_y() == following.get_y() == outer.get_y() + 1
    assert (outer.get_x(), outer.get_width()) == (0, 8)


def test_spans_that_overlap_without_nesting_never_share_a_place():
    first, second, third = boxes(drawn({"CPU": [Span(0, 10, "kernel"), Span(5, 15, "kernel"), Span(12, 20, "kernel")]}))
    assert len({box.get_y() for box in (second, third)}) == 2
    assert first.get_y() < second.get_y()


def test_a_span_of_no_length_is_seen_and_a_text_that_does_not_fit_is_left_out():
    figure = drawn({"CPU": [Span(0, 1, "kernel", "long"), Span(1, 1.01, "kernel", "too long for this bar")]})
    assert {text.get_text() for text, _ in visible_texts(figure)} & {"long", "too long for this bar"} == {"long"}
    assert all(box.get_width() > 0 for box in boxes(drawn()))


@pytest.mark.parametrize(("length_s", "unit"), [(2e-4, "µs"), (0.2, "ms"), (20.0, "s")])
def test_the_axis_has_a_unit_that_suits_its_length(length_s: float, unit: str):
    assert drawn({"CPU": [Span(0, length_s, "kernel")]}).axes[0].get_xlabel() == unit


def test_panels_share_the_axis_of_time_and_the_legend_names_only_what_is_drawn():
    figure = drawn(short={"CPU": [Span(0, 1, "kernel")]}, long={"CPU": [Span(0, 40, "operator")]})
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim() == (0, 40)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["operator", "kernel"]


@pytest.mark.parametrize(
    ("spans", "words"),
    [([], "no lane"), ([Span(1, 0, "kernel")], "before it begins"), ([Span(0, 1, "unknown")], "no colour")],
)
def test_what_cannot_be_drawn_is_an_error(spans: list[Span], words: str):
    with pytest.raises(ValueError, match=words):
        drawn({"CPU": spans})
