"""Measure a training step, try what is safe, and rank what to change first."""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from course_utils import lesson_order
from course_utils.measure.busy import Watch
from course_utils.measure.devices import CudaDevice, Device, MpsDevice
from course_utils.measure.machine import course_size, environment
from course_utils.measure.rounds import MAX_BUDGET_S
from course_utils.measure.tabulate import keep_card
from course_utils.records import paired
from course_utils.records.kinds.environment import Environment
from course_utils.records.paired import Interval, Verdict
from course_utils.records.result import JUST_NOW
from course_utils.show.advice import Advice
from course_utils.show.cards import Axis, Bar, Card, Row, Shown, Toned
from course_utils.show.formats import (
    format_count,
    format_noise,
    format_percent,
    format_ratio,
    format_seconds,
    format_times,
    listed,
)
from course_utils.show.progress import progress
from course_utils.show.tables import Column, Grid, Sheet
from own_program.diagnosis.contents import Contents, Counted, look
from own_program.diagnosis.loading import Batches, index_instead
from own_program.diagnosis.phases import (
    AFTER,
    BACKWARD,
    BEFORE,
    BETWEEN,
    FORWARD,
    LOADING,
    OPTIMIZER,
    PHASES,
    PhaseWatch,
    Seen,
    is_compiled,
    replayed,
)
from own_program.diagnosis.rounds import LONG_STEP_S, OF_LONG, PARITY_STEPS, Bench, StepRounds, Steps, loss_of
from own_program.diagnosis.state import Found, Snapshot, find
from own_program.diagnosis.trials import (
    COMPILE,
    Trial,
    Work,
    because_of,
    because_of_denormals,
    because_of_rows,
    call_once,
    can_compile,
    of_each_kind,
    sparse_change,
    trials,
)

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
_CALLS_SHARE, _SCREEN_SHARE = 0.15, 0.5
_LEAST_CALLS, _MOST_CALLS, _MOST_WATCHED, _COUNTED_CALLS = 4, 24, 16, 6
_FINALISTS = 4
_PROMISING = 0.98
_MOST_ADVICE = 5
# What takes so many times as long in its first steps needs no rounds to be turned down, which it would fill.
_FAR_SLOWER = 3.0
# A part of a step that is no model's and no optimizer's stands out from this share on.
_STANDS_OUT, _LOADING_STANDS_OUT, _WAITS_STAND_OUT = 0.15, 0.05, 0.05
_SMALL = 0.005
# A worker takes about so long to hand a batch over: where batches are ready sooner, it saves nothing.
_HANDED_OVER_S = 1e-3
# Calls are of two kinds if so wide a gap lies between them, among so many; and they become longer by so much.
_GAP, _CALLS_FOR_KINDS, _LONGER = 2.0, 8, 1.3
# A graph of which so much is older than the call, and a backward pass that takes so many times the forward pass.
_OLD_GRAPH, _LONG_BACKWARD = 0.05, 3.0
# A change with which the first steps take no more than this is timed by itself, and the others on top of it: in a step
# with so large a waste, what they save is lost in the noise.
_CLEAR = 0.6
# Where a change that is too close to tell may well save so much, nobody can say that nothing stands out.
_MAY_SAVE = 1.1
_NOT_COMPILED = "torch.compile was not tried"
# Verdicts of changes that were not timed.
CHANGES_RESULTS, IMPOSSIBLE, NO_TIME = "CHANGES THE RESULTS", "IMPOSSIBLE", "NO TIME"
_NOTED = {
    Verdict.SAME: "Tried and of no use here",
    Verdict.SLOWER: "Tried, and slower",
    Verdict.UNCLEAR: "Tried, and too close to tell (a larger budget_s tells more)",
    IMPOSSIBLE: "Tried, and this step cannot do it",
    NO_TIME: "Not timed for lack of time (pass a larger budget_s)",
}


class StepError(ValueError):
    """A step cannot be judged. The message says why, and what to hand over instead."""


@dataclass(frozen=True)
class Tried:
    """A change that was tried.

    Attributes:
        name: what it is called.
        difference: how far its losses are from the step's own, relative to them; None if the change could not be made.
        ratio: its time over that of the step as it is; None where it was not timed.
        interval: 99% interval of that ratio.
        verdict: FASTER, SLOWER, SAME or UNCLEAR; ``CHANGES THE RESULTS``, ``IMPOSSIBLE`` or ``NO TIME``.
        remark: more about it, such as why it was impossible.
        first: its time over that of the step as it is, in a few steps alone.
        on_top_of: what was in force while it was timed, and is not in its ratio.
    """

    name: str
    difference: float | None = None
    ratio: float | None = None
    interval: Interval | None = None
    verdict: str = ""
    remark: str = ""
    first: float | None = None
    on_top_of: Tried | None = None

    def may_save(self) -> bool:
        """Whether it is too close to tell, and may well save something."""
        return self.verdict == Verdict.UNCLEAR and self.interval.low * _MAY_SAVE < 1

    def left(self) -> tuple[float, float, float]:
        """What it leaves of a step, with all that it is on top of: the ratio, and the ends of its interval."""
        ratio, low, high = self.on_top_of.left() if self.on_top_of else (1.0, 1.0, 1.0)
        return self.ratio * ratio, self.interval.low * low, self.interval.high * high

    def saves(self) -> tuple[float, float, float]:
        """The share of the step as it was that it saves by itself, and the ends of its interval."""
        ratio, low, high = self.on_top_of.left() if self.on_top_of else (1.0, 1.0, 1.0)
        return (1 - self.ratio) * ratio, (1 - self.interval.high) * low, (1 - self.interval.low) * high


