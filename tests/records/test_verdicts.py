"""Verdicts in words."""

from __future__ import annotations

import pytest

from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.verdicts import headline, sweep_summary
from tests.example_results import CPU, RESULTS, TWO, comparison_of


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


def test_sweep_summary_names_the_turning_point_and_names_have_no_order():
    assert sweep_summary(RESULTS["sweep of two"], "batched") == "batched: SLOWER at batch 1 to 4, FASTER at 16 to 1024"
    sweep = RESULTS["sweep of words"]
    summary = sweep_summary(sweep, "other")
    assert " to " not in summary
    assert all(name in summary for name in sweep.values)
    upper, lower = sweep.plot().axes
    assert all(line.get_linestyle() == "None" for line in upper.lines if len(line.get_xdata()) == len(sweep.values) > 1)
    joined = [line for line in lower.lines if len(set(line.get_xdata())) == len(sweep.values)]
    assert joined == []
    # Side by side, so that no case hides another, and the noise of a name ends with the name.
    medians = [line.get_xdata() for line in upper.lines if line.get_label() in sweep.points[0].comparison.labels]
    assert len({x for series in medians for x in series}) == len(medians) * len(sweep.values)
    assert len(lower.patches) >= len(sweep.values)
