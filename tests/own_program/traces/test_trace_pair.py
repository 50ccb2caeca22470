"""Two traces: what differs between them, and no more than the steps carry."""

from __future__ import annotations

import random
import statistics

import pytest
from scipy import stats

from own_program.traces import gpu_time as places
from own_program.traces.trace_pair import Change, TracePair
from own_program.traces.trace_report import TraceFileError, read_trace
from tests.own_program.traces.made_up import GEMM, MadeUp, busy_steps


def steps_of(lengths: list[float], gap: float) -> MadeUp:
    made = MadeUp()
    at = 0.0
    for number, lasts in enumerate(lengths):
        made.step(number, at, lasts + gap)
        made.work(GEMM, at + gap, lasts, launched=at + gap - 5)
        at += lasts + gap
    return made


def on_cpu(lasts: float, rows: int = 4) -> MadeUp:
    """Eight steps of a CPU, of one operator."""
    made = MadeUp()
    for number, start in enumerate(made.steps(8, lasts + 4)):
        made.op("aten::mm", start, lasts + number % 3, **{"Input Dims": [[rows, 64], [64, 64]]})
    return made


def compared(before: MadeUp, after: MadeUp) -> TracePair:
    pair = read_trace(before.json(), after.json())
    assert isinstance(pair, TracePair)
    assert pair.plan == ()
    pair._repr_html_()
    return pair


def test_intervals_hold_the_change_that_was_made():
    noise = random.Random(1)
    lengths = [[1000 + noise.gauss(0, 10) for _ in range(8)] for _ in range(2)]
    pair = compared(steps_of(lengths[0], 300), steps_of(lengths[1], 100))
    (lasts, *changes), by_name = pair.changes[0], {change.what: change for change in pair.changes[0]}
    low, high = by_name[places.LAUNCH].interval or (0, 0)
    assert low <= -200 <= high + 1
    assert [change.what for change in changes if change.carried] == [places.LAUNCH]
    low, high = lasts.interval or (0, 0)
    assert low < -200 + statistics.fmean(lengths[1]) - statistics.fmean(lengths[0]) < high
    assert pair.card().words.startswith(f"The largest change that the steps carry is {places.LAUNCH}: −2")
    assert pair.card().warning == ""


@pytest.mark.parametrize(("before", "after"), [(2, 8), (6, 6)])
def test_steps_that_do_not_differ_are_seldom_told_apart(before: int, after: int):
    noise = random.Random(7)
    draw = [([noise.gauss(1000, 20) for _ in range(before)], [noise.gauss(1000, 20) for _ in range(after)])]
    draw += [[[900 + 100 * noise.lognormvariate(0, 1) for _ in range(n)] for n in (before, after)] for _ in range(1000)]
    changes = [Change("a place", "steps", *each, 1000) for each in draw]
    assert sum(change.carried for change in changes) <= 15  # 5 are expected
    low, high = changes[0].interval or (0, 0)
    exact = stats.ttest_ind(*reversed(draw[0])).confidence_interval(0.995)
    assert 1 <= (high - low) / (exact.high - exact.low) < 1.05


def test_what_cannot_be_compared_is_refused():
    marked, whole = steps_of([900] * 8, 100), steps_of([900] * 5, 100)
    whole.events = [event for event in whole.events if not event["name"].startswith("ProfilerStep")]
    with pytest.raises(TraceFileError, match="the file holds no work of a GPU, and the other does"):
        compared(marked, on_cpu(900))
    with pytest.raises(TraceFileError, match=r"the file holds no marked steps: .* step\(\) after each"):
        compared(marked, whole)


def test_what_makes_two_recordings_differ_is_said():
    plain, stacked = busy_steps(), busy_steps()
    stacked.event("python_function", "train.py(1): main", 0, 10)
    assert "Only the second was recorded with stacks" in compared(plain, stacked).card().warning
    larger = compared(on_cpu(900), on_cpu(7000, rows=512)).card().warning
    assert "Operators of the second were given larger tensors, often 8.5 times as large" in larger
    assert compared(on_cpu(900), on_cpu(900)).card().warning == ""
