"""Verdicts in words."""

from __future__ import annotations

import dataclasses
import re

import pytest

from course_utils.results.comparison import Comparison
from course_utils.results.measurement import Measurement
from course_utils.results.paired import Interval
from course_utils.results.sweep import Sweep, SweepPoint
from course_utils.results.verdicts import between
from course_utils.show.prediction import predict
from tests.example_results import CPU, TWO, comparison_of


def test_each_verdict_has_its_words_and_no_number_is_below_1():
    comparison = comparison_of({"base": 1.0, "half": 0.5, "more": 1.05, "same": 1.0}, noise=0.002, rounds=40)
    for label, sentence, text in (
        ("half", "half is 2.00 times as fast as base (", "2.00 times as fast ("),
        ("more", "more takes 1.05 times as long as base (", "1.05 times as long ("),
        ("same", "same takes the same time as base (within 1%)", "the same (within 1%)"),
        ("base", "base is the baseline", "the baseline"),
    ):
        assert comparison[label].words.startswith(sentence)
        assert comparison[label].in_words().startswith(text)
        bounds = [float(number) for number in re.findall(r"\d\.\d+", comparison[label].words)]
        assert all(number > 0.99 for number in bounds)
        assert len(bounds) in (0, 3)  # the ratio and one interval, or nothing


def test_a_comparison_says_the_largest_gain_first_then_what_the_others_do():
    def sentence(**ratios: float) -> str:
        return comparison_of({"base": 1.0, **ratios}, noise=0.001, rounds=40).card().words

    assert sentence(quick=0.5, slow=2.0) == "quick is 2.00 times as fast as base; slow takes 2.00 times as long."
    assert sentence(slow=3.0, slower=4.0) == "slower takes 4.00 times as long as base; slow takes 3.00 times as long."
    assert sentence(a=0.5, b=0.9, c=1.0, d=2.0).endswith("Of the other 3, 1 is faster, 1 is slower and 1 is the same.")
    assert sentence(a=0.5, b=0.9, c=0.8).endswith(". The other 2 are all faster.")


def _scripted(case: list[float], control: list[float], **more: object) -> Comparison:
    """A comparison whose ratios are known exactly: the baseline always takes one second."""
    times = {"base": [1.0] * len(case), "case": case, "base again": control}
    *cases, again = (Measurement(label, tuple(seconds)) for label, seconds in times.items())
    return Comparison(tuple(cases), again, CPU, **more)


@pytest.mark.parametrize(
    ("comparison", "words"),
    [
        (comparison_of(TWO, rounds=5), "a verdict takes 8 rounds, and there are 5: raise budget_s."),
        (_scripted([0.9, 1.1] * 5, [1.0] * 10), "case is between 11% faster and 10% slower."),
        (
            _scripted([1.05, 1.06] * 5, [0.8, 1.25] * 5),
            "case is between 5% and 6% slower (identical code differs as well: noise ±25%).",
        ),
    ],
)
def test_unclear_is_one_line_once_with_what_would_help(comparison: Comparison, words: str):
    assert comparison.others[0].verdict == "UNCLEAR"
    shown = " ".join(repr(comparison).split())
    assert f"Too close to call: {words}" in shown
    assert shown.count("Too close to call") == 1
    assert "budget_s" in shown or "Stop other programs" in shown


def test_more_time_is_advised_where_it_would_be_enough_and_who_keeps_the_machine_busy_is_named_once():
    # A direction that is nearly clear takes 3.3 times as many rounds, what is nearly the same 8.7 times.
    for unclear, noise, times, took in (([1.02, 1.06], 1.05, 47, "647 ms"), ([0.99, 1.02], 1, 124, "242 ms")):
        long = _scripted(unclear * 5, [2 - noise, noise] * 5)
        assert "budget_s=" not in repr(long)  # nobody waits so long
        *cases, control = (
            Measurement(timed.label, tuple(second / times for second in timed.elapsed_s))
            for timed in (*long.cases, long.control)
        )
        short = " ".join(repr(Comparison(tuple(cases), control, CPU)).split())
        assert f"Run it again with budget_s=5 (it took {took}), or stop other programs first." in short
    clear = dataclasses.replace(comparison_of(TWO), busy="Other programs kept 1.3 of 2 cores busy.")
    assert " ".join(repr(clear).split()).count("1.3 of 2 cores busy") == 1


def test_of_many_unclear_cases_two_are_named():
    comparison = _scripted([0.9, 1.1] * 5, [1.0] * 10)
    base, case = comparison.cases
    for count, rest in ((2, ". "), (3, "; and 1 more case. "), (4, "; and 2 more cases. ")):
        cases = (base, *(dataclasses.replace(case, label=f"case {number}") for number in range(count)))
        shown = " ".join(repr(dataclasses.replace(comparison, cases=cases)).split())
        assert f"case 1 is between 11% faster and 10% slower{rest}" in shown


CORE_TAKEN = "Other programs kept 1.1 of 2 cores busy, and took this one's core 143 times a second."


@pytest.mark.parametrize(("floor", "note", "whose"), [(7.4, "", "you"), (1.5, CORE_TAKEN, "recorded")])
def test_what_a_busy_machine_gave_is_no_finding(floor: float, note: str, whose: str):
    comparison = _scripted([70.0] * 12, [1 / floor, floor] * 6, busy=note, whose=whose)
    quiet = _scripted([70.0] * 12, [1.0] * 12)
    words = f"This machine was too busy to tell: the same code strayed by a factor of {floor}."
    way_out = " Close other programs and run the cell again." * (whose != "recorded")
    prediction = predict("How many times as fast?").answer(3)
    swept = Sweep("width", (SweepPoint(16, comparison), SweepPoint(64, quiet)), environment=CPU, whose=whose)
    for card, sentence in (
        (comparison.card(), words + way_out),
        (swept.card(), words.replace(":", " at width 16:") + way_out),
        (prediction.reveal(comparison["case"]), f"You said 3× as fast. {words}{way_out}"),
    ):
        assert card.words == sentence
        assert repr(card).count("kept 1.1 of 2") == bool(note and "You" not in sentence)
    # The verdict stays, without the colour and the sign of a finding.
    assert [(row.words, row.tone) for row in swept.card().rows] == [("70× as long", ""), ("70× as long", "slower")]
    assert comparison["case"].verdict == quiet["case"].verdict == "SLOWER"


def test_one_slow_round_of_an_idle_machine_or_a_little_noise_leaves_the_finding():
    for floor, note in ((2.5, ""), (1.2, CORE_TAKEN)):
        comparison = _scripted([70.0] * 12, [1 / floor, floor] * 6, busy=note)
        assert comparison.card().words == "case takes 70 times as long as base."


def test_an_interval_in_words():
    assert between(Interval(0.96, 1.03, 0.99)) == "between 4% faster and 3% slower"
    assert between(Interval(0.9, 0.995, 0.99)) == "between 0.5% and 11% faster"
    assert between(Interval(1.5, 30, 0.99)) == "between 1.50 and 30 times as long"
