"""Two traces: what differs between them, and no more than the steps carry."""

from __future__ import annotations

import random
import statistics

import pytest

from own_program.traces import shares as places
from own_program.traces.pair import LASTS, TracePair, _student
from own_program.traces.report import TraceError, read_trace
from tests.own_program.traces.made_up import ALL_GATHER, GEMM, MadeUp, busy_steps


def alternating(hidden: tuple[float, float], count: int = 4, wobble: float = 3.0) -> MadeUp:
    """Steps of 10 ms of two kinds; in each, 1 ms of communication and more, of which the given part is hidden."""
    made = MadeUp()
    at = 20_000.0
    for number in range(count):
        more = wobble * (number // 2 % 2)
        start = 10_000.0 * number
        made.step(10 + number, start, 10_000)
        beside = hidden[number % 2] + more / 2
        made.work(GEMM, at, 9000 + more, launched=start + 1)
        sends = 1000 + 300 * (number // 2 % 2)  # waits for other ranks differ
        made.work(ALL_GATHER, at + 9000 + more - beside, sends, launched=start + 4, stream=23)
        for extra in range(number % 2 * 2):
            made.work("update", at + extra, 5, launched=start + 7)
        at += 9000 + more - beside + sends
    return made


def compared(before: MadeUp, after: MadeUp) -> TracePair:
    pair = read_trace(before.json(), after.json())
    assert isinstance(pair, TracePair)
    assert pair.plan == ()
    pair._repr_html_()
    return pair


def test_a_difference_in_one_kind_of_steps_is_named_and_kinds_are_not_averaged():
    pair = compared(alternating((100, 100)), alternating((105, 500)))
    card = pair.card()
    named = "communication hidden behind computing: +400 µs in steps 11 and 13, +5.00 µs in steps 10 and 12 (not told "
    named += "apart)"
    assert card.words.startswith(f"What differs most clearly is {named}.")
    assert "No interval claimed: 2 steps each of a kind" in card.warning
    assert "Steps as the GPU saw them" in card.provenance
    (changed,) = (
        change
        for of_kind in pair.changes
        for change in of_kind
        if change.what == places.HIDDEN and change.kind == "steps 11 and 13"
    )
    assert changed.interval is None
    assert changed.carried
    assert changed.by == pytest.approx(400, abs=0.1)


def test_a_larger_difference_that_is_not_told_apart_is_said_beside_the_one_that_is():
    """As in two steps of 62.5 ms that became 61.6: their ranges do not overlap, and lie too near all the same."""

    def made(shorter: float, hidden: float) -> MadeUp:
        made = MadeUp()
        at = 0.0
        for number, lasts in enumerate((10_000 - shorter, 10_200 - shorter)):
            made.step(number, at, lasts)
            made.work(GEMM, at, lasts, launched=at)
            made.work(ALL_GATHER, at + 100, hidden, launched=at + 1, stream=23)
            at += lasts
        return made

    card = compared(made(0, 100), made(800, 400)).card()
    assert card.words == (
        "What differs most clearly is communication hidden behind computing: +300 µs in steps 0 and 1. A step's length "
        "changed by more, −800 µs in steps 0 and 1, which is not told apart."
    )
    assert "a change of 0.2% of a step and more, where before and after lie over 8 times (with 2 steps)" in card.warning
    clear = compared(made(0, 100), made(8000, 400)).card()
    assert "not told apart" not in clear.words


def test_what_told_apart_needs_is_said_of_each_number_of_steps():
    card = compared(alternating((100, 100), count=5), alternating((105, 500), count=5)).card()
    assert "over 8 times (with 2 steps) and 2 times (with 3 steps) the wider bracket" in card.warning
    assert "One step tells nothing apart." in compared(busy_steps(1), busy_steps(1)).card().warning
    (note,) = compared(busy_steps(8), busy_steps(8)).card().notes
    assert note.endswith("0.2% of a step and more, with an interval that leaves out zero.")


def test_the_same_program_twice_differs_in_nothing():
    card = compared(alternating((100, 100)), alternating((100.1, 100.2), wobble=4)).card()
    assert card.words.startswith("No difference that the steps carry")
    assert "yes" not in repr(card)


def steps_of(lengths: list[float], gap: float) -> MadeUp:
    made = MadeUp()
    at = 0.0
    for number, lasts in enumerate(lengths):
        made.step(number, at, lasts + gap)
        made.work(GEMM, at + gap, lasts, launched=at + gap - 5)
        at += lasts + gap
    return made


def test_intervals_from_six_steps_on():
    noise = random.Random(1)
    lengths = [[1000 + noise.gauss(0, 10) for _ in range(8)] for _ in range(2)]
    pair = compared(steps_of(lengths[0], 300), steps_of(lengths[1], 100))
    (changes,) = pair.changes
    by_name = {change.what: change for change in changes}
    low, high = by_name[places.LAUNCH].interval or (0, 0)
    assert low <= -200 <= high + 1
    assert by_name[places.LAUNCH].carried
    assert not by_name[places.COMPUTE].carried
    low, high = by_name[LASTS].interval or (0, 0)
    assert low < -200 + statistics.fmean(lengths[1]) - statistics.fmean(lengths[0]) < high
    words = pair.card().words
    assert "idle: waits for the host" in words
    assert "−200 µs" in words
    assert "A step's length" in words
    assert "No interval claimed" not in pair.card().warning
    assert "as if steps were independent" in " ".join(pair.card().notes)


def test_an_interval_holds_what_it_says():
    noise = random.Random(7)
    false = 0
    for _ in range(60):
        lengths = [[1000 + noise.gauss(0, 20) for _ in range(6)] for _ in range(2)]
        pair = compared(steps_of(lengths[0], 100), steps_of(lengths[1], 100))
        false += any(change.carried for of_kind in pair.changes for change in of_kind)
    assert false <= 8  # 3 are expected


@pytest.mark.parametrize(("freedom", "exact"), [(5, 2.5706), (10, 2.2281), (30, 2.0423)])
def test_students_quantiles(freedom: float, exact: float):
    assert _student(0.975, freedom) == pytest.approx(exact, rel=2e-3)


def test_one_step_carries_nothing():
    pair = compared(steps_of([1000], 300), steps_of([1000], 100))
    assert pair.card().words.startswith("No difference that the steps carry: a step's length changed by −200 µs")
    assert "1 step of a kind" in pair.card().warning


def test_steps_that_run_nothing_alike_are_not_compared():
    before, after = alternating((100, 100)), busy_steps(kernel="other")
    card = compared(before, after).card()
    assert card.words.startswith("The two cannot be compared")
    assert "steps 11 and 13" in " ".join(card.notes)


def test_a_gpu_and_a_cpu_cannot_be_compared():
    made = MadeUp()
    made.step(1, 0, 1000)
    made.op("aten::mm", 10, 900)
    with pytest.raises(TraceError, match="holds no work of a GPU"):
        read_trace(busy_steps().json(), made.json())
    pair = compared(made, made)
    assert "No difference" in pair.card().words


def whole(count: int) -> bytes:
    """Steps of 1 ms that nobody marked."""
    made = steps_of([900] * count, 100)
    made.events = [event for event in made.events if not event["name"].startswith("ProfilerStep")]
    return made.json()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (steps_of([900] * 8, 100).json(), whole(5), "the second, the file, marks no steps; record with the profiler's"),
        (whole(5), steps_of([900] * 8, 100).json(), r"the first, the file, marks no steps; .* step\(\) after each"),
        (whole(5), whole(5), r"neither of them marks its steps; record with the profiler's step\(\)"),
        (steps_of([900] * 8, 100).json(), whole(5)[:-80], "marks no steps; it ends in the middle, so copy or export"),
    ],
)
def test_a_recording_without_steps_is_not_compared_as_if_it_were_one(before: bytes, after: bytes, message: str):
    with pytest.raises(TraceError, match=message):
        read_trace(before, after)
    made = MadeUp()
    made.op("aten::mm", 10, 900)
    with pytest.raises(TraceError, match="neither of them marks its steps"):
        read_trace(made.json(), made.json())