@dataclass(repr=False)
class Diagnosis(Shown):
    """What :func:`diagnose` found out about a step. It shows itself as a card.

    Attributes:
        step_s: seconds of a step, waiting for data included: the median.
        phases: phase to its share of a step.
        tried: every change that was tried.
        plan: what to change, the most first.
        grows: whether calls do more and more.
        looked: what was looked for, beside the changes that were tried.
    """

    environment: Environment
    found: Found
    budget_s: float
    tolerance: float
    name: str | None = None
    step_s: float | None = None
    interval: Interval | None = None
    phases: dict[str, float] = field(default_factory=dict)
    tried: list[Tried] = field(default_factory=list)
    plan: list[Advice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)
    grows: bool = False
    busy: str = ""
    noise: float | None = None
    interrupted: bool = False
    needed_s: float | None = None  # a longer budget, where this one told nothing
    compared: str = "loss"  # or weights, where no loss was seen

    def card(self) -> Card:
        """What a step takes, what to change, and where its time goes."""
        plan = sorted(self.plan, key=lambda advice: -(advice.saves or 0.0))
        noise = f"intervals: 99%, {format_noise(self.noise)}" if self.noise is not None else ""
        stopped = "Stopped early: this is what was known so far." if self.interrupted else ""
        short = f"{self.budget_s:g} s were too short to tell what all changes do: pass budget_s={self.needed_s or 0:g}."
        return Card(
            self._sentence(),
            tuple(self._rows()),
            Axis(0.0, 1.0, ((0.0, "0"), (1.0, format_seconds(self.step_s)))),
            ("", "of a step"),
            plan=tuple(plan[:_MOST_ADVICE]),
            warning=" ".join(filter(None, (stopped, short if self.needed_s else "", self.busy))),
            notes=tuple(self._notes()),
            provenance=" · ".join(filter(None, (self.environment.caption, noise))),
            numbers=self._numbers(),
            title=self.name or "",
            head=JUST_NOW,
        )

    def _sentence(self) -> list[str | Toned]:
        ends = ""
        if self.interval is not None and self.interval.bounded:
            ends = f" ({format_seconds(self.interval.low)} to {format_seconds(self.interval.high)})"
        grows = " Its calls do more and more." * self.grows
        said: list[str | Toned] = ["A step takes ", Toned(format_seconds(self.step_s)), f"{ends}.{grows} "]
        tried = [advice for advice in self.plan if advice.known == "tried"]
        if tried:
            best = max(tried, key=lambda advice: advice.saves)
            less = f"{_share(best.saves)} ({_share(best.low).rstrip('%')} to {_share(best.high)}) shorter"
            said += ["Tried: ", Toned(best.change), ". That makes it ", Toned(less, "faster"), ". "]
        others = [advice for advice in self.plan if advice.known != "tried"]
        if others:
            most = max(others, key=lambda advice: advice.saves or 0.0)
            said.append(f"{most.change[0].upper()}{most.change[1:]}")
            saves = most.saving.removesuffix(f" of {most.of}")
            said += [": that saves ", Toned(saves), " of it."] if saves else ["."]
        return said if self.plan else [*said, self._no_plan()]

    def _no_plan(self) -> str:
        most = max(self.phases, key=self.phases.__getitem__, default="")
        largest = f" The largest part is {most} ({format_percent(self.phases[most])})" if most else " What is inside"
        trace = (
            f"{largest}: a trace tells {'what is inside' * bool(most)}, lesson {lesson_order.number('profiler'):02d}."
        )
        unknown = f"What could make it shorter is not known yet.{largest}." if most else "Nothing is known yet."
        if self.interrupted:
            return f"{unknown} Let diagnose() run to its end."
        if late := [tried for tried in self.tried if tried.verdict == NO_TIME]:
            more = f"Pass budget_s={self.needed_s:g}." if self.needed_s else "Pass a larger budget_s."
            first = min(late, key=lambda tried: tried.first or math.inf)
            if first.first and first.first < _PROMISING:
                return f"In a few steps it was {format_times(first.first)} with this: {first.name}.{largest}. {more}"
            return f"{unknown} {more}"
        if unclear := [tried.name for tried in self.tried if tried.may_save()]:
            quiet = "Close other programs, or p" if self.busy else "P"
            return f"Too close to tell, of what was tried: {listed(unclear)}. {quiet}ass a larger budget_s.{largest}."
        looked = f" Looked for: {listed(self.looked)}." if self.looked else ""
        names = [tried.name for tried in self.tried]
        changes = f" Tried, and not clearly shorter: {listed(names)}." if names else " No change was tried."
        return f"Nothing stands out.{looked}{changes}{trace}"

    def _rows(self) -> Iterator[Row]:
        for phase in PHASES:
            share = self.phases.get(phase, 0.0)
            if share >= _SMALL:
                seconds = format_seconds(share * self.step_s)
                yield Row(phase, format_percent(share), seconds, bar=Bar(0.0, share))

    def _notes(self) -> Iterator[str]:
        yield from self.notes
        changed = f"Not advised, since the {self.compared} would change by more than {self.tolerance:g}"
        for verdict, words in (*_NOTED.items(), (CHANGES_RESULTS, changed)):
            if names := [tried.name for tried in self.tried if tried.verdict == verdict]:
                yield f"{words}: {listed(names)}."
        yield f"Worked on: {listed([*self.found.models, *self.found.optimizers])}. All of it is as it was before."

    def _numbers(self) -> Sheet | None:
        if not self.tried:
            return None
        columns = (
            Column("", tuple(t.name for t in self.tried), numeric=False),
            Column("verdict", tuple(t.verdict.lower() for t in self.tried), numeric=False),
            Column("time", tuple(f"{t.ratio:.3f}" if t.ratio else "" for t in self.tried)),
            Column("99% interval", tuple(_interval(t.interval) for t in self.tried)),
            Column("loss differs by", tuple("" if t.difference is None else f"{t.difference:.1g}" for t in self.tried)),
            Column("remark", tuple(t.remark for t in self.tried), numeric=False),
        )
        heading = f"What was tried ({PARITY_STEPS} steps from the same state for the losses, then paired rounds)"
        return Sheet((Grid(heading, columns),))


