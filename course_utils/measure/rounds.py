"""The rounds of a measurement, from the first call of each case to the last pass.

How they run, and why, is told in the book ("How we measure"). The order here: build each case, time its first call,
check that all agree, warm up, find the number of calls for a timing, run a pilot that fixes the number of rounds, run
the rounds, then the separate passes (launch-bound, memory).
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Mapping

import torch
from torch.utils._pytree import tree_map_only

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
from course_utils.measure.devices import Device, Sample, device_under_test
from course_utils.measure.fresh import Fresh, RandomState, Switches
from course_utils.measure.machine import course_size
from course_utils.records import paired
from course_utils.show.progress import progress

DEFAULT_BUDGET_S = 2.0
MAX_BUDGET_S = 3600.0
# Half-width of the 99% interval that the pilot plans for.
PRECISION = 0.004
# Budgets at the size for tests, whatever was asked for: what cells assert must not depend on more.
_TEST_BUDGET_S = 0.2
# Rounds of a pilot, and the share of the budget that it may take.
_PILOT_ROUNDS = 24
_PILOT_SHARE = 0.15
# More rounds than the interval needs still show the shape of the noise; beyond the upper bound a record only grows.
_LEAST_ROUNDS, _MOST_ROUNDS = 40, 400
# A budget may be exceeded by this factor where that completes the rounds that a verdict needs: without them, all the
# time before is lost, and how long a call takes on another machine is not known when a budget is chosen.
_MOST_OVERRUN = 3
# The share of the budget that warming up may take, all cases together.
_WARMUP_SHARE = 0.25
_WARMUP_WINDOW = 5
# A timing of fewer calls than this is preceded by one that is not timed: with a warm cache the code shall find its own
# data there, and its own threads awake, not what the case before it left behind.
_CALLS_WARM_BY_THEMSELVES = 10


class Rounds:
    """One measurement from the first call to the last pass."""

    def __init__(
        self,
        cases: Mapping[str, Case],
        title: str,
        budget_s: float,
        cache: str,
        device: Device | None,
        seed: int | None = None,
    ) -> None:
        if not isinstance(budget_s, int | float) or not 0 < budget_s <= MAX_BUDGET_S:
            raise ValueError(
                f"budget_s is the time for the measurement in seconds, more than 0 and at most {MAX_BUDGET_S:.0f}; "
                f"got {budget_s!r}"
            )
        if cache not in ("warm", "cold"):
            raise ValueError(f"cache is 'warm' or 'cold', got {cache!r}")
        check_cases(cases)
        self._sources = cases
        self.title = title
        self.budget_s = min(budget_s, _TEST_BUDGET_S) if course_size() == "test" else budget_s
        self.cache = cache
        self.device = device or device_under_test()
        self._dice = random.Random(seed)
        self._orders: list[tuple[int, ...]] = []
        self.cases: list[RunningCase] = []
        self.notes: list[str] = []
        self.planned = 0
        self._rounds_begun = 0
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
            self.device.synchronize()
            start = time.perf_counter()
            output = fn()
            self.device.synchronize()
        except Exception as error:
            raise case_error(label, "its first call", error) from error
        case.first_call_s = time.perf_counter() - start
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

    def run(self, order: list[RunningCase]) -> None:
        """Warm up, find the calls for one timing, run the pilot, then the planned rounds."""
        with progress(self.title, expected_s=self.budget_s) as bar:
            started = time.perf_counter()
            try:
                estimates = [self._warm_up(case, len(order)) for case in order]
                bar.advance(time.perf_counter() - started)
                enough_s = self.device.min_cold_sample_s if self.cache == "cold" else self.device.min_sample_s
                for case, call_s in zip(order, estimates, strict=True):
                    # Cases of about the same cost get the same number of calls: a timing has a fixed part, and spread
                    # over other numbers of calls it would look like a difference.
                    alike = 0.5 < call_s / estimates[0] < 2
                    case.calls = max(1, math.ceil(enough_s / max(estimates[0] if alike else call_s, 1e-9)))
                self.planned = self._plan(order, started)
                while len(order[0].samples) < self.planned:
                    bar.advance(self._round(order))
            except KeyboardInterrupt:
                self.interrupted = True
                self.notes.append("Stopped before all rounds were done.")
                complete = min(len(case.samples) for case in order)
                if complete == 0:
                    raise
                for case in order:
                    del case.samples[complete:]

    def _warm_up(self, case: RunningCase, shared_by: int) -> float:
        """Call until the time of a call no longer falls; return an estimate of it."""
        allowed_s = self.budget_s * _WARMUP_SHARE / shared_by
        started = time.perf_counter()
        case.switches.restore()
        self._random.restore()
        while True:
            case.warmup_s.append(self._timed(case, 1).elapsed_s)
            recent, before = case.warmup_s[-_WARMUP_WINDOW:], case.warmup_s[-2 * _WARMUP_WINDOW : -_WARMUP_WINDOW]
            estimate = statistics.median(recent)
            steady = len(before) == _WARMUP_WINDOW and estimate >= 0.95 * statistics.median(before)
            spent = time.perf_counter() - started
            if (steady and spent >= 0.02) or spent + estimate > allowed_s or len(case.warmup_s) >= 10_000:
                break
        if self.cache == "warm" and estimate * 20 < self.device.min_sample_s:
            # One short call is mostly clock and synchronisation: estimate it from many, and not from one timing of
            # them, which another program may have interrupted.
            many = max(1, int(self.device.min_sample_s / max(estimate, 1e-7)))
            estimate = min(self._timed(case, many).elapsed_s for _ in range(5))
        # A record needs the shape of the warm-up, not ten thousand calls of it.
        del case.warmup_s[100:]
        return estimate

    def _plan(self, order: list[RunningCase], started: float) -> int:
        """Fix the number of rounds, from a pilot whose timings are thrown away; return it.

        Where a round is so dear that there is no time for a pilot, the rounds that were run to find that out count.
        """
        self.planned = _LEAST_ROUNDS  # what an interruption of the pilot is held against
        round_s = self._round(order)
        for _ in range(2):
            # One round may hold a pause of the machine; the quickest of three tells what a round costs.
            if round_s < 0.1 * self.budget_s:
                round_s = min(round_s, self._round(order))
        left_s = self.budget_s - (time.perf_counter() - started)
        pilot = min(_PILOT_ROUNDS, int(_PILOT_SHARE * left_s / round_s))
        wanted, have = _LEAST_ROUNDS, len(order[0].samples)
        if pilot >= 6:
            round_s = statistics.median(self._round(order) for _ in range(pilot))
            series = [[sample.elapsed_s for sample in case.samples[-pilot:]] for case in order]
            logs = [paired.log_ratios(other, series[0]) for other in series[1:]]
            wanted = max(wanted, paired.rounds_for_precision(logs, PRECISION)) if logs else _MOST_ROUNDS
            for case in order:
                case.samples.clear()
            have = 0
        left_s = self.budget_s - (time.perf_counter() - started)
        planned = max(1, min(wanted, have + max(0, int(left_s / round_s)), _MOST_ROUNDS))
        if len(order) > 1 and planned < paired.MIN_ROUNDS:
            if (paired.MIN_ROUNDS - have) * round_s <= left_s + (_MOST_OVERRUN - 1) * self.budget_s:
                return paired.MIN_ROUNDS
            needed = math.ceil(round_s * paired.MIN_ROUNDS * 1.5)
            self.notes.append(
                f"The budget of {self.budget_s:g} s allowed fewer than the {paired.MIN_ROUNDS} rounds that a verdict "
                f"needs: pass budget_s={needed} or make the cases smaller."
            )
        return planned

    def _round(self, order: list[RunningCase]) -> float:
        """Time each case once, in random order; return the seconds that it took."""
        started = time.perf_counter()
        turns = [order[index] for index in self._next_order(len(order))]
        # The same random numbers for all cases of a round, other ones in the next round.
        self._rounds_begun += 1
        numbers = RandomState.seeded(self._rounds_begun)
        for case in turns:
            case.switches.restore()
            if self.cache == "warm" and case.calls < _CALLS_WARM_BY_THEMSELVES:
                numbers.restore()
                self._timed(case, 1)
            numbers.restore()
            case.samples.append(self._timed(case, case.calls))
        return max(time.perf_counter() - started, 1e-9)

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
            return self.device.sample(case.fn, calls, self.cache)
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
            except KeyboardInterrupt:
                # The rounds are what took the time; what is missing shows as missing.
                self.interrupted = True
                self.notes.append("Stopped after the timings: the passes for memory and launches are not complete.")
                return
            except Exception as error:
                # The rounds stand, whatever these passes meet: an out-of-memory error, a profiler that is already on.
                self.notes.append(
                    f"The memory and launch passes of {case.label!r} failed: {type(error).__name__}: {error}"
                )

    def _suspicious_enqueue_s(self, case: RunningCase) -> float | None:
        """Seconds to enqueue a call, if that is nearly all of its time on the device: it may be launch-bound."""
        if self.cache == "cold" or case.samples[0].device_s is None:
            return None
        enqueue_s = statistics.median(sample.enqueue_s for sample in case.samples)
        device_s = statistics.median(sample.device_s for sample in case.samples)
        return enqueue_s if enqueue_s >= 0.8 * device_s else None