def test_a_gpu_on_which_no_step_is_marked_is_left_out_of_the_comparison():
    made = busy_steps()
    made.work(GEMM, -2000, 900, device=1)
    card = compared(made, made).card()
    assert "No step is marked in GPU 1, the recording: not compared." in card.notes
    assert "recording" not in repr(card.table)


def of_lengths(*lengths: float) -> bytes:
    made = MadeUp()
    at = 0.0
    for number, lasts in enumerate(lengths):
        made.step(number, at, lasts)
        for kernel in range(4):
            made.work(GEMM, at + kernel * lasts / 4, lasts / 4, launched=at + kernel / 10)
        at += lasts
    return made.json()


def test_kinds_that_run_the_same_are_matched_by_their_length():
    before = of_lengths(*[3000, 1000] * 4)
    after = of_lengths(3000, 3000, *[1000] * 9)  # here the short ones are most of the time
    assert "No difference that the steps carry" in read_trace(before, after).card().words


def test_a_recording_with_stacks_is_told_from_one_without():
    plain, stacked = busy_steps(), busy_steps()
    stacked.event("python_function", "train.py(1): main", 0, 10)
    slower = "was recorded with stacks, which make Python slower: record both alike."
    assert f"Only the second {slower}" in compared(plain, stacked).card().warning
    assert f"Only the first {slower}" in compared(stacked, plain).card().warning
    assert "stacks" not in repr(compared(stacked, stacked).card())