def diagnose(
    step: Callable[..., Any],
    *,
    model: torch.nn.Module | Sequence[torch.nn.Module] | None = None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    data: Iterable[Any] | None = None,
    budget_s: float = DEFAULT_BUDGET_S,
    tolerance: float = DEFAULT_TOLERANCE,
    name: str | None = None,
) -> Diagnosis:
    """Say what to change first in a training step: measured, tried, ranked.

    The step is called some hundred times. First as it is, to see where its time goes, whether it grows, and what it
    holds. Then each change that is safe to try is put in force: it must give the losses that the step gives, from the
    same weights and random numbers, before it is timed in rounds against the step as it is. Of several, what looks
    faster is timed once more. After a change that saves very much the others are tried on top of it.
    In the end weights, buffers, gradients, optimizers, schedulers, random numbers, global switches, and plain Python
    variables that the step names are as they were, also after an error or Ctrl-C; iterators over data have moved on.

    Args:
        step: runs one training step and returns its loss: forward pass, backward pass, optimizer. It takes nothing, or
            one batch of ``data``. Losses are compared that its backward pass begins with; where those are no single
            numbers, the weights that come out.
        model: what it trains, one module or a list; by default every module with parameters that the step's code names.
        optimizer: what updates it, likewise.
        data: the loader, or a list of batches. Waiting for it is then measured; changes are tried on its first batch.
        budget_s: about how many seconds it may take, at most half as many more. torch.compile is tried where 10 s of
            them are left, on a busy machine 30 s, and given up when half of those are over, after the graph that it is
            at.
        tolerance: how far the loss after three steps may be from the step's own, relative to it. From 0.01 on,
            bfloat16 is tried, too.
        name: ``lesson/experiment``, to keep the card in a record.

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
    _check_arguments(step, data, budget_s, tolerance)
    _check_kind("model", model, torch.nn.Module)
    _check_kind("optimizer", optimizer, torch.optim.Optimizer)
    found = find(step, model, optimizer)
    if not found.parameters:
        raise StepError(
            "No parameters were found in what the step names: pass model= and optimizer=, so that they can be put back "
            "as they were."
        )
    if course_size() == "test":
        budget_s = min(budget_s, _TEST_BUDGET_S)
    here, on_cpu = environment(), next(iter(found.parameters)).device.type == "cpu"
    diagnosis = Diagnosis(here.host if on_cpu else here, found, budget_s, tolerance, name)
    home = Snapshot(found, "cpu")
    try:
        with contextlib.redirect_stdout(sink := _Sink()):
            _Work(diagnosis, step, data, home).run()
    except KeyboardInterrupt:
        if diagnosis.step_s is None:
            raise
        diagnosis.interrupted = True
    finally:
        home.restore()
    if sink.lines:
        diagnosis.notes.append("The step prints in its calls: what it printed here was thrown away.")
    if name:
        keep_card(diagnosis, name=name, worked_by="cpu" if on_cpu else "gpu")
    return diagnosis


class _Sink(io.TextIOBase):
    """Counts lines that are printed, and drops them: hundreds of calls would fill the page."""

    lines = 0

    def write(self, text: str) -> int:
        self.lines += text.count("\n")
        return len(text)


class _Work:
    """One diagnosis, stage after stage; what is known is in `diagnosis` at any moment."""

    def __init__(self, diagnosis: Diagnosis, step: Callable[..., Any], data: Iterable[Any] | None, home: Snapshot):
        self.diagnosis, self.found, self.data, self.home = diagnosis, diagnosis.found, data, home
        self._source, self._calls = step, 0
        kind = next(iter(self.found.parameters)).device.type
        self.device = {"cuda": CudaDevice, "mps": MpsDevice}.get(kind, Device)()
        self.work = Work(self._step)
        self._started, self._compiling_s = time.perf_counter(), 0.0
        self._adopted: Tried | None = None
        self._step_s: dict[str, float] = {}  # of each change, from its first steps; of the step as it is: ""

    def run(self) -> None:
        diagnosis = self.diagnosis
        with Watch() as watch, progress("calls as they are", diagnosis.budget_s * _CALLS_SHARE):
            seen, first = self._as_it_is()
        diagnosis.busy = watch.sentence
        # What torch warns of, a learner has seen in the calls as they are, or it is a trial's own.
        with replayed(), warnings.catch_warnings(action="ignore"):
            count = OF_LONG if diagnosis.step_s > LONG_STEP_S else PARITY_STEPS
            bench = Bench(self.work, self.found, self.device, Snapshot(self.found), count)
            try:
                contents = look(bench, first, _LEAST_CALLS if diagnosis.step_s > LONG_STEP_S else _COUNTED_CALLS)
                diagnosis.looked += contents.looked
                self._bounds(seen, contents)
                self._try(bench, seen[-1], contents)
                self._untried(contents)
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
            given = f"a batch of data, {_described(args[0])}" if args else "nothing"
            error.add_note(f"diagnose() called the step with {given}, in its call {self._calls}.")
            raise

    # --- calls as they come

    def _as_it_is(self) -> tuple[list[Seen], Counted | None]:
        """Call the step as it is: how long it takes, and where the time goes."""
        diagnosis, allowed_s = self.diagnosis, self.diagnosis.budget_s * _CALLS_SHARE
        batches = Batches(self.data) if self.data is not None else None
        # Operators of a compiled model are not seen.
        counted = None if is_compiled(self.found) else Counted()
        started = time.perf_counter()
        seconds: list[float] = []
        waits: list[float] = []
        sizes: set[str] = set()
        # The first call wakes everything up; so does the first batch, and workers then have some ready.
        while len(seconds) <= _MOST_CALLS:
            args = ()
            if batches is not None:
                args, wait_s = self._batch(batches)
                sizes.add(_described(args[0]))
                waits.append(wait_s)
            if not seconds:
                self.work.args = args
            seconds.append(self._timed(*args, counted=None if seconds else counted))
            spent_s = time.perf_counter() - started
            if spent_s > 0.6 * allowed_s and len(seconds) >= (_LEAST_CALLS if spent_s < 2 * allowed_s else 2):
                break
        seconds, waits = seconds[1:], waits[1:]
        self._kinds = _two_kinds(seconds) if self.data is None else None
        if len(sizes) > 1:
            diagnosis.notes.append("Batches differ in size; changes are tried on the first.")
        else:
            self._grows(seconds)
        seen: list[Seen] = []
        with PhaseWatch(self.found, self.device) as watch:
            while len(seen) < _MOST_WATCHED:
                seen.append(watch.call(self.work.call))
                spent_s = time.perf_counter() - started
                if spent_s > allowed_s and len(seen) >= (2 if max(seconds) > LONG_STEP_S else _LEAST_CALLS):
                    break
            if self.device.kind != "cpu":
                self._waits([watch.call(self.work.call, waits_between=False) for _ in range(_LEAST_CALLS)])
        self._check_work(seen)
        wait_s = (statistics.fmean if batches and batches.workers else statistics.median)(waits) if waits else 0.0
        median_s = statistics.median(seconds)
        diagnosis.step_s = median_s + wait_s
        interval = paired.median_interval(seconds)
        if interval.bounded:
            diagnosis.interval = Interval(interval.low + wait_s, interval.high + wait_s, interval.confidence)
        medians = {phase: statistics.median(call.seconds[phase] for call in seen) for phase in PHASES}
        total = sum(medians.values())
        diagnosis.phases = {phase: part / total * median_s / diagnosis.step_s for phase, part in medians.items()}
        diagnosis.phases[LOADING] += wait_s / diagnosis.step_s
        if counted is None:
            diagnosis.notes.append(
                "A part of it is compiled already: what is inside was not looked at, and what comes before the forward "
                "pass is part of that here."
            )
        return seen, counted

    def _batch(self, batches: Batches) -> tuple[tuple[Any], float]:
        try:
            batch, wait_s = batches.following()
        except LookupError:
            raise StepError(
                "data has no more batches: pass a loader, or a list of batches, that can be read again."
            ) from None
        return (batch,), wait_s

    def _timed(self, *args: Any, counted: Counted | None = None) -> float:
        self.device.synchronize()
        start = time.perf_counter()
        returned = counted.call(lambda: self._step(*args)) if counted else self._step(*args)
        self.device.synchronize()
        seconds = time.perf_counter() - start
        loss = loss_of(returned)
        if loss is not None and not math.isfinite(loss):
            raise StepError(
                f"The loss is {loss} in call {self._calls}: mend that first; no change could be checked against it."
            )
        return seconds

    def _grows(self, seconds: list[float]) -> None:
        """Whether each call takes longer than those before it; it must do so twice, or it may be the machine."""
        if _longer(seconds) is None:
            return
        self.home.restore()
        again = [self._timed(*self.work.args) for _ in range(len(seconds) + 1)][1:]
        if (ends := _longer(again)) is not None:
            first_s, last_s = ends
            self.diagnosis.grows = True
            because = (
                f"Calls took {format_seconds(first_s)} at first and {format_seconds(last_s)} {len(again)} calls on."
            )
            self._grown(because, 1 - first_s / last_s)

    def _grown(self, because: str, share: float | None) -> None:
        change = "find what grows from call to call, such as a batch, a list, or hooks that each call adds"
        self.diagnosis.grows = True
        self.diagnosis.plan.append(Advice(change, because, "profiler", share, "about"))

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

    def _bounds(self, seen: list[Seen], contents: Contents) -> None:
        diagnosis, phases = self.diagnosis, self.diagnosis.phases
        takes = {phase: format_seconds(share * diagnosis.step_s) for phase, share in phases.items()}
        self._old_graph(contents)
        self._loading(takes[LOADING])
        prepared = max(_STANDS_OUT, _HANDED_OVER_S / diagnosis.step_s)
        for phase, least, change, where, lesson in (
            (
                BEFORE,
                prepared,
                "prepare batches before the step needs them",
                "before the first module runs, and not in a DataLoader",
                "data_loading",
            ),
            (
                BETWEEN,
                _STANDS_OUT,
                "do less between the backward pass and the optimizer's step",
                "after its backward pass, and not in the optimizer's step",
                "profiler",
            ),
            (
                AFTER,
                _STANDS_OUT,
                "do what follows the optimizer's step less often",
                "after the optimizer's",
                "profiler",
            ),
        ):
            if phases[phase] > least:
                because = f"{takes[phase]} pass in a step {where}."
                diagnosis.plan.append(Advice(change, because, lesson, phases[phase]))
        for name in seen[-1].unused:
            parts = (call.unused.get(name, 0.0) / max(call.seconds[FORWARD], 1e-9) for call in seen)
            share = phases[FORWARD] * min(1.0, statistics.median(parts))
            if share > _STANDS_OUT:
                because = (
                    f"It takes {format_seconds(share * diagnosis.step_s)} in a step, and no backward pass goes through "
                    "it. Where it is needed all the same, it costs less under torch.no_grad()."
                )
                change = f"leave out the forward pass of {name} that no gradient comes from"
                diagnosis.plan.append(Advice(change, because, "no_grad", share, "about"))
        weights = [p for p in self.found.parameters if p.is_floating_point()]
        doubles = [p for p in weights if p.dtype == torch.float64]
        total, double = (sum(p.numel() for p in of) for of in (weights, doubles))
        if doubles:
            part = "All" if double == total else f"{format_percent(double / total)} of the"
            because = f"{part} {format_count(total)} weights are in float64: each takes the bytes of two in float32."
            ids = {id(p) for p in doubles}
            models = [name for name, model in self.found.models.items() if ids & set(map(id, model.parameters()))]
            how = f": {listed(f'{name}.float()' for name in models)}, and inputs of that type" if models else ""
            diagnosis.plan.append(Advice(f"train in float32{how}", because, "mixed_precision"))
        if any(call.profiled for call in seen):
            because = "A profiler records every operation while the step runs, and these times hold what that costs."
            diagnosis.plan.append(Advice("switch the profiler off", because, "profiler"))

    def _old_graph(self, contents: Contents) -> None:
        """A backward pass through operations of earlier calls; else, whatever else grows."""
        phases, nodes = self.diagnosis.phases, [nodes for _, _, nodes in contents.counted]
        if nodes and contents.earlier > _OLD_GRAPH * nodes[-1]:
            facts = ["reaches into earlier calls"]
            if phases[BACKWARD] > _LONG_BACKWARD * phases[FORWARD]:
                facts = [f"takes {format_ratio(phases[BACKWARD] / phases[FORWARD])} times the forward pass", *facts]
            if nodes[1] < nodes[-1]:
                self.diagnosis.grows = True
                facts = [*facts[:-1], "grows with each call", facts[-1]]
            because = (
                f"The backward pass {listed(facts)}: {contents.earlier:,} of the {nodes[-1]:,} operations in its graph "
                "were recorded there."
            )
            self.diagnosis.plan[:] = []  # that calls become longer, which this explains
            change = "detach what you keep from call to call, such as a hidden state"
            self.diagnosis.plan.append(Advice(change, because, "no_grad", phases[BACKWARD]))
        elif (growth := contents.growth()) and not self.diagnosis.grows:
            self._grown(growth, None)

    def _loading(self, takes: str) -> None:
        """Waiting for batches."""
        share, step_s = self.diagnosis.phases[LOADING], self.diagnosis.step_s
        workers = getattr(self.data, "num_workers", None)
        if share > _LOADING_STANDS_OUT and (indexed := index_instead(self.data)) is not None:
            change = "index the tensors in memory, in place of a DataLoader: x[rows]"
            because = (
                f"{indexed.rows} samples are fetched one by one and put together in "
                f"{format_seconds(indexed.one_by_one_s)}; one index gives the same values in "
                f"{format_seconds(indexed.at_once_s)}."
            )
            saves = [share * (1 - r) for r in (indexed.ratio, indexed.interval.high, indexed.interval.low)]
            given = {} if workers else {"known": "tried", "low": saves[1], "high": saves[2]}
            advice = Advice(change, because, "data_loading", share if workers else saves[0], **given)
            self.diagnosis.plan.append(advice)
        elif share > max(_LOADING_STANDS_OUT, _HANDED_OVER_S / step_s):
            change = "load batches in workers of the DataLoader"
            if workers or (workers is None and self.data is not None):
                change = "let batches arrive sooner"
            has = "" if workers is None else f", with num_workers={workers}"
            because = f"It waits {takes} for each batch{has}."
            self.diagnosis.plan.append(Advice(change, because, "data_loading", share))

    def _waits(self, seen: list[Seen]) -> None:
        """Values that Python takes from the GPU.

        Without the wait Python would work on, so that no more than the wait is won; and no more than what Python does
        in a step, since the GPU is busy while Python waits.
        """
        total = statistics.median(sum(call.seconds.values()) for call in seen)
        waited = statistics.median(sum(call.waits.values()) for call in seen)
        most = min(waited, total - waited) / total
        if most > _WAITS_STAND_OUT:
            places = sorted(seen[-1].waits, key=lambda place: -seen[-1].waits[place])
            because = f"Python waits for the GPU {format_seconds(waited)} in a step, in {listed(places[:3])}."
            change = "take values from the GPU less often"
            self.diagnosis.plan.append(Advice(change, because, "host_device_syncs", most))

    def _untried(self, contents: Contents) -> None:
        """What was seen, and could not be tried with the same results."""
        phases, plan = self.diagnosis.phases, self.diagnosis.plan
        advised = {advice.change for advice in plan}
        for rows in contents.rows:
            if (change := sparse_change(rows)) not in advised and phases[OPTIMIZER] > _STANDS_OUT:
                share = phases[BACKWARD] + phases[OPTIMIZER]
                plan.append(Advice(change, because_of_rows(rows), "your_own_program", share))
        for loop in contents.loops:
            if loop.distance is None:
                plan.append(Advice(call_once(loop), because_of(loop), "your_own_program"))
        if contents.denormal and not any("denormal" in change for change in advised):
            self.diagnosis.notes.append(because_of_denormals(contents.denormal))

    # --- changes

    def _try(self, bench: Bench, seen: Seen, contents: Contents) -> None:
        diagnosis = self.diagnosis
        plain = self._repeated(bench)
        diagnosis.compared = "loss" if plain.losses else "weights"
        if self._kinds is not None and not diagnosis.busy:
            self._check_times(bench, *self._kinds)
        waiting = list(trials(self.found, seen, contents, self.work, diagnosis.tolerance))
        compiling = [trial for trial in waiting if trial.name == COMPILE]
        if compiling and diagnosis.budget_s < _LEAST_FOR_COMPILING_S:
            diagnosis.notes.append(f"{_NOT_COMPILED}: that takes a budget_s of {_LEAST_FOR_COMPILING_S:g} or more.")
            compiling = []
        if not can_compile({p.device.type for p in self.found.parameters}) and not is_compiled(self.found):
            diagnosis.notes.append(f"{_NOT_COMPILED}: it finds no compiler on this machine.")
        waiting = [trial for trial in waiting if trial.name != COMPILE]
        alike = self._alike(bench, plain, waiting)
        while (clear := self._clear(bench, alike)) is not None and not diagnosis.interrupted:
            bench.adopted += (clear,)
            waiting = of_each_kind([clear, *waiting])[1:]
            plain = bench.steps()
            alike = self._alike(bench, plain, waiting)
        # Last, since nobody shall wait for a compiler whose work could not be timed.
        if not diagnosis.interrupted:
            self._time(bench, alike + self._alike(bench, plain, compiling))

    def _unspent_s(self, of: float = 1.0) -> float:
        """Seconds of the budget that are left, or of so many budgets; negative where they are exceeded."""
        return of * self.diagnosis.budget_s - (time.perf_counter() - self._started)

    def _alike(self, bench: Bench, plain: Steps, several: list[Trial]) -> list[Trial]:
        """Those changes with which the first steps give what they give without."""
        self._step_s[""] = plain.step_s
        alike = []
        for trial in several:
            needed_s, left_s = 2 * PARITY_STEPS * plain.step_s, self._unspent_s(_MOST_OVERRUN)
            if trial.name == COMPILE:
                needed_s = _LEFT_FOR_COMPILING_S * (_BUSY_COMPILER if self.diagnosis.busy else 1.0)
                left_s = self._unspent_s()
            if needed_s > left_s:
                self._put(Tried(trial.name, verdict=NO_TIME))
                continue
            tried = self._parity(bench, plain, trial)
            self._put(tried)
            if not tried.verdict:
                alike.append(trial)
        return alike

    def _clear(self, bench: Bench, alike: list[Trial]) -> Trial | None:
        """A change that saves so much that the others had better be tried on top of it."""
        best = min(alike, key=lambda trial: self._step_s[trial.name], default=None)
        if best is None or len(alike) == 1 or self._step_s[best.name] > _CLEAR * self._step_s[""]:
            return None
        self._rounds(bench, [best], f"timing: {best.name}", self._unspent_s() * _SCREEN_SHARE)
        if self._of(best.name).verdict != Verdict.FASTER:
            return None
        self._advise(best)
        self._adopted = self._of(best.name)
        return best

    def _repeated(self, bench: Bench) -> Steps:
        """The step as it is, twice from the same state: only what repeats itself can be compared."""
        first, second = bench.steps(), bench.steps()
        if (difference := first.difference(second)) > self.diagnosis.tolerance:
            raise StepError(
                "The step does different work in each call: from the same weights and random numbers it gave another "
                f"loss ({difference:.2g} off). Let it work on one fixed batch, or pass the loader as data= and let the "
                "step take a batch."
            )
        return second

    def _check_times(self, bench: Bench, short_s: float, long_s: float) -> None:
        """Calls of two kinds, which from the same state are of one kind: it is the step, and not the machine."""
        seconds = []
        for _ in range(_CALLS_FOR_KINDS):
            bench.arrange()
            seconds.append(bench.timed())
        if _two_kinds(seconds) is None:
            raise StepError(
                f"The step does different work in each call: some take {format_seconds(short_s)} and others "
                f"{format_seconds(long_s)}. Hand over a step that always does the same."
            )

    def _parity(self, bench: Bench, plain: Steps, trial: Trial) -> Tried:
        """Whether a change gives what the step gives."""
        name, notes, started = trial.name, self.diagnosis.notes, time.perf_counter()
        self.work.compile_until = started + self._unspent_s() * _SCREEN_SHARE
        try:
            with progress(f"first steps: {name}", 1.0):
                steps = bench.steps([trial])
        except Exception as error:
            if self.work.gave_up:
                notes.append(f"Compiling was given up after {format_seconds(time.perf_counter() - started)}.")
                return Tried(name, verdict=NO_TIME, remark="compiling was given up")
            return Tried(name, verdict=IMPOSSIBLE, remark=f"{type(error).__name__}: {str(error).splitlines()[0][:80]}")
        finally:
            bench.close()
            self.work.compile_until = math.inf  # what is in the rounds is compiled
        if name == COMPILE:
            self._compiling_s = max(0.0, steps.first_s - plain.first_s)
            notes.append(f"Compiling took {format_seconds(self._compiling_s)} of the time.")
        difference, first = plain.difference(steps, trial.far_as_well), steps.step_s / plain.step_s
        self._step_s[name] = steps.step_s
        if difference > self.diagnosis.tolerance:
            return Tried(name, difference, verdict=CHANGES_RESULTS)
        if first > _FAR_SLOWER:
            return Tried(name, difference, verdict=str(Verdict.SLOWER), remark="far slower in its first steps")
        return Tried(name, difference, first=first)

    def _time(self, bench: Bench, alike: list[Trial]) -> None:
        """Time what is left in rounds, the likeliest first; of several, those once more that look faster."""
        fitting: list[Trial] = []
        for trial in sorted(alike, key=lambda trial: self._step_s[trial.name]):
            rounds_s = paired.MIN_ROUNDS * sum(self._step_s[each] for each in ("", "", trial.name))
            rounds_s += paired.MIN_ROUNDS * sum(self._step_s[each.name] for each in fitting)
            if rounds_s > (self._unspent_s() * _SCREEN_SHARE if fitting else self._unspent_s(_MOST_OVERRUN)):
                self._put(replace(self._of(trial.name), verdict=NO_TIME))
            else:
                fitting.append(trial)
        self._rounds(bench, fitting, "trying changes", self._unspent_s() * (_SCREEN_SHARE if len(fitting) > 1 else 1))
        judged = sorted((t for t in map(self._of, (t.name for t in fitting)) if t.ratio), key=lambda t: t.ratio)
        names = [tried.name for tried in judged if tried.verdict == Verdict.FASTER or tried.may_save()]
        finalists = of_each_kind(sorted((t for t in fitting if t.name in names), key=lambda t: names.index(t.name)))
        if len(fitting) > 1 and not self.diagnosis.interrupted:
            # The best of several looks better than it is, in the rounds that chose it.
            self._rounds(bench, finalists[:_FINALISTS], "timing the best again", self._unspent_s())
        for trial in finalists:
            self._advise(trial)
        if any(tried.verdict == NO_TIME for tried in self.diagnosis.tried):
            self.diagnosis.needed_s = math.ceil(2 * self.diagnosis.budget_s)

    def _rounds(self, bench: Bench, several: list[Trial], title: str, budget_s: float) -> None:
        """Keep what rounds say of some changes; without a verdict, that there was no time, unless one was known."""
        diagnosis = self.diagnosis
        if not several:
            return
        rounds = StepRounds(bench, several, title, budget_s, self._unspent_s(_MOST_OVERRUN))
        judged = rounds.judged()
        diagnosis.interrupted |= rounds.interrupted
        diagnosis.noise = rounds.noise or diagnosis.noise
        diagnosis.busy = rounds.busy or diagnosis.busy
        for trial in several:
            tried = self._of(trial.name)
            if judgement := judged.get(trial.name):
                interval, verdict = judgement.interval, str(judgement.verdict)
                self._put(replace(tried, ratio=judgement.ratio, interval=interval, verdict=verdict))
            elif not tried.verdict:
                self._put(replace(tried, verdict=NO_TIME))

    def _of(self, name: str) -> Tried:
        return next(tried for tried in self.diagnosis.tried if tried.name == name)

    def _put(self, tried: Tried) -> None:
        """In the place of what was known of the same change."""
        names = [each.name for each in self.diagnosis.tried]
        index = names.index(tried.name) if tried.name in names else len(names)
        self.diagnosis.tried[index : index + 1] = [replace(tried, on_top_of=self._adopted)]

    def _advise(self, trial: Trial) -> None:
        diagnosis, tried = self.diagnosis, self._of(trial.name)
        if tried.verdict != Verdict.FASTER:
            return
        # Waiting for data is no part of what was timed.
        saves, low, high = (share * (1 - diagnosis.phases[LOADING]) for share in tried.saves())
        if saves < paired.PRACTICAL:  # of what an earlier change leaves it may be much
            return
        what = "losses" if diagnosis.compared == "loss" else "weights"
        same = f"agree to {tried.difference:.1g}" if tried.difference else "are the same to the bit"
        because = f"{trial.because} The {what} {same}."
        before = tried.on_top_of
        if before is not None:
            because += f" Tried on top of: {before.name}."
        if trial.name == COMPILE and self._compiling_s:
            steps = math.ceil(self._compiling_s / (saves * diagnosis.step_s))
            because += (
                f" Compiling took {format_seconds(self._compiling_s)}: {format_count(steps)} steps win that back."
            )
        if trial.instead_of == "threads" and diagnosis.busy:
            because += " On a machine without other programs it may save nothing."
        diagnosis.plan.append(Advice(trial.change, because, trial.lesson, saves, "tried", low=low, high=high))


def _two_kinds(seconds: Sequence[float]) -> tuple[float, float] | None:
    """The medians of two groups with a wide gap between them and a quarter of the calls in each; None otherwise."""
    ordered = sorted(seconds)
    for i in range(math.ceil(len(ordered) / 4), len(ordered) - len(ordered) // 4):
        if len(ordered) >= _CALLS_FOR_KINDS and ordered[i] > _GAP * ordered[i - 1]:
            return statistics.median(ordered[:i]), statistics.median(ordered[i:])
    return None


def _longer(seconds: Sequence[float]) -> tuple[float, float] | None:
    """The medians of the first third and the last, where every call of the last took longer than any of the first."""
    third = len(seconds) // 3
    if third < 3 or max(first := seconds[:third]) > min(last := seconds[-third:]):
        return None
    ends = statistics.median(first), statistics.median(last)
    return ends if ends[1] > _LONGER * ends[0] else None


def _check_arguments(step: Any, data: Any, budget_s: float, tolerance: float) -> None:
    if not callable(step) or isinstance(step, torch.nn.Module):
        raise StepError(
            f"step is a {type(step).__name__}: pass the function that runs one training step, without calling it."
        )
    if not isinstance(budget_s, int | float) or not 0 < budget_s <= MAX_BUDGET_S:
        raise StepError(f"budget_s is a time in seconds, more than 0 and at most {MAX_BUDGET_S:.0f}; got {budget_s!r}")
    if not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
        raise StepError(f"tolerance is a relative difference from 0 to 1; got {tolerance!r}")
    if data is not None and not isinstance(data, Iterable):
        raise StepError(f"data is of the type {type(data).__name__}: pass a DataLoader, or a list of batches.")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise StepError("diagnose() does not support several ranks: call it in a program of one process.")
    try:
        signature = inspect.signature(step)
    except (ValueError, TypeError):  # a callable may have none that can be read
        return
    try:
        signature.bind(*([None] if data is not None else []))
    except TypeError as error:
        wanted = "one batch, since data= is given" if data is not None else "nothing: pass data=, or a lambda"
        raise StepError(f"The step must take {wanted} ({error}).") from None


def _check_kind(argument: str, given: Any, kind: type) -> None:
    several = given if isinstance(given, list | tuple) and given else [given]
    if given is not None and not all(isinstance(value, kind) for value in several):
        got = listed(sorted({type(value).__name__ for value in several}))
        raise StepError(f"{argument}= takes a torch {kind.__name__}, or a list of them; got {got}.")


def _described(batch: Any) -> str:
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    shapes = listed([str(tuple(leaf.shape)) for leaf in leaves[:4]]) if leaves else ""
    return f"a {type(batch).__name__}" + (f" with tensors of {shapes}" if shapes else "")


def _share(share: float | None) -> str:
    return format_percent(share) if share is not None else "–"


def _interval(interval: Interval | None) -> str:
    return f"{interval.low:.3f} to {interval.high:.3f}" if interval is not None and interval.bounded else ""
