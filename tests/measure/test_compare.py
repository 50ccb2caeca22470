"""What a comparison promises, on this machine's real clock: parity, state, order, calls, budgets, Ctrl-C, bad input."""

from __future__ import annotations

import collections
import math
import random
import re
import time
import types

import numpy as np
import pytest
import torch

from course_utils.measure import busy, rounds
from course_utils.measure.compare import CaseError, compare
from course_utils.measure.devices import Device, Sample
from course_utils.measure.fresh import Switches, fresh
from course_utils.measure.sweep import sweep
from course_utils.results import paired

QUICK = {"budget_s": 0.05, "memory": False}
# A scripted device takes milliseconds of it; it must not run out when this machine stops for a moment.
AMPLE_S = 5.0


@pytest.fixture(autouse=True)
def _own_clock(own_clock):
    """Decisions follow from times that other programs do not change."""


@pytest.fixture(autouse=True)
def _one_thread():
    """Several threads on cores that are busy wait for each other."""
    with Switches.kept():
        torch.set_num_threads(1)
        yield


class ScriptedDevice(Device):
    """Runs the code once a timing and answers from a script: seconds for one call of each function, and its noise."""

    def __init__(self, seconds, min_sample_s=5e-4, noise=0.0):
        self.seconds = seconds
        self.min_sample_s = min_sample_s
        self.timings = []
        self._random = random.Random(0)
        self._noise = noise

    def sample(self, fn, calls):
        fn()
        self.timings.append(fn)
        return Sample(self.seconds[fn] * math.exp(self._random.gauss(0, self._noise)))

    def peak_memory(self, fn):
        return None, None


class OnAClockOfItsOwn(ScriptedDevice):
    """Its timings take the time that the script says, and nothing else takes any."""

    def __init__(self, seconds, monkeypatch, **options):
        super().__init__(seconds, **options)
        self.now = 0.0
        clock = types.SimpleNamespace(perf_counter=lambda: self.now, time=lambda: self.now)
        monkeypatch.setattr(rounds, "time", clock)

    def sample(self, fn, calls):
        sample = super().sample(fn, calls)
        self.now += calls * sample.elapsed_s
        return sample


def training_step(foreach, weights):
    model = torch.nn.Linear(32, 32)
    weights.append([p.detach().clone() for p in model.parameters()])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
    x = torch.randn(4, 32)

    def step():
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def test_a_training_step_with_its_optimizer():
    loop, foreach = [], []
    cases = {"for loop": fresh(training_step, False, loop), "foreach": fresh(training_step, True, foreach)}
    result = compare(cases, budget_s=0.3)
    # The baseline is built twice: its A/A control has tensors of its own.
    assert (len(loop), len(foreach)) == (2, 1)
    assert all(torch.equal(a, b) for built in (loop[1], foreach[0]) for a, b in zip(loop[0], built, strict=True))
    assert result.agreement == "outputs agree"
    assert result.rounds >= 8
    assert len(result.control.elapsed_s) == len(result["foreach"].measurement.elapsed_s) == result.rounds
    assert all(case.measurement.peak_allocated_bytes > 0 for case in result)


def test_switches_of_a_case_reach_neither_the_other_nor_the_caller():
    matmul = torch.backends.mkldnn.matmul
    seen = collections.defaultdict(set)

    def switches():
        grad, deterministic = torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()
        return torch.get_num_threads(), torch.get_default_dtype(), grad, deterministic, matmul.fp32_precision

    before = switches()

    def factory(label):
        if label == "changed":
            torch.set_num_threads(2)
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)
            torch.use_deterministic_algorithms(True, warn_only=True)
            matmul.fp32_precision = "bf16"
        return lambda: seen[label].add(switches())

    compare({label: fresh(factory, label) for label in ("plain", "changed", "plain again")}, check=False, budget_s=0.1)
    assert seen["plain"] == seen["plain again"] == {before}
    assert seen["changed"] == {(2, torch.float64, False, True, "bf16")}
    assert switches() == before


