"""Measure a training step, try what is safe, and rank what to change first."""

from __future__ import annotations

import contextlib
import io
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from course_utils.measure.busy import Watch
from course_utils.measure.devices import CudaDevice, Device, MpsDevice
from course_utils.measure.machine import course_size, environment
from course_utils.results import paired
from course_utils.results.paired import Interval, Verdict
from course_utils.show.advice import Advice
from course_utils.show.formats import format_count, format_percent, format_ratio, format_seconds, listed
from own_program.diagnosis.batches import Batches, lie_in_memory
from own_program.diagnosis.bench import LONG_STEP_S, OF_LONG, PARITY_STEPS, Bench, StepOutcome, StepRounds, timings
from own_program.diagnosis.diagnosis_card import CHANGES_RESULTS, IMPOSSIBLE, NO_TIME, NOT_COMPILED, Diagnosis, Tried
from own_program.diagnosis.earlier_calls import Graph, graphs_of
from own_program.diagnosis.phases import (
    AFTER,
    BACKWARD,
    BEFORE,
    BETWEEN,
    FORWARD,
    LOADING,
    PHASES,
    PhaseWatch,
    Seen,
    is_compiled,
)
from own_program.diagnosis.state import SavedState, StepError, find
from own_program.diagnosis.step_changes import COMPILE, StepChange, Work, can_compile, changes_for

DEFAULT_BUDGET_S = 20.0
DEFAULT_TOLERANCE = 1e-3
_TEST_BUDGET_S = 1.0
# A budget may be exceeded by so much where that completes what a verdict needs.
_MOST_OVERRUN = 1.5
# Below this budget compiling would take longer than all the rest. It begins only where so much of the budget is left.
_LEAST_FOR_COMPILING_S, _LEFT_FOR_COMPILING_S = 15.0, 10.0
# Beside other programs a compiler takes so many times as long.
_BUSY_COMPILER = 3.0
# The share of the budget for calls as they come. Of what is left, a half goes to rounds that look at all changes.
_CALLS_SHARE, _SCREEN_SHARE, _LEAST_SHARE = 0.15, 0.5, 0.25
_LEAST_CALLS, _MOST_CALLS, _MOST_WATCHED, _COUNTED_CALLS = 4, 24, 16, 6
_FINALISTS = 4
_FAR_SLOWER = 3.0
# A part of a step that is no model's and no optimizer's stands out from this share on.
_STANDS_OUT, _LOADING_STANDS_OUT, _WAITS_STAND_OUT = 0.15, 0.05, 0.05
_BESIDES = {
    BEFORE: ("prepare batches before the step needs them", "before the first module runs, and not in a DataLoader"),
    BETWEEN: (
        "do less between the backward pass and the optimizer's step",
        "after its backward pass, and not in the optimizer's step",
    ),
    AFTER: ("do what follows the optimizer's step less often", "after the optimizer's"),
}
# A worker takes about so long to hand a batch over: where batches are ready sooner, it saves nothing.
_HANDED_OVER_S = 1e-3
# A graph of which so much is older than the call, and a backward pass that takes so many times the forward pass.
_OLD_GRAPH, _LONG_BACKWARD = 0.05, 3.0


