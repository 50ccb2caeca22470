"""The rounds of a measurement, from the first call of each case to the last pass.

How they run, and why, is told in the book ("How we measure"). The order here: build each case, time its first call,
check that all agree, warm up, find the number of calls for a timing, run rounds until all is decided or the time is
up, check again that all agree, then the separate passes (launch-bound, memory).
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from course_utils.measure.busy import Watch
from course_utils.measure.cases import (
    NOTHING_RETURNED,
    Case,
    CaseError,
    Check,
    RunningCase,
    case_error,
    check_cases,
    check_parity,
)
from course_utils.measure.devices import Device, Sample
from course_utils.measure.fresh import Fresh, RandomState, Switches
from course_utils.measure.machine import course_size
from course_utils.measure.worked_by import lies_on, touches
from course_utils.results import paired
from course_utils.show.progress import progress

# The longest that a comparison may take. A clear one stops after a fraction of a second.
DEFAULT_BUDGET_S = 10.0
MAX_BUDGET_S = 3600.0
# Budgets at the size for tests, whatever was asked for: what cells assert must not depend on more.
_TEST_BUDGET_S = 0.2
# A budget may be exceeded by this factor where that completes the rounds that a verdict needs: without them, all the
# time before is lost, and how long a call takes on another machine is not known when a budget is chosen.
_MOST_OVERRUN = 3
# Warming up takes at most this share of the budget, all cases together.
_WARMUP_SHARE = 0.1
_WARMUP_WINDOW = 5
_WARMUP_S = 0.02
# Each timing of calls shorter than this follows a call that is not timed: the code shall find its own data in the
# cache, and its own threads awake, not what the case before it left behind. A long call brings its data in while it is
# timed, and what that takes is lost in it: ``benchmarks/records/preceding_calls``.
LONG_CALL_S = 0.05
# Seeds to go through: to seed anew in every round would take longer than a timing.
_RANDOM_NUMBERS = 32

# Whether the rounds tell enough, asked after each of `paired.LOOKS`: from the seconds of every case, round by round,
# the confidence of intervals at this look, and the seconds that the rounds took.
Enough = Callable[[Sequence[Sequence[float]], float, float], bool]


class Rounds:
    """One measurement from the first call to the last pass."""

    def __init__(
        self,
        cases: Mapping[str, Case],
        title: str,
        budget_s: float,
        device: Device,
    ) -> None:
        if not isinstance(budget_s, int | float) or not 0 < budget_s <= MAX_BUDGET_S:
            raise ValueError(
                f"budget_s is the time for the measurement in seconds, more than 0 and at most {MAX_BUDGET_S:.0f}; "
                f"got {budget_s!r}"
            )
        check_cases(cases)
        self._sources = cases
        self.title = title
        self.budget_s = min(budget_s, _TEST_BUDGET_S) if course_size() == "test" else budget_s
        self.device = device
        self._dice = random.Random()
        self._orders: list[tuple[int, ...]] = []
        self.cases: list[RunningCase] = []
        self.notes: list[str] = []
        self.busy = ""
        self.confidence = paired.DECISION_CONFIDENCE
        self.interrupted = False

    def __enter__(self) -> Rounds:
        self._switches, self._random = Switches.now(), RandomState.now()
        return self

    def __exit__(self, *exception: object) -> None:
        self._switches.restore()
        self._random.restore()

    def first_calls(self, keep_outputs: bool = True) -> None:
        """Build each case from the same random state and time its first call."""
        for label, source in self._sources.items():
            self.cases.append(self._built(label, source, keep_outputs))

    def _built(self, label: str, source: Case, keep_output: bool) -> RunningCase:
        self._switches.restore()
        self._random.restore()
        try:
            fn = source.build() if isinstance(source, Fresh) else source
            case = RunningCase(label, fn, Switches.now())
            allocations = self.device.allocations()
            self.device.synchronize()
            start = time.perf_counter()
            output = fn()
            self.device.synchronize()
        except Exception as error:
            raise case_error(label, "its first call", error) from error
        case.first_call_s = time.perf_counter() - start
        kind = self.device.kind
        if kind == "cpu" or self.device.allocations() != allocations or lies_on(output, kind):
            case.touches_device = True  # without another call
        if keep_output:
            # A copy: cases may write into one buffer, and all would then show what the last one wrote.
            case.output = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), output)
        return case

    def check(self, check: Check | bool) -> str:
        """Compare the first outputs, and let go of them; say in words what was done."""
        agreement = check_parity(self.cases, check)
        if agreement == NOTHING_RETURNED:
            self.notes.append("The cases return nothing, so it was not checked that they compute the same thing.")
        for case in self.cases:
            case.output = None
        return agreement

    def check_again(self, check: Check | bool) -> None:
        """After the rounds: a function that keeps something from call to call may no longer compute the same."""
        if check is False or self.interrupted or any(isinstance(source, Fresh) for source in self._sources.values()):
            return
        try:
            for case in self.cases:
                case.switches.restore()
                self._random.restore()
                case.output = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), case.fn())
            check_parity(self.cases, check)
        except KeyboardInterrupt:
            self._stop_after_timings()
        except CaseError as error:
            self.notes.append(
                f"The outputs agreed at first and no longer do: {str(error).splitlines()[0]} If the cases change what "
                "they work on, give each its own with fresh()."
            )
        except Exception as error:
            # The rounds stand, whatever a further call meets.
            self.notes.append(f"Whether the outputs still agree is not known: {type(error).__name__}: {error}")
        for case in self.cases:
            case.output = None

    def add_control(self) -> RunningCase:
        """The baseline once more, timed as if it were another case.

        A baseline with state of its own is built a second time: where its tensors happen to lie in memory can make it
        faster or slower by a percent or two, and a control that shares the tensors would not show that.
        """
        baseline = self.cases[0]
        label = f"{baseline.label} again"
        if isinstance(source := self._sources[baseline.label], Fresh):
            try:
                return self._built(label, source, keep_output=False)
            except CaseError as error:
                if not isinstance(error.__cause__, torch.OutOfMemoryError):
                    raise
                self.notes.append(
                    "The A/A control shares the baseline's state: there was no memory for a second one, so differences "
                    "that come from where tensors lie in memory are not in the noise floor."
                )
        return RunningCase(label, baseline.fn, baseline.switches)

    def run(self, order: list[RunningCase], enough: Enough) -> None:
        """Warm up, find the calls for one timing, then run rounds until it is enough or the time is up."""
        # Only now, after the first calls: what they woke up, a GPU or numpy, has random numbers of its own.
        self._numbers = deque(RandomState.seeded(seed) for seed in range(_RANDOM_NUMBERS))
        watch = Watch()
        try:
            with progress(self.title, expected_s=self.budget_s) as bar, watch:
                started = time.perf_counter()
                estimates = [self._warm_up(case, len(order)) for case in order]
                bar.advance(time.perf_counter() - started)
                self._set_calls(order, estimates)
                self._run_rounds(order, enough, bar, self.budget_s - (time.perf_counter() - started))
        except KeyboardInterrupt:
            self.interrupted = True
            complete = min(len(case.samples) for case in order)
            if complete == 0:
                sentence = f"{self.title}: stopped before the first round was complete, so nothing is measured"
                raise KeyboardInterrupt(sentence) from None
            for case in order:
                del case.samples[complete:]
            self.confidence = paired.look_confidence(complete, last=True)
        self.busy = watch.sentence

    def _set_calls(self, order: list[RunningCase], estimates: list[float]) -> None:
        """How many calls make one timing."""
        # Cases of about the same cost are timed in the same way: a timing has a fixed part, and spread over other
        # numbers of calls it would look like a difference.
        for case, estimate in zip(order, estimates, strict=True):
            call_s = estimates[0] if 0.5 < estimate / estimates[0] < 2 else estimate
            case.calls = max(1, math.ceil(self.device.min_sample_s / call_s))
            case.preceded = call_s < LONG_CALL_S

    def _run_rounds(self, order: list[RunningCase], enough: Enough, bar: Any, left_s: float) -> None:
        """Rounds until a look says that it is enough, or the time is up, or there are more than anybody needs."""
        least = paired.MIN_ROUNDS if len(order) > 1 else 1
        spent_s, done = 0.0, 0
        while done < paired.MOST_ROUNDS and self._has_time(done, spent_s, left_s, least):
            round_s = self._round(order)
            spent_s += round_s
            bar.advance(round_s)
            done = len(order[0].samples)
            if done in paired.LOOKS:
                self.confidence = paired.look_confidence(done, last=False)
                if enough([[sample.elapsed_s for sample in case.samples] for case in order], self.confidence, spent_s):
                    return
        self.confidence = paired.look_confidence(done, last=True)
        if done < least:
            needed = math.ceil(spent_s / done * least * 1.5)
            more_time = f"pass budget_s={needed} or " if needed <= MAX_BUDGET_S else ""
            self.notes.append(
                f"The budget of {self.budget_s:g} s allowed fewer than the {least} rounds that a verdict needs: "
                f"{more_time}make the cases smaller."
            )

    def _has_time(self, done: int, spent_s: float, left_s: float, least: int) -> bool:
        """Whether another round fits the budget, or completes what a verdict needs without going far beyond it."""
        if not done:
            return True
        round_s = spent_s / done
        most_s = left_s + (_MOST_OVERRUN - 1) * self.budget_s
        return spent_s + round_s <= left_s or (done < least and spent_s + (least - done) * round_s <= most_s)

    def _warm_up(self, case: RunningCase, shared_by: int) -> float:
        """Call until the time of a call no longer falls; return an estimate of it."""
        allowed_s = self.budget_s * _WARMUP_SHARE / shared_by
        started = time.perf_counter()
        case.switches.restore()
        self._random.restore()
        while True:
            second = self._timed(case, 1).elapsed_s
            case.warmup_s.append(second if math.isfinite(second) else 0.0)  # nonsense is met in the rounds
            # The longer a call, the fewer tell whether it still becomes faster.
            window = max(1, min(_WARMUP_WINDOW, int(_WARMUP_S / max(min(case.warmup_s), 1e-9))))
            recent, before = case.warmup_s[-window:], case.warmup_s[-2 * window : -window]
            estimate = statistics.median(recent)
            steady = len(before) == window and estimate >= 0.95 * statistics.median(before)
            spent = time.perf_counter() - started
            if (steady and spent >= _WARMUP_S) or spent + estimate > allowed_s or len(case.warmup_s) >= 10_000:
                break
        # A record needs the shape of the warm-up, not ten thousand calls of it.
        del case.warmup_s[100:]
        return self._call_s(case, min(recent))

    def _call_s(self, case: RunningCase, estimate: float) -> float:
        """Seconds of one call, from timings long enough for the clock.

        The quickest of several counts: an estimate that is off would give identical code other numbers of calls.
        """
        calls = 1
        while 0 < 2 * calls * estimate < self.device.min_sample_s:
            calls = math.ceil(min(20 * calls, self.device.min_sample_s / estimate))
            estimate = min(self._timed(case, calls).elapsed_s for _ in range(_WARMUP_WINDOW))
        return estimate if 0 < estimate < math.inf else self.device.min_sample_s

    def _round(self, order: list[RunningCase]) -> float:
        """Time each case once, in random order; return the seconds that it took."""
        started = time.perf_counter()
        turns = [order[index] for index in self._next_order(len(order))]
        # The same random numbers for all cases of a round, other ones in the next round.
        self._numbers.rotate()
        numbers = self._numbers[0]
        timings = []
        for case in turns:
            case.switches.restore()
            numbers.restore()
            # Nothing else comes between this call and the timing, or its data and code would leave the nearest caches.
            if case.preceded:
                self._timed(case, 1)
            timings.append((case, self._timed(case, case.calls)))
        for case, sample in timings:
            if not 0 < sample.elapsed_s < math.inf:
                words = f"the clock read {sample.elapsed_s:g} s for {case.label!r}"
                raise CaseError(f"{words}: its calls are too short to be timed. Do more in one call.")
        for case, sample in timings:
            case.samples.append(sample)
        return time.perf_counter() - started

    def _next_order(self, count: int) -> tuple[int, ...]:
        """A random order of the cases. All come equally often, so that no case is mostly first, or after another."""
        if count > 4:  # too many orders to go through
            return tuple(self._dice.sample(range(count), count))
        if not self._orders:
            self._orders = list(itertools.permutations(range(count)))
            self._dice.shuffle(self._orders)
        return self._orders.pop()

    def _timed(self, case: RunningCase, calls: int) -> Sample:
        try:
            return self.device.sample(case.fn, calls)
        except Exception as error:
            raise case_error(case.label, "the timing", error) from error

    def extras(self, memory: bool) -> None:
        """The passes that would disturb the timing: work queued ahead, and memory."""
        if self.interrupted:
            return
        for case in self.cases:
            case.switches.restore()
            self._random.restore()
            try:
                if enqueue_s := self._suspicious_enqueue_s(case):
                    calls = max(1, min(50, int(0.02 / enqueue_s)))
                    case.prequeued_s = self.device.prequeued_s(case.fn, calls, enqueue_s)
                if memory:
                    case.peaks = self.device.peak_memory(case.fn)
                if case.touches_device is None:
                    case.touches_device = case.prequeued_s is not None or touches(case.fn, self.device)
            except KeyboardInterrupt:
                self._stop_after_timings()
                return
            except Exception as error:
                # The rounds stand, whatever these passes meet: an out-of-memory error, a profiler that is already on.
                self.notes.append(
                    f"The memory and launch passes of {case.label!r} failed: {type(error).__name__}: {error}"
                )

    @property
    def worked_by(self) -> str:
        """What did the work: ``gpu`` as soon as one case worked there, or was measured there and nobody knows."""
        on_gpu = self.device.kind != "cpu" and any(case.touches_device is not False for case in self.cases)
        return "gpu" if on_gpu else "cpu"

    def _stop_after_timings(self) -> None:
        """The rounds are what took the time; what is missing shows as missing."""
        self.interrupted = True
        self.notes.append("Stopped after the timings: the passes for memory and launches are not complete.")

    def _suspicious_enqueue_s(self, case: RunningCase) -> float | None:
        """Seconds to enqueue a call, if that is nearly all of its time on the device: it may be launch-bound."""
        if case.samples[0].device_s is None:
            return None
        enqueue_s = statistics.median(sample.enqueue_s for sample in case.samples)
        device_s = statistics.median(sample.device_s for sample in case.samples)
        return enqueue_s if enqueue_s >= 0.8 * device_s else None