def test_the_callers_random_numbers_go_on_as_if_nothing_had_been_measured():
    def drawn():
        return torch.rand(1).item(), random.random(), np.random.rand()

    def seed():
        torch.manual_seed(11)
        random.seed(11)
        np.random.seed(11)

    seed()
    expected = drawn()
    seed()
    compare({"a": drawn, "b": drawn}, budget_s=0.1)
    assert drawn() == expected


def test_dropout_sees_the_same_numbers_in_the_same_round():
    drawn = {"a": [], "b": []}
    x = torch.ones(64)

    def factory(label):
        def case():
            output = torch.nn.functional.dropout(x, 0.5)
            drawn[label].append(output.tolist())
            return output

        return case

    # One call a timing, so that every timing of a round draws once.
    device = ScriptedDevice(collections.defaultdict(lambda: 1e-3))
    result = compare({label: fresh(factory, label) for label in drawn}, device=device, budget_s=AMPLE_S)
    assert result.agreement == "outputs agree"  # the very first calls drew the same, too
    # Each timing follows an untimed call; and a runs twice in a round, as baseline and as control.
    a, b = drawn["a"][-4 * result.rounds :], drawn["b"][-2 * result.rounds :]
    for i in range(result.rounds):
        assert a[4 * i : 4 * i + 4] == 2 * b[2 * i : 2 * i + 2]
    assert len({tuple(numbers) for numbers in b[1:24:2]}) == 12  # other ones in the next round


def one():
    return None


def two():
    return None


def three():
    return None


def test_every_round_times_each_case_once_and_the_baseline_twice_in_random_order():
    device = ScriptedDevice({one: 1e-3, two: 1.05e-3, three: 0.9e-3}, noise=0.01)
    result = compare({"one": one, "two": two, "three": three}, check=False, device=device, budget_s=AMPLE_S)
    assert (result["two"].verdict, result["three"].verdict) == ("SLOWER", "FASTER")
    assert result["two"].interval.meets(1.04, 1.06)
    calls = device.timings[-8 * result.rounds :]
    timings = calls[1::2]
    assert calls[::2] == timings  # what is timed has just run, so that it finds its own data in the cache
    rounds = [tuple(timings[i : i + 4]) for i in range(0, len(timings), 4)]
    assert all(collections.Counter(turn) == {one: 2, two: 1, three: 1} for turn in rounds)
    assert len(set(rounds)) > 6  # there are 12 orders: the baseline's two turns look alike


def test_a_case_does_not_pay_for_data_that_another_case_pushed_out_of_the_cache():
    class Cached(ScriptedDevice):
        """A call takes 30% longer when another function ran before it."""

        last = None

        def sample(self, fn, calls):
            sample = super().sample(fn, calls)
            again, self.last = self.last is fn, fn
            return sample if again else Sample(1.3 * sample.elapsed_s)

    # Baseline and control are one function and often follow each other; the case never does.
    device = Cached({one: 1e-3, two: 1e-3}, noise=0.01)
    result = compare({"one": one, "two": two}, check=False, device=device, budget_s=AMPLE_S)
    assert result["two"].verdict == "SAME"


def test_the_first_call_is_kept_apart_and_a_case_that_stays_slow_for_a_few_more_is_warmed_up():
    class Warming:
        calls = 0

        def __call__(self):
            self.calls += 1
            time.sleep(0.05 if self.calls == 1 else 0.004 if self.calls < 6 else 0.0005)

    result = compare({"one": fresh(Warming), "two": fresh(Warming)}, check=False, budget_s=0.3, memory=False)
    for case in result:
        assert case.measurement.first_call_s >= 0.05
        assert 0.004 <= min(case.measurement.warmup_s[:4]) < 0.05
        assert case.median_s < 0.001


def test_the_budget_is_kept_where_nothing_is_decided(monkeypatch):
    device = OnAClockOfItsOwn({one: 1e-3, two: 1e-3}, monkeypatch, noise=0.5)
    result = compare({"one": one, "two": two}, check=False, device=device, budget_s=0.3)
    assert result["two"].verdict == "UNCLEAR"
    assert 0.25 < device.now < 0.4  # the most rounds would take 15 s
    assert result.confidence == paired.look_confidence(result.rounds, last=True)