def diagnose(
    step: Callable[..., Any],
    *,
    model: torch.nn.Module | Sequence[torch.nn.Module] | None = None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    data: Iterable[Any] | None = None,
    budget_s: float = DEFAULT_BUDGET_S,
    tolerance: float = DEFAULT_TOLERANCE,
) -> Diagnosis:
    """Say what to change first in a training step: measured, tried, ranked.

    The step is called some hundred times. First as it is, to see where its time goes. Then each change that is safe to
    try is put in force: it must give the losses that the step gives, from the same weights and random numbers, before
    it is timed in rounds against the step as it is. Of several, what looks faster is timed once more.
    In the end weights, buffers, gradients, optimizers, schedulers, random numbers, global switches, and plain Python
    variables that the step names are as they were, also after an error or Ctrl-C; iterators over data have moved on.

    Args:
        step: runs one training step and returns its loss: forward pass, backward pass, optimizer. It takes nothing, or
            one batch of ``data``. What its backward pass begins with is compared.
        model: what it trains, one module or a list; by default every module with parameters that the step's code names.
        optimizer: what updates it, likewise.
        data: the loader, or a list of batches. Waiting for it is then measured; changes are tried on its first batch.
        budget_s: about how many seconds it may take, at most half as many more. torch.compile is tried where 10 s of
            them are left, on a busy machine 30 s, and given up when half of those are over, after the graph that it is
            at.
        tolerance: how far the loss after three steps may be from the step's own, relative to it.

    Returns:
        The diagnosis, which shows itself as a card.

    Raises:
        StepError: if the step cannot be judged: no parameters, no backward pass, other work in each call, a NaN loss,
            or one rank of several.
        Exception: whatever the step itself raises.

    Example:
        >>> model = torch.nn.Linear(64, 64)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> x = torch.randn(32, 64)
        >>> def step():
        ...     loss = model(x).square().mean()
        ...     loss.backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     return loss
        >>> diagnosis = diagnose(step, budget_s=1.0)
        >>> diagnosis.step_s > 0, "forward pass and loss" in diagnosis.phases
        (True, True)
    """
    if not callable(step) or isinstance(step, torch.nn.Module):
        raise StepError(
            f"step is a {type(step).__name__}: pass the function that runs one training step, without calling it."
        )
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise StepError("diagnose() does not support several ranks: call it in a program of one process.")
    found = find(step, model, optimizer)
    if not found.parameters:
        raise StepError(
            "No parameters were found in what the step names: pass model= and optimizer=, so that they can be put back "
            "as they were."
        )
    if course_size() == "test":
        budget_s = min(budget_s, _TEST_BUDGET_S)
    here, on_cpu = environment(), next(iter(found.parameters)).device.type == "cpu"
    diagnosis = Diagnosis(here.host if on_cpu else here, found, budget_s)
    home = SavedState(found, "cpu")
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            _Diagnosing(diagnosis, step, data, tolerance).run()
    except KeyboardInterrupt:
        if diagnosis.step_s is None:
            raise
        diagnosis.interrupted = True
    finally:
        home.restore()
    if printed.getvalue():
        diagnosis.notes.append("The step prints in its calls: what it printed here was thrown away.")
    return diagnosis


