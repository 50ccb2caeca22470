"""The card: what it says in a notebook, in a page and in a terminal, and where its bars are."""

from __future__ import annotations

import dataclasses
import re

import pytest

from course_utils.show.cards import MARKS, Bar, Card, Row, Toned, speed_axis
from course_utils.show.tables import Sheet, named_values
from tests.example_results import CPU, GPU, LONG, RESULTS, comparison_of
from tests.html_checks import Parsed

CARD = Card(
    ["pinned is ", Toned("2 times as fast", "faster"), " as <pageable>."],
    (
        Row("<pageable>", "baseline", "2.00 ms", bar=Bar(0.99, 1.01, 1.0)),
        Row(LONG, "2.00× as fast", "1.00 ms", "faster", Bar(1.9, 2.1, 2.0), Bar(3.9, 4.1, 4.0)),
        Row("other", "too close to call", "2.00 ms", "unclear", Bar(dot=1.1)),
    ),
    speed_axis([0.99, 4.1], 0.01),
    heads=("", "a call"),
    warning="Too close to call: other & more.",
    provenance="a machine",
    numbers=Sheet((named_values("times", [("first call", "9 s")]),)),
)


def _stripped(markup: str) -> str:
    """What GitHub leaves: no style, no svg, no attributes; the texts of what is taken away stay."""
    return re.sub(r"<style>.*?</style>|</?(svg|rect|line|circle|i|div)\b[^>]*>", "", markup, flags=re.DOTALL)


def _shapes(markup: str, name: str) -> list[dict[str, str]]:
    return [dict(re.findall(r'([\w-]+)="([^"]*)"', tag)) for tag in re.findall(rf"<{name} [^>]*>", markup)]


def test_sentence_and_table_say_it_where_style_and_svg_are_stripped():
    text = " ".join(re.sub(r"<[^>]+>", " ", _stripped(CARD._repr_html_())).split())
    assert text.startswith("pinned is 2 times as fast as &lt;pageable&gt;. a call &lt;pageable&gt; baseline 2.00 ms")
    assert "that is reused for every batch ▲ 2.00× as fast 1.00 ms" in text
    assert "Too close to call: other &amp; more. a machine All numbers times first call 9 s" in text


def test_html_is_well_formed_and_the_same_each_time_and_words_carry_every_verdict():
    markup = CARD._repr_html_()
    assert markup == dataclasses.replace(CARD)._repr_html_()
    parsed = Parsed(re.sub(r"<(rect|line|circle)([^>]*)/>", "", markup))
    assert not parsed.ids + parsed.outside
    for row in CARD.rows:
        assert not row.tone or f"{MARKS[row.tone]} {row.words}" in markup
    labels = [svg["aria-label"] for svg in _shapes(markup, "svg")]
    assert labels == [
        "&lt;pageable&gt;: baseline, 2.00 ms",
        f"{LONG}: 2.00× as fast, 1.00 ms",
        "other: too close to call, 2.00 ms",
    ]


def test_right_is_faster_and_the_recorded_machine_is_grey():
    markup = CARD._repr_html_()
    dots = {shape["class"]: float(shape["cx"].rstrip("%")) for shape in _shapes(markup, "circle")}
    assert dots["plain"] < dots["unclear"] < dots["faster"] < dots["behind"]
    # An interval that is not known is not drawn.
    drawn = [shape["class"] for shape in _shapes(markup, "rect")]
    assert drawn == ["band", "plain", "band", "behind", "faster", "band"]


def test_in_a_terminal_it_is_the_same_card_in_letters():
    lines = repr(CARD).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == "pinned is 2 times as fast as <pageable>."
    (row,) = [line for line in lines if "▲ 2.00× as fast" in line]
    assert row.index("┊") < row.index("●") < row.index("░") < row.index("▲") < row.index("1.00 ms")
    assert "first call" not in repr(CARD)


@pytest.mark.parametrize("speeds", [[0.99, 1.3], [0.5, 1e-4], [1e-6, 1e6]])
def test_an_axis_of_speeds_holds_them_all_and_its_ticks_are_never_below_1(speeds: list[float]):
    axis = speed_axis(speeds, 0.01)
    assert axis.low < min(1.0, *speeds) <= max(1.0, *speeds) < axis.high
    places = [axis.place(value) for value, _ in axis.ticks]
    assert places == sorted(places)
    assert all(0 <= place <= 1 for place in places)
    assert axis.band == (1 / 1.01, 1.01)
    for value, text in axis.ticks:
        if value != 1:
            number, way = float(text.split("×")[0].replace(",", "")), text.split("×")[1]
            assert way == (" as fast" if value > 1 else " as long")
            assert number == pytest.approx(max(value, 1 / value))


# Cards of results


def test_the_recorded_machine_stands_behind_each_case_that_it_has_and_is_named():
    two = RESULTS["two"]
    base, pinned = (row.bar for row in two.card().rows)
    assert (pinned.low, pinned.high, pinned.dot) == (*two["pinned"].interval.inverse().ends, two["pinned"].speedup)
    assert (base.low, base.high, base.dot) == (*two.noise.inverse().ends, 1.0)
    behind = comparison_of({"pageable": 1.0, "pinned": 0.25}, environment=GPU)
    card = dataclasses.replace(two, behind=behind, whose="you").card()
    assert [row.behind for row in card.rows] == [case.bar for case in behind]
    assert card.provenance.startswith(CPU.caption)
    assert card.axis.high > behind["pinned"].bar.high
