"""Two traces: what differs between them, and no more than the steps carry."""

from __future__ import annotations

import random
import statistics

import pytest
from scipy import stats

from own_program.traces import shares as places
from own_program.traces.pair import LASTS, Change, TracePair, _student
from own_program.traces.report import TraceError, read_trace
from tests.own_program.traces.made_up import ALL_GATHER, GEMM, TO_GPU, MadeUp, busy_steps


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
    assert card.words.startswith(
        f"The largest change that the steps carry is {places.HIDDEN}: +400 µs in steps 11 and 13. A step's length "
        "changed by −400 µs in steps 11 and 13 (−4%, not told apart) and −5.00 µs in steps 10 and 12"
    )
    assert "Only 2 steps of a kind: so few tell only large changes apart." in card.warning
    assert "Steps as the GPU saw them" in card.provenance


def test_the_largest_change_comes_first_not_the_clearest():
    def made(waits: float, copies: float) -> MadeUp:
        made, at = MadeUp(), 0.0
        for number in range(8):
            ready = at + waits * (1 + number % 3 / 100)
            made.work(GEMM, ready, 50_000, launched=ready - 1)
            made.copy(TO_GPU, ready + 50_000, copies, launched=ready)
            made.step(number, at, ready + 60_000 - at)
            at = ready + 60_000
        return made

    words = compared(made(46_800, 100), made(0, 1400)).card().words
    assert f"the steps carry is {places.LAUNCH}: −4" in words
    assert f"Also {places.PAGEABLE}, +1.30 ms in" in words


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


def test_intervals_hold_the_change_that_was_made():
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
    assert f"{places.LAUNCH}: −200 µs in steps 0 to 7. A step's length changed by" in pair.card().words
    assert pair.card().warning == ""


@pytest.mark.parametrize(("before", "after"), [(2, 2), (3, 3), (6, 6), (2, 8), (20, 20)])
@pytest.mark.parametrize("shape", ["normal", "skewed"])
def test_steps_that_do_not_differ_are_seldom_told_apart(before: int, after: int, shape: str):
    noise = random.Random(7)
    draw = {"normal": lambda: noise.gauss(1000, 20), "skewed": lambda: 900 + 100 * noise.lognormvariate(0, 1)}[shape]
    sides = [([draw() for _ in range(before)], [draw() for _ in range(after)]) for _ in range(2000)]
    assert sum(Change("a place", "steps", *each, 1000).carried for each in sides) <= 30  # 10 are expected


def test_students_quantiles():
    for freedom in (2, 3, 5, 10, 30, 200):
        assert 1 <= _student(freedom) / stats.t.ppf(0.9975, freedom) < 1.05


def test_one_step_carries_nothing():
    card = compared(steps_of([1000], 300), steps_of([1000], 100)).card()
    said = "No difference that the steps carry. A step's length changed by −200 µs (−15%, not told apart)."
    assert card.words == said
    assert "Only 1 step of a kind: one tells nothing apart." in card.warning


def test_steps_that_run_nothing_alike_are_not_compared():
    card = compared(alternating((100, 100)), busy_steps(kernel="other")).card()
    assert card.words.startswith("The two cannot be compared")
    assert "steps 11 and 13" in " ".join(card.notes)


def test_what_cannot_be_compared_is_refused():
    marked, on_cpu = steps_of([900] * 8, 100), MadeUp()
    on_cpu.step(1, 0, 1000)
    on_cpu.op("aten::mm", 10, 900)
    whole = steps_of([900] * 5, 100)
    whole.events = [event for event in whole.events if not event["name"].startswith("ProfilerStep")]
    for before, after, message in (
        (marked.json(), on_cpu.json(), "the file holds no work of a GPU, and the other does"),
        (marked.json(), whole.json(), r"the file holds no marked steps: .* step\(\) after each"),
        (whole.json(), whole.json(), "the file and the file hold no marked steps"),
        (marked.json(), whole.json()[:-80], "no marked steps: .* It ends in the middle: copy or export"),
    ):
        with pytest.raises(TraceError, match=message):
            read_trace(before, after)
    assert "No difference" in compared(on_cpu, on_cpu).card().words