def operators(count: int, **lasts: float) -> MadeUp:
    """Steps of a CPU that run these operators, each for a time that hardly varies."""
    made = MadeUp()
    at = 0.0
    for number in range(count):
        began = at
        for name, time in lasts.items():
            made.op(f"aten::{name}", at, time + number % 3)
            at += time + number % 3
        at += 1
        made.step(number, began, at - began)
    return made


def test_the_operators_that_changed_most_are_named_where_operators_differ():
    before = operators(8, addmm=1000, mm=500, relu=100, sum=100, tiny=50)
    after = operators(8, addmm=1400, mm=300, relu=150, sum=101, tiny=50)
    card = compared(before, after).card()
    named = "aten::addmm +400 µs, aten::mm −200 µs, aten::relu +50.0 µs"
    assert f"Of the operators in steps 0 to 7, these changed most, a step on average: {named}. None was tested" in (
        " ".join(card.notes)
    )
    assert "aten::sum" in repr(card.numbers)
    assert "changed most" not in " ".join(compared(before, before).card().notes)


def test_names_are_not_told_where_the_steps_carry_no_difference():
    card = compared(operators(1, addmm=1000), operators(1, addmm=1400)).card()
    assert "changed most" not in " ".join(card.notes)
    assert "aten::addmm" in repr(card.numbers)


def test_the_kernels_that_changed_most_are_told_of_the_kind_of_steps_that_differs():
    def made(lasts: float) -> MadeUp:
        made = MadeUp()
        for number in range(12):
            start = 1000.0 * number
            made.step(number, start, 1000)
            made.work(GEMM, start + 1000, lasts if number % 2 else 400, launched=start + 1)
            for extra in range(number % 2 * 3):
                made.work("update", start + 1800 + extra, 1, launched=start + 5 + extra)
        return made

    pair = compared(made(600), made(500))
    (note,) = (note for note in pair.card().notes if "changed most" in note)
    kind = "steps 1, 3, … 11 (6 of them)"
    assert note.startswith(f"Of the kernels that compute in {kind}, these changed most, a step on average: ")
    assert f"{GEMM} −100 µs." in note
