"""A sweep: what it says of each case."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from course_utils.results.sweep import Sweep, SweepPoint
from course_utils.show.formats import format_times
from tests.example_results import CPU, RESULTS, comparison_of

BY_SIZE = Sweep(
    over="KiB",
    points=tuple(
        SweepPoint(size, comparison_of({"pageable": 1.0, "pinned": ratio, "in the loop": 2.0}, noise=0.001))
        for size, ratio in ((4, 1.0), (64, 0.5), (1024, 1.4), (16384, 0.25))
    ),
    environment=CPU,
)


def test_a_sweep_is_summed_up_by_where_each_verdict_holds():
    sweep = RESULTS["sweep of two"]
    slowest, fastest = (format_times(pick(p.comparison["batched"].ratio for p in sweep)) for pick in (max, min))
    story = f"batched is faster from batch 16 on (up to {fastest}), slower up to 4 (up to {slowest})"
    assert sweep.card().words == f"Against one by one, {story}."


@pytest.mark.parametrize(
    ("over", "values", "where"),
    [
        ("KiB", (8, 2048, 2**20), "at 2 MiB"),
        ("elements", (10, 1000, 2000), "at 1,000 elements"),
        ("workload", ("chain", "norm", "step"), "for norm"),
    ],
)
def test_a_unit_and_what_is_counted_stand_behind_their_number(over: str, values: tuple[Any, ...], where: str):
    same, faster = (comparison_of({"a": 1.0, "b": ratio}, noise=0.001, rounds=40) for ratio in (1.0, 0.5))
    points = tuple(map(SweepPoint, values, (same, faster, same)))
    words = Sweep(over=over, points=points, environment=CPU).card().words
    assert words.startswith(f"Against a, b is faster {where} (2.00 times as fast), the same (within 1%) ")


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


# One unit, a choice, and the recorded run behind


def test_an_amount_of_memory_has_its_unit_wherever_it_is_named_and_found():
    assert BY_SIZE["16 MiB"] is BY_SIZE[16384]
    labels = [row.label.replace("\u00a0", " ") for row in BY_SIZE.card().rows]
    assert "pinned, 16 MiB" in labels
    for shown in (repr(BY_SIZE), repr(BY_SIZE.numbers)):
        assert "16 MiB" in shown
        assert "16384" not in shown


def test_a_choice_of_cases_and_points_is_what_the_card_tells_of():
    chosen = BY_SIZE.showing(["in the loop", "pinned"], at=["16 MiB", 64])
    card = chosen.card()
    labels = ["in the loop, 64 KiB", "in the loop, 16 MiB", "pinned, 64 KiB", "pinned, 16 MiB"]
    assert [row.label.replace("\u00a0", " ") for row in card.rows] == labels
    # Of the points that were measured, not of those that are shown: nothing is said of 1 MiB, where it is slower.
    assert "pinned is faster at 64 KiB and at 16 MiB (up to 4.0" in card.words
    assert repr(card.numbers) == repr(BY_SIZE.numbers)
    with pytest.raises(KeyError, match="there are: "):
        BY_SIZE.showing(cases=["pined"])


def test_a_time_per_item_is_shown_where_the_items_of_a_call_are_known():
    point = BY_SIZE["64 KiB"]
    counted = tuple(dataclasses.replace(case, items=1000) for case in point.cases)
    sweep = dataclasses.replace(BY_SIZE, points=(SweepPoint(64, dataclasses.replace(point, cases=counted)),))
    card = sweep.showing(["pinned"], per="token").card()
    assert (card.heads[1], card.rows[0].value) == ("time per token", "1.00 µs")
    with pytest.raises(ValueError, match="a time per token needs items=, the same for each case"):
        BY_SIZE.showing(per="token")