def test_what_is_clear_stops_at_a_look_and_what_is_close_gets_more_rounds():
    clear = ScriptedDevice({one: 1e-3, two: 2e-3}, noise=0.001)
    result = compare({"one": one, "two": two}, check=False, device=clear, budget_s=AMPLE_S)
    assert (result["two"].verdict, result.rounds, result.confidence) == ("SLOWER", 12, 0.999)
    close = ScriptedDevice({one: 1e-3, two: 1.03e-3}, noise=0.03)
    result = compare({"one": one, "two": two}, check=False, device=close, budget_s=AMPLE_S)
    assert result["two"].verdict == "SLOWER"
    assert result.rounds in paired.LOOKS[3:]


@pytest.mark.parametrize(("call_s", "round_count", "verdict"), [(0.02, 8, "SLOWER"), (0.08, 1, "UNCLEAR")])
def test_a_budget_is_exceeded_where_that_completes_the_rounds_of_a_verdict(monkeypatch, call_s, round_count, verdict):
    """A round takes six calls of the shorter one, three of the longer. Within the budget there is time for two."""
    device = OnAClockOfItsOwn({one: call_s, two: 1.1 * call_s}, monkeypatch)
    result = compare({"one": one, "two": two}, check=False, device=device, budget_s=0.5)
    assert result.rounds == round_count
    assert result["two"].verdict == verdict
    assert any("budget_s=" in note for note in result.notes) == (round_count < 8)
    assert device.now < 3 * 0.5


def test_cases_that_agree_no_longer_are_named_and_their_times_kept():
    calls = [0]

    def drifting():
        calls[0] += 1
        return torch.ones(3) * (1 if calls[0] < 5 else 2)

    result = compare({"a": lambda: torch.ones(3), "b": drifting}, budget_s=0.1, memory=False)
    assert result.rounds >= 8
    assert any("'b'" in note and "no longer" in note and "fresh()" in note for note in result.notes)


def test_other_programs_are_noticed(monkeypatch):
    class Clock:
        now = 0.0

        def perf_counter(self):
            self.now += 1e-4
            return self.now

    clock = Clock()
    monkeypatch.undo()  # the watch that the other tests here leave out
    monkeypatch.setattr(busy, "time", clock)
    for (everybody, own, taken), words in (
        ((3.0, 1.0, 0), r"^Other programs kept 1\.0 of \d+ cores busy\.$"),
        ((3.0, 1.0, 500), r"^Other programs kept 1\.0 of \d+ cores busy, and .* 2\d\d times a second\.$"),
        ((3.0, 2.9, 500), r"^$"),
    ):
        usage = iter([(0.0, 0.0, 0), (everybody, own, taken)])
        monkeypatch.setattr(busy, "_usage", lambda usage=usage: next(usage))
        with busy.Watch() as watch:
            clock.now += 2
        assert re.search(words, watch.sentence), watch.sentence


class InterruptedDevice(ScriptedDevice):
    """Ctrl-C in the middle of one of the timings that belong to rounds: those of several calls."""

    def __init__(self, timings_before):
        super().__init__({one: 1e-4, two: 1e-4}, min_sample_s=1.5e-4, noise=0.02)
        self.timings_before = timings_before

    def sample(self, fn, calls):
        if calls > 1:
            if self.timings_before == 0:
                raise KeyboardInterrupt
            self.timings_before -= 1
        return super().sample(fn, calls)


@pytest.mark.parametrize("timings", [5, 3 * 50 + 1])
def test_ctrl_c_keeps_complete_rounds(timings):
    device = InterruptedDevice(timings)
    result = compare({"one": one, "two": two}, check=False, device=device, budget_s=AMPLE_S)
    assert result.interrupted
    lengths = {len(case.measurement.elapsed_s) for case in result} | {len(result.control.elapsed_s)}
    assert len(lengths) == 1
    assert 1 <= result.rounds <= timings // 3
    assert result.confidence == paired.look_confidence(result.rounds, last=True)
    if timings < 6:
        assert result["two"].verdict == "UNCLEAR"


