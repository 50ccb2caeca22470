"""Measure code and compare it fairly: parity first, then paired rounds in random order with an A/A control.

How a comparison runs, and why, is told in the book ("How we measure"). The order here: build each case, time its first
call, check that all agree, warm up, find the number of calls for a timing, run a pilot that fixes the number of rounds,
run the rounds, then the separate passes (launch-bound, memory).
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from course_utils.measure.devices import Device, Sample, device_under_test
from course_utils.measure.fresh import Fresh, RandomState, Switches
from course_utils.measure.machine import environment
from course_utils.records import paired
from course_utils.records.kinds.ceilings import Ceiling
from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.kinds.sweep import Sweep, SweepPoint
from course_utils.records.store import keep
from course_utils.show.progress import progress

DEFAULT_BUDGET_S = 2.0
MAX_BUDGET_S = 3600.0
# Half-width of the 99% interval that the pilot plans for.
PRECISION = 0.004
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

Check = Callable[[Any, Any], Any]


class CaseError(RuntimeError):
    """A case cannot be compared. The message names the case and says what to do."""


@dataclass
class _Running:
    """A case while it is being measured."""

    label: str
    fn: Callable[[], Any]
    switches: Switches
    output: Any = None
    first_call_s: float = 0.0
    warmup_s: list[float] = field(default_factory=list)
    calls: int = 1
    samples: list[Sample] = field(default_factory=list)


def measure(
    fn: Callable[[], Any] | Fresh,
    label: str = "code",
    *,
    name: str | None = None,
    budget_s: float = DEFAULT_BUDGET_S,
    cache: str = "warm",
    memory: bool = True,
    parameters: Mapping[str, Any] | None = None,
    items: float | None = None,
    flops: float | None = None,
    bytes: float | None = None,
    device: Device | None = None,
) -> Measurement:
    """Measure one piece of code: when there is nothing to compare it with.

    Args:
        fn: a function without arguments, or :func:`course_utils.fresh`.
        label: what to call it.
        name: ``lesson/experiment``, to keep it in a record.
        budget_s: seconds for the timings, first call and memory pass not counted.
        cache: ``warm``, or ``cold`` to empty the caches before each call.
        memory: whether to make a separate pass for peak memory.
        parameters: problem sizes and settings, for the record.
        items: items that one call processes.
        flops: floating-point operations of one call.
        bytes: bytes that one call moves.
        device: the device under test; by default this machine's.

    Returns:
        Raw samples, shown as a table.

    Raises:
        ValueError: if the budget or the cache state make no sense.
        CaseError: if the code raises.

    Example:
        >>> a = torch.randn(64, 64)
        >>> measure(lambda: a @ a, "matmul", budget_s=0.1).median_s > 0
        True
    """
    here = environment()
    run = _Run({label: fn}, name or label, budget_s, cache, device)
    with run:
        run.first_calls(keep_outputs=False)
        run.rounds(order=list(run.cases))
        run.extras(memory)
    return keep(
        run.measurement(
            run.cases[0],
            {"items": items, "flops": flops, "bytes": bytes},
            environment=here,
            name=name,
            parameters=dict(parameters or {}),
            notes=tuple(run.notes),
        )
    )


def compare(
    cases: Mapping[str, Callable[[], Any] | Fresh],
    *,
    name: str | None = None,
    check: Check | bool = True,
    budget_s: float = DEFAULT_BUDGET_S,
    practical: float = paired.PRACTICAL,
    cache: str = "warm",
    memory: bool = True,
    parameters: Mapping[str, Any] | None = None,
    items: float | Mapping[str, float] | None = None,
    flops: float | Mapping[str, float] | None = None,
    bytes: float | Mapping[str, float] | None = None,
    ceiling: Ceiling | None = None,
    device: Device | None = None,
    seed: int | None = None,
) -> Comparison:
    """Compare two or more ways to do the same thing.

    The first case is the baseline. It runs twice in every round: the second time is the A/A control, which shows what
    this machine makes of no difference at all.

    Args:
        cases: label to function without arguments, or to :func:`course_utils.fresh` for code with state of its own.
        name: ``lesson/experiment``, to keep it in a record.
        check: True: outputs must agree by ``torch.testing.assert_close``, at the tolerance of the coarser dtype; a
            function of (baseline's output, case's output) that raises or returns False if they do not; False: no
            check, and the result says so.
        budget_s: seconds for the timings; first calls, parity check and memory pass are not counted. It may become up
            to three times as much where that completes the eight rounds that a verdict needs.
        practical: relative difference below which nobody cares: 0.01 is 1%.
        cache: ``warm``, or ``cold`` to empty the caches before each call.
        memory: whether to make a separate pass for peak memory.
        parameters: problem sizes and settings, for the record.
        items: items that one call processes; a number for all cases, or one for each.
        flops: floating-point operations of one call, likewise.
        bytes: bytes that one call moves, likewise.
        ceiling: a limit of this machine, from :func:`course_utils.ceilings`, to show rates against.
        device: the device under test; by default this machine's.
        seed: for the order of the cases inside the rounds; by default another order in each comparison.

    Returns:
        Raw samples of all cases and of the control, with verdicts.

    Raises:
        ValueError: if there are fewer than two cases, or an argument makes no sense.
        CaseError: if a case raises, or if outputs differ.

    Example:
        >>> a = torch.randn(128, 128)
        >>> result = compare({"matmul": lambda: a @ a, "twice": lambda: (a @ a, a @ a)[1]}, budget_s=0.3)
        >>> result["twice"].ratio > 1
        True
    """
    if not isinstance(cases, Mapping) or len(cases) < 2:
        count = len(cases) if isinstance(cases, Mapping) else "no"
        raise ValueError(
            f"compare() needs at least two cases, got {count}: pass a dictionary such as "
            "{'pageable': f, 'pinned': g}, the baseline first; measure() takes a single function"
        )
    if not 0 < practical < 1:
        raise ValueError(f"practical is a relative difference between 0 and 1, got {practical!r}; 0.01 is 1%")
    work = {key: _per_case(key, value, cases) for key, value in (("items", items), ("flops", flops), ("bytes", bytes))}
    here = environment()
    started = time.perf_counter()
    run = _Run(cases, name or " vs ".join(map(str, cases)), budget_s, cache, device, seed)
    with run:
        run.first_calls()
        agreement = run.check(check)
        control = run.add_control()
        run.rounds(order=[*run.cases, control])
        run.extras(memory)
    return keep(
        Comparison(
            cases=tuple(run.measurement(case, {key: of[case.label] for key, of in work.items()}) for case in run.cases),
            control=Measurement(
                label=control.label,
                calls=control.calls,
                elapsed_s=tuple(sample.elapsed_s for sample in control.samples),
            ),
            environment=here,
            name=name,
            parameters=dict(parameters or {}),
            cache=cache,
            clock=run.device.cold_clock() if cache == "cold" else run.device.clock,
            agreement=agreement,
            practical=practical,
            planned_rounds=run.planned,
            spent_s=time.perf_counter() - started,
            interrupted=run.interrupted,
            ceiling=ceiling,
            notes=tuple(run.notes),
        )
    )


def sweep(
    make_cases: Callable[[Any], Mapping[str, Callable[[], Any] | Fresh]],
    *,
    over: Mapping[str, Sequence[Any]],
    name: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    items: Callable[[Any], float | None] | None = None,
    flops: Callable[[Any], float | None] | None = None,
    bytes: Callable[[Any], float | None] | None = None,
    budget_s: float = 1.0,
    **options: Any,
) -> Sweep:
    """Repeat a comparison over a range of one parameter: to find where a technique begins, or stops, to pay.

    Args:
        make_cases: called with each value; returns the cases for :func:`compare`.
        over: one parameter's name and its values, for example ``{"batch": [1, 8, 64]}``.
        name: ``lesson/experiment``, to keep it in a record.
        parameters: problem sizes and settings that do not vary.
        items: called with each value; items that one call processes, or None where that says nothing.
        flops: likewise, floating-point operations.
        bytes: likewise, bytes.
        budget_s: seconds for the timings of each point.
        **options: passed on to :func:`compare`.

    Returns:
        A comparison for each value. Ctrl-C keeps the points that are done.

    Raises:
        ValueError: if ``over`` does not hold exactly one parameter with at least one value.
        CaseError: if a case raises or outputs differ; the message names the value too.

    Example:
        >>> def cases(n):
        ...     a = torch.randn(n, n)
        ...     return {"one": lambda: a @ a, "two": lambda: (a @ a, a @ a)[1]}
        >>> sweep(cases, over={"n": [32, 64]}, budget_s=0.1).values
        (32, 64)
    """
    given = list(over.items()) if isinstance(over, Mapping) else []
    if len(given) != 1 or not isinstance(given[0][1], Sequence) or not given[0][1]:
        raise ValueError(f"sweep() varies one parameter: pass over={{'batch': [1, 8, 64]}}, got {over!r}")
    _check_budget(budget_s)
    ((parameter, values),) = given
    here = environment()
    points: list[SweepPoint] = []
    interrupted = False
    with progress(name or f"sweep over {parameter}", expected_s=budget_s * len(values)) as bar:
        for value in values:
            bar.describe(f"{parameter}={value}")
            work = {
                key: of(value) for key, of in (("items", items), ("flops", flops), ("bytes", bytes)) if of is not None
            }
            try:
                cases = make_cases(value)
            except KeyboardInterrupt:
                interrupted = True
                break
            except Exception as error:
                raise CaseError(
                    f"the cases for {parameter}={value} could not be made: {type(error).__name__}: {error}"
                ) from error
            try:
                comparison = compare(cases, budget_s=budget_s, **work, **options)
            except KeyboardInterrupt:
                interrupted = True
                break
            except CaseError as error:
                raise CaseError(f"at {parameter}={value}: {error}") from error
            points.append(SweepPoint(value, comparison))
            bar.advance(budget_s)
            if comparison.interrupted:
                interrupted = True
                break
    if not points:
        raise KeyboardInterrupt
    return keep(
        Sweep(
            over=parameter,
            points=tuple(points),
            environment=here,
            name=name,
            parameters=dict(parameters or {}),
            interrupted=interrupted,
        )
    )


def _check_budget(budget_s: float) -> None:
    if not isinstance(budget_s, int | float) or not 0 < budget_s <= MAX_BUDGET_S:
        raise ValueError(
            f"budget_s is the time for the measurement in seconds, more than 0 and at most {MAX_BUDGET_S:.0f}; "
            f"got {budget_s!r}. The default is {DEFAULT_BUDGET_S:g}."
        )


def _per_case(key: str, value: Any, cases: Mapping[str, Any]) -> dict[str, float | None]:
    if not isinstance(value, Mapping):
        return dict.fromkeys(cases, value)
    if set(value) != set(cases):
        raise ValueError(
            f"{key}= must be one number or name exactly the cases {', '.join(cases)}; got {', '.join(value)}"
        )
    return dict(value)


class _Run:
    """One measurement from the first call to the last pass."""

    def __init__(
        self,
        cases: Mapping[str, Callable[[], Any] | Fresh],
        title: str,
        budget_s: float,
        cache: str,
        device: Device | None,
        seed: int | None = None,
    ) -> None:
        _check_budget(budget_s)
        if cache not in ("warm", "cold"):
            raise ValueError(f"cache is 'warm' or 'cold', got {cache!r}")
        for label, case in cases.items():
            if not isinstance(label, str):
                raise ValueError(f"a case's label is a text, got {label!r}")
            if not (callable(case) or isinstance(case, Fresh)):
                raise ValueError(
                    f"case {label!r} is a {type(case).__name__}, not a function: pass the function without calling it, "
                    "for example `lambda: model(x)`"
                )
        self._sources = cases
        self.title = title
        self.budget_s = budget_s
        self.cache = cache
        self.device = device or device_under_test()
        self._dice = random.Random(seed)
        self._orders: list[tuple[int, ...]] = []
        self.cases: list[_Running] = []
        self.notes: list[str] = []
        self.planned = 0
        self._rounds_begun = 0
        self.interrupted = False
        self._memory: dict[str, tuple[int | None, int | None]] = {}
        self._prequeued: dict[str, float | None] = {}

    def __enter__(self) -> _Run:
        self._switches, self._random = Switches.now(), RandomState.now()
        return self

    def __exit__(self, *exception: object) -> None:
        self._switches.restore()
        self._random.restore()

    def first_calls(self, keep_outputs: bool = True) -> None:
        """Build each case from the same random state and time its first call."""
        for label, source in self._sources.items():
            try:
                self.cases.append(self._built(label, source, keep_outputs))
            except Exception as error:
                raise _case_error(label, "its first call", error) from error

    def _built(self, label: str, source: Callable[[], Any] | Fresh, keep_output: bool) -> _Running:
        self._switches.restore()
        self._random.restore()
        fn = source.build() if isinstance(source, Fresh) else source
        case = _Running(label, fn, Switches.now())
        self.device.synchronize()
        start = time.perf_counter()
        output = fn()
        self.device.synchronize()
        case.first_call_s = time.perf_counter() - start
        if keep_output:
            # A copy: cases may write into one buffer, and all would then show what the last one wrote.
            case.output = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), output)
        return case

    def check(self, check: Check | bool) -> str:
        """Compare each case's first output with the baseline's; say in words what was done."""
        baseline, others = self.cases[0], self.cases[1:]
        if check is False:
            agreement = "not checked, by choice"
        elif check is True and all(case.output is None for case in self.cases):
            agreement = "not checked: the cases return nothing"
            self.notes.append("The cases return nothing, so it was not checked that they compute the same thing.")
        else:
            agree = _assert_agree if check is True else check
            for case in others:
                try:
                    said = agree(baseline.output, case.output)
                    if said is not None and not said:
                        raise AssertionError(f"The check says {said}.")
                except Exception as error:
                    raise CaseError(
                        f"case {case.label!r} does not compute the same as the baseline {baseline.label!r}, so their "
                        f"times say nothing.\n{error}\nMake them agree, or pass check= a function with the tolerance "
                        "that you mean."
                    ) from error
            agreement = "outputs agree" if check is True else "outputs agree, by the lesson's own check"
        for case in self.cases:
            case.output = None
        return agreement

    def add_control(self) -> _Running:
        """The baseline once more, timed as if it were another case.

        A baseline with state of its own is built a second time: where its tensors happen to lie in memory can make it
        faster or slower by a percent or two, and a control that shares the tensors would not show that.
        """
        baseline = self.cases[0]
        label = f"{baseline.label} again"
        if isinstance(source := self._sources[baseline.label], Fresh):
            try:
                return self._built(label, source, keep_output=False)
            except torch.OutOfMemoryError:
                self.notes.append(
                    "The A/A control shares the baseline's state: there was no memory for a second one, so differences "
                    "that come from where tensors lie in memory are not in the noise floor."
                )
            except Exception as error:
                raise _case_error(label, "its first call", error) from error
        return _Running(label, baseline.fn, baseline.switches)

    def rounds(self, order: list[_Running]) -> None:
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

    def _warm_up(self, case: _Running, shared_by: int) -> float:
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

    def _plan(self, order: list[_Running], started: float) -> int:
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

    def _round(self, order: list[_Running]) -> float:
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

    def _timed(self, case: _Running, calls: int) -> Sample:
        try:
            return self.device.sample(case.fn, calls, self.cache)
        except Exception as error:
            raise _case_error(case.label, "the timing", error) from error

    def extras(self, memory: bool) -> None:
        """The passes that would disturb the timing: work queued ahead, and memory."""
        if self.interrupted:
            return
        for case in self.cases:
            case.switches.restore()
            self._random.restore()
            try:
                if self._suspect_launch_bound(case):
                    enqueue_s = statistics.median(sample.enqueue_s for sample in case.samples)
                    calls = max(1, min(50, int(0.02 / enqueue_s)))
                    self._prequeued[case.label] = self.device.prequeued_s(case.fn, calls, enqueue_s)
                if memory:
                    self._memory[case.label] = self.device.peak_memory(case.fn)
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

    def _suspect_launch_bound(self, case: _Running) -> bool:
        if self.cache == "cold" or case.samples[0].device_s is None:
            return False
        enqueue_s = statistics.median(sample.enqueue_s for sample in case.samples)
        return enqueue_s >= 0.8 * statistics.median(sample.device_s for sample in case.samples)

    def measurement(self, case: _Running, work: Mapping[str, float | None], **more: Any) -> Measurement:
        """A case's raw samples as a result."""
        on_device = case.samples[0].device_s is not None
        allocated, reserved = self._memory.get(case.label, (None, None))
        return Measurement(
            label=case.label,
            elapsed_s=tuple(sample.elapsed_s for sample in case.samples),
            calls=case.calls,
            enqueue_s=tuple(sample.enqueue_s for sample in case.samples) if on_device else (),
            device_s=tuple(sample.device_s for sample in case.samples) if on_device else (),
            prequeued_s=self._prequeued.get(case.label),
            first_call_s=case.first_call_s,
            warmup_s=tuple(case.warmup_s),
            peak_allocated_bytes=allocated,
            peak_reserved_bytes=reserved,
            **work,
            **more,
        )


