"""Verdicts in words."""

from __future__ import annotations

import pytest

from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.verdicts import headline
from tests.example_results import CPU, TWO, comparison_of


def test_each_verdict_has_its_sentence():
    comparison = comparison_of({"base": 1.0, "half": 0.5, "more": 1.05, "same": 1.0}, noise=0.002, rounds=40)
    for label, words in (
        ("half", "FASTER: 2.00 times as fast (95% interval "),
        ("more", "SLOWER: takes 1.05 times as long (95% interval "),
        ("same", "SAME: within 1% (takes "),
        ("base", "baseline: "),
    ):
        assert comparison[label].words.startswith(words)
    assert headline(comparison["half"]) == "half is FASTER: 2.00 times as fast as base"
    assert headline(comparison["more"]) == "more is SLOWER: takes 1.05 times as long as base"


def _scripted(case: list[float], control: list[float]) -> Comparison:
    """A comparison whose ratios are known exactly: the baseline always takes one second."""
    times = {"base": [1.0] * len(case), "case": case, "base again": control}
    *cases, again = (Measurement(label, tuple(seconds)) for label, seconds in times.items())
    return Comparison(tuple(cases), again, CPU)


@pytest.mark.parametrize(
    ("comparison", "words"),
    [
        (comparison_of(TWO, rounds=5), "UNCLEAR: needs 8 rounds, has 5: raise budget_s"),
        (comparison_of(TWO, rounds=5, interrupted=True), "needs 8 rounds, has 5: let it run to the end"),
        (_scripted([0.9, 1.1] * 5, [1.0] * 10), "may be faster or slower: raise budget_s"),
        (_scripted([1.05, 1.06] * 5, [0.8, 1.25] * 5), "baseline timed against itself strayed by"),
        (_scripted([1.004, 1.03] * 2 + [1.008] * 6, [1.0] * 10), "perhaps by less than the 1% that matters"),
    ],
)
def test_unclear_says_why_and_what_to_do(comparison: Comparison, words: str):
    assert words in comparison.others[0].words