def test_ctrl_c_before_the_first_round_says_that_nothing_is_measured():
    with pytest.raises(KeyboardInterrupt, match="before the first round was complete, so nothing is measured"):
        compare({"one": one, "two": two}, check=False, device=InterruptedDevice(1), budget_s=AMPLE_S)


def test_ctrl_c_in_the_memory_pass_keeps_the_rounds():
    class Interrupted(ScriptedDevice):
        def peak_memory(self, fn):
            raise KeyboardInterrupt

    device = Interrupted({one: 1e-3, two: 1e-3})
    result = compare({"one": one, "two": two}, check=False, device=device, budget_s=0.1)
    assert result.rounds >= 12
    assert result.interrupted


def test_ctrl_c_in_a_sweep_keeps_the_points_that_are_done():
    def cases(n):
        if n == 3:
            raise KeyboardInterrupt
        return {"a": one, "b": two}

    result = sweep(cases, over={"n": [1, 2, 3, 4]}, **QUICK)
    assert result.interrupted
    assert result.values == (1, 2)


# --- bad input

x = torch.arange(8.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget_s": 0}, "more than 0 and at most 3600"),
        ({"cases": {"a": one}}, "at least two cases"),
        ({"cases": {"a": one, "b": x}}, "'b' is a Tensor, not a function.*lambda"),
        ({"items": {"a": 1}}, "name exactly the cases a, b; got a"),
    ],
)
def test_what_makes_no_sense(options, words):
    calls = []
    with pytest.raises(ValueError, match=words):
        compare(**{"cases": {"a": lambda: calls.append(1), "b": one}, **options})
    assert not calls  # said before anything runs


def test_a_case_that_raises_is_named():
    words = r"case 'b' failed in its first call: ZeroDivisionError: .* Run it once by itself"
    with pytest.raises(CaseError, match=words):
        compare({"a": one, "b": lambda: 1 / 0}, **QUICK)


def test_calls_that_are_too_short_for_the_clock_are_refused():
    device = ScriptedDevice({one: 1e-3, two: 0.0})
    with pytest.raises(CaseError, match=r"the clock read 0 s for 'two': .* Do more in one call"):
        compare({"one": one, "two": two}, check=False, device=device, budget_s=AMPLE_S)


@pytest.mark.parametrize(
    ("other", "words"), [(lambda: x + 1e-2, "not close"), (lambda: x[:4], "shape"), (lambda: (x, x), "outputs differ")]
)
def test_outputs_that_differ(other, words):
    words = rf"(?s)case 'b' does not compute the same as the baseline 'a'.*{words}.*check="
    with pytest.raises(CaseError, match=words):
        compare({"a": lambda: x, "b": other}, **QUICK)


def test_outputs_agree_at_the_tolerance_of_the_coarser_one():
    first, second = {"loss": (x, 1.0), "n": 3}, {"loss": [x.bfloat16(), 1.0], "n": 3}
    assert compare({"a": lambda: first, "b": lambda: second}, **QUICK).agreement == "outputs agree"


def test_a_check_of_the_lesson_decides():
    def loose(expected, actual):
        torch.testing.assert_close(actual, expected, atol=0.1, rtol=0)

    cases = {"a": lambda: x, "b": lambda: x + 0.05}
    assert compare(cases, check=loose, **QUICK).agreement == "outputs agree, by the lesson's own check"
    with pytest.raises(CaseError, match="does not compute the same"):
        compare({"a": lambda: x, "b": lambda: x + 0.5}, check=loose, **QUICK)


def test_cases_that_share_an_output_buffer_are_still_told_apart():
    out = torch.empty(8)
    with pytest.raises(CaseError, match="does not compute the same"):
        compare({"a": lambda: torch.add(x, x, out=out), "b": lambda: torch.mul(x, x, out=out)}, **QUICK)


def test_code_that_returns_nothing_says_that_it_was_not_checked():
    assert compare({"a": one, "b": two}, **QUICK).agreement.startswith("not checked")


def test_a_sweep_names_the_value_at_which_a_case_failed():
    with pytest.raises(CaseError, match=r"at n=0: the cases could not be made: ZeroDivisionError"):
        sweep(lambda n: {"a": one, "b": two} if 1 / n else {}, over={"n": [1, 0]}, **QUICK)
