"""Verdicts in words."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.axes import Axes

from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.kinds.sweep import Sweep
from course_utils.records.verdicts import headline, sweep_summary
from tests.example_results import CPU, RESULTS, TWO, comparison_of
from tests.figure_checks import visible_texts


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


def test_a_sweep_is_summed_up_by_where_each_verdict_holds():
    summary = sweep_summary(RESULTS["sweep of two"], "batched")
    assert summary == (
        "batched is faster from batch 16 on (up to 2.63 times as fast), slower up to 4 (up to 2.20 times as long)"
    )
    assert sweep_summary(RESULTS["sweep of two"], "batched", brief=True) == (
        "batched is faster from batch 16 on, slower up to 4"
    )
    names = sweep_summary(RESULTS["sweep of words"], "other")
    assert " up to batch " not in names
    assert " for " in names


def _curves(sweep: Sweep) -> list[Any]:
    """What joins the points of a case."""
    return [line for line in sweep.plot().axes[0].lines if len(line.get_xdata()) == len(sweep.values) > 2]


def test_a_figure_of_a_sweep_shows_speed_upwards_names_its_lines_and_hides_none():
    sweep = RESULTS["sweep of four"]
    (ax,) = sweep.plot().axes
    curves = _curves(sweep)
    labels = sweep.points[0].comparison.labels
    for curve, label in zip(curves, labels[1:], strict=True):
        assert list(curve.get_ydata()) == [point.comparison[label].speedup for point in sweep.points]
    assert len({curve.get_xdata()[0] for curve in curves}) == len(curves)
    assert len({str(curve._dash_pattern) for curve in curves}) == len(curves)
    assert not ax.figure.legends
    texts = [item.get_text().replace("\n", " ") for item, _ in visible_texts(ax.figure)]
    assert set(labels) <= set(texts)
    assert f"▲ faster than {labels[0]}" in texts
    assert all("as fast" in words for speed, words in _ticks(ax) if speed > 1)
    assert all("as long" in words for speed, words in _ticks(ax) if speed < 1)


def _ticks(ax: Axes) -> list[tuple[float, str]]:
    return [(place, label.get_text()) for place, label in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)]


def test_between_points_that_are_names_there_is_no_line():
    assert _curves(RESULTS["sweep of words"]) == []
