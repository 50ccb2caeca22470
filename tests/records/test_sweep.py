"""A sweep: what it says of each case, and its picture."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.axes import Axes

from course_utils.records.kinds.sweep import Sweep, SweepPoint
from course_utils.show.formats import format_times
from tests.example_results import CPU, RESULTS, comparison_of
from tests.figure_checks import visible_texts


def test_a_sweep_is_summed_up_by_where_each_verdict_holds():
    sweep = RESULTS["sweep of two"]
    slowest, fastest = (format_times(pick(p.comparison["batched"].ratio for p in sweep)) for pick in (max, min))
    assert sweep.story("batched") == (
        f"batched is faster from batch 16 on (up to {fastest}), slower up to 4 (up to {slowest})"
    )
    assert sweep.story("batched", brief=True) == "batched is faster from batch 16 on, slower up to 4"
    assert sweep.card().words == f"Against one by one, {sweep.story('batched')}."


@pytest.mark.parametrize(
    ("over", "values", "where"),
    [
        ("batch", (8, 64, 512), "at batch 64"),
        ("KiB", (8, 64, 512), "at 64 KiB"),
        ("elements", (10, 1000, 2000), "at 1\u00a0000 elements"),
        ("workload", ("chain", "norm", "step"), "for norm"),
    ],
)
def test_a_unit_and_what_is_counted_stand_behind_their_number(over: str, values: tuple[Any, ...], where: str):
    same, faster = (comparison_of({"a": 1.0, "b": ratio}, noise=0.001, rounds=40) for ratio in (1.0, 0.5))
    points = tuple(map(SweepPoint, values, (same, faster, same)))
    words = Sweep(over=over, points=points, environment=CPU).story("b", brief=True)
    assert words.startswith(f"b is faster {where}, the same (within 1%) ")


def test_what_is_unclear_is_said_once_with_the_way_out():
    unclear = comparison_of({"a": 1.0, "b": 0.5}, rounds=5)
    clear = comparison_of({"a": 1.0, "b": 0.5}, noise=0.001, rounds=40)
    partly = Sweep(over="batch", points=(SweepPoint(1, unclear), SweepPoint(8, clear)), environment=CPU).card()
    assert "close to call" not in partly.words
    assert partly.warning.startswith("Too close to call: b at batch 1.")
    wholly = Sweep(over="batch", points=(SweepPoint(1, unclear),), environment=CPU).card()
    assert wholly.words.startswith("Too close to call: b throughout.")
    assert not wholly.warning
    for card in (partly, wholly):
        assert repr(card).count("budget_s") == 1


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
    assert all(any(text[:12] == label[:12] for text in texts) for label in labels)
    assert f"▲ faster than {labels[0]}" in texts
    assert all("as fast" in words for speed, words in _ticks(ax) if speed > 1)
    assert all("as long" in words for speed, words in _ticks(ax) if speed < 1)


def _ticks(ax: Axes) -> list[tuple[float, str]]:
    return [(place, label.get_text()) for place, label in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)]


def test_between_points_that_are_names_there_is_no_line():
    assert _curves(RESULTS["sweep of words"]) == []