class _Diagnosing:
    """One diagnosis, stage after stage; what is known is in `diagnosis` at any moment."""

    def __init__(self, diagnosis: Diagnosis, step: Callable[..., Any], data: Any, tolerance: float) -> None:
        self.diagnosis, self.found, self.data = diagnosis, diagnosis.found, data
        self._source, self._calls, self._tolerance = step, 0, tolerance
        kind = next(iter(self.found.parameters)).device.type
        self.device = {"cuda": CudaDevice, "mps": MpsDevice}.get(kind, Device)()
        self.work = Work(self._step)
        self._started, self._compiling_s = time.perf_counter(), 0.0
        self._tried: dict[StepChange, Tried] = {}

    def run(self) -> None:
        diagnosis = self.diagnosis
        with Watch() as watch:
            seen = self._as_it_is()
        diagnosis.busy = watch.sentence
        # What torch warns of, a learner has seen in the calls as they are, or it is a change's own.
        with warnings.catch_warnings(action="ignore"):
            is_long = diagnosis.step_s > LONG_STEP_S
            state, count = SavedState(self.found), OF_LONG if is_long else PARITY_STEPS
            bench = Bench(self.work, self.found, self.device, state, count)
            try:
                calls = _LEAST_CALLS - 1 if is_long else _COUNTED_CALLS
                graphs = [] if is_compiled(self.found) else graphs_of(bench, calls)
                self._parts()
                self._reaches_back(graphs)
                self._try(bench, seen[-1])
            finally:
                bench.close()

    def _step(self, *args: Any) -> Any:
        """One call; an error of the step's own is that of the learner, with what it was called with."""
        self._calls += 1
        try:
            return self._source(*args)
        except StopIteration as error:
            raise StepError(
                f"The step ran out of data in its call {self._calls}: pass the loader as data=, and let the step take "
                "a batch."
            ) from error
        except Exception as error:
            given = "a batch of data" if args else "nothing"
            error.add_note(f"diagnose() called the step with {given}, in its call {self._calls}.")
            raise

    def _advise(self, *entry: Any) -> None:
        self.diagnosis.plan.append(Advice(*entry))

    # --- calls as they come

    def _as_it_is(self) -> list[Seen]:
        diagnosis, allowed_s = self.diagnosis, self.diagnosis.budget_s * _CALLS_SHARE
        batches = Batches(self.data) if self.data is not None else None
        started, seconds = time.perf_counter(), []
        while len(seconds) <= _MOST_CALLS:
            args = () if batches is None else (batches.following(),)
            if not seconds:
                self.work.args = args
            seconds.append(self._timed(args))
            spent_s = time.perf_counter() - started
            if spent_s > 0.6 * allowed_s and len(seconds) >= (_LEAST_CALLS if spent_s < 2 * allowed_s else 2):
                break
        # The first call wakes everything up; so does the first batch, and workers then have some ready.
        seconds, waits = seconds[1:], batches.waits[1:] if batches else []
        seen: list[Seen] = []
        with PhaseWatch(self.found, self.device) as watch:
            least = 2 if max(seconds) > LONG_STEP_S else _LEAST_CALLS
            while len(seen) < least or (len(seen) < _MOST_WATCHED and time.perf_counter() - started < allowed_s):
                seen.append(watch.call(self.work.call))
            if self.device.kind != "cpu":
                self._waits([watch.call(self.work.call, waits_between=False) for _ in range(_LEAST_CALLS)])
        self._check_work(seen)
        wait_s = (statistics.fmean if batches and batches.workers else statistics.median)(waits) if waits else 0.0
        median_s = statistics.median(seconds)
        diagnosis.step_s = median_s + wait_s
        interval = paired.median_interval(seconds)
        diagnosis.interval = Interval(interval.low + wait_s, interval.high + wait_s, interval.confidence)
        medians = {phase: statistics.median(call.seconds[phase] for call in seen) for phase in PHASES}
        of_a_step = median_s / diagnosis.step_s / sum(medians.values())  # watched calls may take longer
        diagnosis.phases = {phase: part * of_a_step for phase, part in medians.items()}
        diagnosis.phases[LOADING] += wait_s / diagnosis.step_s
        if is_compiled(self.found):
            diagnosis.notes.append(
                "A part of it is compiled already: what is inside was not looked at, and what comes before the forward "
                "pass is part of that here."
            )
        return seen

    def _timed(self, args: tuple[Any, ...]) -> float:
        self.device.synchronize()
        start = time.perf_counter()
        self._step(*args)
        self.device.synchronize()
        return time.perf_counter() - start

    def _check_work(self, seen: list[Seen]) -> None:
        if not seen[0].counts["backward passes"]:
            raise StepError(
                "The step ran no backward pass: diagnose() is for training steps; compare() times a forward pass alone."
            )
        for what in sorted(set().union(*(call.counts for call in seen))):
            if len(counted := {call.counts[what] for call in seen}) > 1:
                raise StepError(
                    f"The step does different work in each call ({listed(map(str, sorted(counted)))} {what}): hand "
                    "over a step that always does the same, such as a whole round of accumulation."
                )

    # --- what no change was made for, and how much it can save at most

    def _parts(self) -> None:
        phases, step_s = self.diagnosis.phases, self.diagnosis.step_s
        self._loading()
        for phase, (change, where) in _BESIDES.items():
            share = phases[phase]
            if share > _STANDS_OUT and (phase != BEFORE or share * step_s > _HANDED_OVER_S):
                because = f"{format_seconds(share * step_s)} pass in a step {where}."
                self._advise(change, because, "data_loading" if phase == BEFORE else "profiler", share)
        total = sum(p.numel() for p in self.found.parameters)
        if doubles := {id(p): p.numel() for p in self.found.parameters if p.dtype == torch.float64}:
            part = format_percent(sum(doubles.values()) / total)
            models = [n for n, model in self.found.models.items() if any(id(p) in doubles for p in model.parameters())]
            how = f": {listed(f'{name}.float()' for name in models)}, and inputs of that type" if models else ""
            because = f"{part} of the {format_count(total)} weights are in float64, of twice the bytes of float32."
            self._advise(f"train in float32{how}", because, "mixed_precision")

    def _loading(self) -> None:
        share, step_s = self.diagnosis.phases[LOADING], self.diagnosis.step_s
        workers = getattr(self.data, "num_workers", None)
        in_memory = lie_in_memory(self.data)
        if share > (_LOADING_STANDS_OUT if in_memory else max(_LOADING_STANDS_OUT, _HANDED_OVER_S / step_s)):
            change = "load batches in workers of the DataLoader"
            if in_memory:
                change = "index the tensors in memory, without a DataLoader"
            elif workers or (workers is None and self.data is not None):
                change = "let batches arrive sooner"
            has = "" if workers is None else f", with num_workers={workers}"
            because = f"It waits {format_seconds(share * step_s)} for each batch{has}."
            self._advise(change, because, "data_loading", share)

    def _waits(self, seen: list[Seen]) -> None:
        """Values that Python takes from the GPU.

        Without the wait Python would work on, so that no more than the wait is won; and no more than what Python does
        in a step, since the GPU is busy while Python waits.
        """
        total = statistics.median(sum(call.seconds.values()) for call in seen)
        waited = statistics.median(sum(call.waits.values()) for call in seen)
        most = min(waited, total - waited) / total
        if most > _WAITS_STAND_OUT:
            places = [place for place, _ in seen[-1].waits.most_common(3)]
            because = f"Python waits for the GPU {format_seconds(waited)} in a step, in {listed(places)}."
            self._advise("take values from the GPU less often", because, "host_device_syncs", most)

    def _reaches_back(self, graphs: Sequence[Graph]) -> None:
        """A backward pass through operations of earlier calls."""
        if not graphs or graphs[-1].earlier <= _OLD_GRAPH * graphs[-1].nodes:
            return
        phases, first, last = self.diagnosis.phases, graphs[0], graphs[-1]
        facts = []
        if phases[BACKWARD] > _LONG_BACKWARD * phases[FORWARD]:
            facts.append(f"takes {format_ratio(phases[BACKWARD] / phases[FORWARD])} times the forward pass")
        if first.nodes < last.nodes:
            facts.append("grows with each call")
        because = (
            f"The backward pass {listed([*facts, 'reaches into earlier calls'])}: {last.earlier:,} of the "
            f"{last.nodes:,} operations in its graph were recorded there."
        )
        change = "detach what you keep from call to call, such as a hidden state"
        self._advise(change, because, "no_grad", phases[BACKWARD])

    # --- changes

    def _try(self, bench: Bench, seen: Seen) -> None:
        plain = self._repeated(bench)
        several = list(changes_for(self.found, seen, self.work))
        if self.diagnosis.budget_s < _LEAST_FOR_COMPILING_S and any(change.name == COMPILE for change in several):
            why = f"{NOT_COMPILED}: that takes a budget_s of {_LEAST_FOR_COMPILING_S:g} or more."
            self.diagnosis.notes.append(why)
            several = [change for change in several if change.name != COMPILE]
        if not can_compile({p.device.type for p in self.found.parameters}) and not is_compiled(self.found):
            self.diagnosis.notes.append(f"{NOT_COMPILED}: it finds no compiler on this machine.")
        # A compiler comes last, since nobody shall wait for one whose work could not be timed.
        for change in sorted(several, key=lambda change: change.name == COMPILE):
            self._tried[change] = self._parity(bench, plain, change)
            self.diagnosis.tried.append(self._tried[change])
        self._time(bench, [change for change in several if not self._tried[change].verdict], plain.step_s)

    def _unspent_s(self, of: float = 1.0) -> float:
        """Seconds of the budget that are left, or of so many budgets; negative where they are exceeded."""
        return of * self.diagnosis.budget_s - (time.perf_counter() - self._started)

    def _left_s(self, of: float = 1.0) -> float:
        """Seconds for rounds: without them, all that earlier stages used up was in vain."""
        return max(self._unspent_s(of), _LEAST_SHARE * self.diagnosis.budget_s)

    def _repeated(self, bench: Bench) -> StepOutcome:
        """The step as it is, twice from the same state: only what repeats itself can be compared."""
        first, second = bench.steps(), bench.steps()
        if not all(map(math.isfinite, first.losses)):
            raise StepError("The loss is nan or infinite: mend that first; no change could be checked against it.")
        if (difference := first.difference(second)) > self._tolerance:
            raise StepError(
                "The step does different work in each call: from the same weights and random numbers it gave another "
                f"loss ({difference:.2g} off). Let it work on one fixed batch, or pass the loader as data= and let the "
                "step take a batch."
            )
        return second

    def _parity(self, bench: Bench, plain: StepOutcome, change: StepChange) -> Tried:
        """Whether the first steps with a change give what they give without, if there is time for them."""
        name, notes, started = change.name, self.diagnosis.notes, time.perf_counter()
        needed_s, left_s = (bench.count + 1) * plain.step_s, self._unspent_s(_MOST_OVERRUN)
        if name == COMPILE:
            needed_s = _LEFT_FOR_COMPILING_S * (_BUSY_COMPILER if self.diagnosis.busy else 1.0)
            left_s = self._unspent_s()
        if needed_s > left_s:
            return Tried(name, NO_TIME)
        self.work.compile_until = started + self._unspent_s() * _SCREEN_SHARE
        try:
            steps = bench.steps([change])
        except Exception:
            if not self.work.gave_up:
                return Tried(name, IMPOSSIBLE)
            notes.append(f"Compiling was given up after {format_seconds(time.perf_counter() - started)}.")
            return Tried(name, NO_TIME)
        finally:
            bench.close()
            self.work.compile_until = math.inf  # what is in the rounds is compiled
        if name == COMPILE:
            self._compiling_s = max(0.0, steps.first_s - plain.first_s)
            notes.append(f"Compiling took {format_seconds(self._compiling_s)} of the time.")
        difference = plain.difference(steps)
        slower = str(Verdict.SLOWER) if steps.step_s > _FAR_SLOWER * plain.step_s else ""
        verdict = CHANGES_RESULTS if difference > self._tolerance else slower
        return Tried(name, verdict, difference, step_s=steps.step_s)

    def _time(self, bench: Bench, alike: list[StepChange], plain_s: float) -> None:
        """Time what is left in rounds, the likeliest first; of several, those once more that look faster."""
        fitting: list[StepChange] = []
        tried = self._tried
        for change in sorted(alike, key=lambda change: tried[change].step_s):
            round_s = 2 * plain_s + sum(tried[each].step_s for each in (*fitting, change))
            left_s = self._left_s() * _SCREEN_SHARE if fitting else self._left_s(_MOST_OVERRUN)
            if paired.MIN_ROUNDS * timings(plain_s) * round_s > left_s:
                tried[change].verdict = NO_TIME
            else:
                fitting.append(change)
        self._rounds(bench, fitting, "trying changes", _SCREEN_SHARE if len(fitting) > 1 else 1.0)
        finalists = [each for each in fitting if tried[each].verdict == Verdict.FASTER or tried[each].may_save()]
        finalists.sort(key=lambda change: tried[change].ratio)
        best = {change.instead_of or change.name: change for change in reversed(finalists)}
        finalists = [change for change in finalists if change in best.values()]
        if len(fitting) > 1 and not self.diagnosis.interrupted:
            # In the rounds that chose it, the best of several looks better than it is.
            self._rounds(bench, finalists[:_FINALISTS], "timing the best again", 1.0)
        for change in finalists:
            self._saves(change)

    def _rounds(self, bench: Bench, several: list[StepChange], title: str, share: float) -> None:
        """Keep what rounds say of some changes; without a verdict, that there was no time, unless one was known."""
        diagnosis = self.diagnosis
        if not several:
            return
        rounds = StepRounds(bench, several, title, share * self._left_s(), self._left_s(_MOST_OVERRUN))
        judged = rounds.judged()
        diagnosis.interrupted |= rounds.interrupted
        diagnosis.noise = rounds.noise or diagnosis.noise
        diagnosis.busy = rounds.busy or diagnosis.busy
        for change in several:
            tried = self._tried[change]
            if judgement := judged.get(change.name):
                tried.ratio, tried.interval, tried.verdict = judgement.ratio, judgement.interval, str(judgement.verdict)
            else:
                tried.verdict = tried.verdict or NO_TIME

    def _saves(self, change: StepChange) -> None:
        diagnosis, tried = self.diagnosis, self._tried[change]
        if tried.verdict != Verdict.FASTER:
            return
        of_a_step = 1 - diagnosis.phases[LOADING]  # waiting for data is no part of what was timed
        ratios = tried.ratio, tried.interval.high, tried.interval.low
        saves, low, high = (of_a_step * (1 - ratio) for ratio in ratios)
        if saves < paired.PRACTICAL:
            return
        same = f"agree to {tried.difference:.0e}" if tried.difference else "are the same to the bit"
        because = f"{change.because} The losses {same}."
        if change.name == COMPILE and self._compiling_s:
            steps = math.ceil(self._compiling_s / (saves * diagnosis.step_s))
            taken = format_seconds(self._compiling_s)
            because += f" Compiling took {taken}: {format_count(steps)} steps win that back."
        if change.instead_of == "threads" and diagnosis.busy:
            because += " On a machine without other programs it may save nothing."
        diagnosis.plan.append(Advice(change.change, because, change.lesson, saves, "tried", low=low, high=high))