def _case_error(label: str, where: str, error: Exception) -> CaseError:
    advice = "Run it once by itself to see the whole traceback."
    if isinstance(error, torch.OutOfMemoryError):
        advice = "Make the problem smaller, or free what earlier cells hold."
    elif "same device" in str(error) or "is on cpu" in str(error) or "meta" in str(error):
        advice = "Move its tensors to one device, for example with .to(device)."
    return CaseError(f"case {label!r} failed in {where}: {type(error).__name__}: {error}. {advice}")


def _assert_agree(expected: Any, actual: Any) -> None:
    """``assert_close`` for outputs of any nesting, at the tolerance of the coarser dtype where dtypes differ."""
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        if expected.device != actual.device:
            raise AssertionError(
                f"the baseline's output is on {expected.device}, this one on {actual.device}: move one with .to()"
            )
        if expected.dtype != actual.dtype and expected.is_floating_point() and actual.is_floating_point():
            coarse = max(expected.dtype, actual.dtype, key=lambda dtype: torch.finfo(dtype).eps)
            expected, actual = expected.to(coarse), actual.to(coarse)
        torch.testing.assert_close(actual, expected)
    elif isinstance(expected, Mapping) and isinstance(actual, Mapping):
        if expected.keys() != actual.keys():
            raise AssertionError(f"outputs have other keys: {sorted(expected)} against {sorted(actual)}")
        for key in expected:
            _assert_agree(expected[key], actual[key])
    elif isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        if len(expected) != len(actual):
            raise AssertionError(f"outputs have {len(expected)} and {len(actual)} parts")
        for one, other in zip(expected, actual, strict=True):
            _assert_agree(one, other)
    elif all(isinstance(value, int | float | complex) or hasattr(value, "__array__") for value in (expected, actual)):
        torch.testing.assert_close(torch.as_tensor(actual), torch.as_tensor(expected), check_dtype=False)
    elif expected is not actual and expected != actual:
        raise AssertionError(f"outputs differ: {expected!r} against {actual!r}")