def test_kinds_that_run_the_same_are_matched_by_their_length():
    before = steps_of([3000, 1000] * 4, 5)
    after = steps_of([3000, 3000, *[1000] * 9], 5)  # here the short ones are most of the time
    assert "No difference that the steps carry" in compared(before, after).card().words


def test_a_recording_with_stacks_is_told_from_one_without():
    plain, stacked = busy_steps(), busy_steps()
    stacked.event("python_function", "train.py(1): main", 0, 10)
    assert "Only the second was recorded with stacks" in compared(plain, stacked).card().warning
    assert "stacks" not in repr(compared(stacked, stacked).card())


def of_batch(*batch: int, width: int = 64, shapes: bool = True, lasts: float = 1000) -> MadeUp:
    """Steps of a CPU whose operators are given activations, weights and what the optimizer updates."""
    made = MadeUp()
    for number in range(8):
        at, rows = number * 2.1 * lasts, batch[min(number, len(batch) - 1)]
        sizes = [[rows, 16, 32], [width, 32], [width]], [[rows, 16, width]], [[rows, width], [10, width], [10]]
        for place, (name, dims) in enumerate(zip(("linear", "relu", "linear"), sizes, strict=True)):
            given = {"Input Dims": dims} if shapes else {}
            made.op(f"aten::{name}", at + place * lasts / 2, lasts / 2 - 1 + number % 3, **given)
        for tensor in range(4):
            given = {"Input Dims": [[width, 32], []]} if shapes else {}
            made.op("aten::mul_", at + 1.6 * lasts + tensor, 0.5, **given)
        made.step(number, at, 2 * lasts)
    return made


def test_a_larger_batch_is_said_and_its_times_are_divided():
    pair = compared(of_batch(4), of_batch(32, lasts=7000))
    assert pair.times == 8
    words = pair.card().words
    assert words.startswith("A batch of the second trace holds 8 times as much data, so the second's times are divided")
    assert "For as much data, a step's length changed by −26" in words
    assert "after ÷ 8" in repr(pair.card())
    smaller = compared(of_batch(32, lasts=7000), of_batch(4)).card()
    assert "of the first trace holds 8 times as much data, so the second's times are multiplied by 8." in smaller.words
    assert "after × 8" in repr(smaller)


OTHER_SIZES = "Operators of the two were given tensors of other sizes"


@pytest.mark.parametrize(
    ("before", "after", "warns"),
    [
        (of_batch(4), of_batch(4), False),
        (of_batch(4), of_batch(4, 4, 4, 4, 4, 4, 4, 3), False),
        (of_batch(4, 9, 5, 8, 3, 7, 2, 6), of_batch(8, 3, 6, 4, 7, 5, 9, 4), False),
        (of_batch(4), of_batch(32, shapes=False), False),
        (of_batch(4), of_batch(4, width=128), True),
        (of_batch(4), of_batch(8, width=128), True),
    ],
    ids=["the same", "a smaller last one", "sizes that vary", "no shapes", "a wider model", "wider, larger batch"],
)
def test_times_are_divided_for_nothing_but_a_larger_batch(before: MadeUp, after: MadeUp, warns: bool):
    pair = compared(before, after)
    assert pair.times == 1
    assert "much data" not in pair.card().words
    assert (OTHER_SIZES in pair.card().warning) == warns


def test_what_changed_most_is_named_where_the_steps_differ_in_it():
    def made(count: int, **lasts: float) -> MadeUp:
        made, at = MadeUp(), 0.0
        for number in range(count):
            began = at
            for name, time in lasts.items():
                made.op(f"aten::{name}", at, time + number % 3)
                at += time + number % 3
            made.step(number, began, at + 1 - began)
            at += 1
        return made

    before = made(8, addmm=1000, mm=500, relu=100, sum=100, tiny=50)
    after = made(8, addmm=1400, mm=300, relu=150, sum=101, tiny=50)
    named = "aten::addmm +400 µs, aten::mm −200 µs, aten::relu +50.0 µs. None was tested by itself."
    notes = " ".join(compared(before, after).card().notes)
    assert f"Of the operators in steps 0 to 7, these changed most, a step on average: {named}" in notes
    for same in ((before, before), (made(1, addmm=1000), made(1, addmm=1400))):
        assert "changed most" not in " ".join(compared(*same).card().notes)
