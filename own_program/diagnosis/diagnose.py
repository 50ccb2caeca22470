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
from course_utils.show.formats import format_bytes, format_count, format_noise, format_percent, format_seconds, listed
from course_utils.show.progress import progress
from course_utils.show.tables import Column, Grid, Sheet, named_values
from own_program.diagnosis.phases import (
    AFTER,
    BEFORE,
    BETWEEN,
    FORWARD,
    LOADING,
    PHASES,
    PhaseWatch,
    Seen,
    is_compiled,
    replayed,
)
from own_program.diagnosis.rounds import PARITY_STEPS, Bench, StepRounds, Steps, loss_of, timings
from own_program.diagnosis.state import Found, Snapshot, find
from own_program.diagnosis.trials import COMPILE, Trial, Work, can_compile, of_each_kind, trials

DEFAULT_BUDGET_S = 20.0
DEFAULT_TOLERANCE = 1e-3
_TEST_BUDGET_S = 1.0
# Below this budget compiling would take longer than all the rest. It begins only where so much of the budget is left.
_LEAST_FOR_COMPILING_S, _LEFT_FOR_COMPILING_S = 15.0, 10.0
# Beside other programs a compiler takes so many times as long.
_BUSY_COMPILER = 3.0
# The share of the budget for calls as they come. Of what is left, a half goes to rounds that look at all changes.
_CALLS_SHARE, _SCREEN_SHARE = 0.15, 0.5
# What earlier stages have used up, rounds still get such a share of the budget: without them all that was in vain.
_LEAST_SHARE = 0.25
_LEAST_CALLS, _MOST_CALLS, _MOST_WATCHED = 4, 24, 16
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
# Calls are of two kinds if so wide a gap lies between them, among so many.
_GAP, _CALLS_FOR_KINDS = 2.0, 8
# A change with which the first steps take no more than this is timed by itself, and the others on top of it: in a step
# with so large a waste, what they save is lost in the noise.
_CLEAR = 0.6
# Where a change that is too close to tell may well save so much, nobody can say that nothing stands out.
_MAY_SAVE = 1.1
# So a note begins; where there is one, a card without a plan says it in its sentence.
_NOT_COMPILED = "torch.compile was not tried"
# Verdicts of changes that were not timed.
CHANGES_RESULTS, IMPOSSIBLE, NO_TIME = "CHANGES THE RESULTS", "IMPOSSIBLE", "NO TIME"


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
        on_top_of: what was in force while it was timed, and is not in its ratio.
    """

    name: str
    difference: float | None = None
    ratio: float | None = None
    interval: Interval | None = None
    verdict: str = ""
    remark: str = ""
    on_top_of: Tried | None = None

    def with_all(self) -> Tried:
        """Together with what it was timed on top of.

        The ends of two intervals are multiplied. Both ratios would have to be beyond theirs, or one far beyond, for the
        product to be outside.
        """
        if (before := self.on_top_of) is None:
            return self
        low, high = (a * b for a, b in zip(before.interval.ends, self.interval.ends, strict=True))
        return Tried(
            f"{before.name} + {self.name}",
            ratio=before.ratio * self.ratio,
            interval=Interval(low, high, self.interval.confidence),
            verdict=self.verdict,
        )


@dataclass(repr=False)
class Diagnosis(Shown):
    """What :func:`diagnose` found out about a step. It shows itself as a card.

    Attributes:
        step_s: seconds of a step, waiting for data included: the median.
        phases: phase to its share of a step.
        tried: every change that was tried.
        together: what the best changes did together, where there are several.
        plan: what to change, the most first.
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
    together: Tried | None = None
    plan: list[Advice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    busy: str = ""
    noise: float | None = None
    peak_bytes: int | None = None
    interrupted: bool = False
    needed_s: float | None = None  # a longer budget, where this one told nothing
    compared: str = "loss"  # or weights, where no loss was seen

    def card(self) -> Card:
        """What a step takes, what to change, and where its time goes."""
        plan = sorted(self.plan, key=lambda advice: -(advice.saves or 0.0))
        sure = (
            f"intervals: 99%, {format_noise(self.noise)}" if self.noise is not None else "",
            self.environment.caption,
        )
        return Card(
            self._sentence(),
            tuple(self._rows()),
            Axis(0.0, 1.0, ((0.0, "0"), (1.0, format_seconds(self.step_s)))),
            ("", "of a step"),
            plan=tuple(plan[:_MOST_ADVICE]),
            warning=self._warning(),
            notes=tuple(self._notes()),
            provenance=" · ".join(filter(None, reversed(sure))),
            numbers=self._numbers(),
            title=self.name or "",
            head=JUST_NOW,
        )

    def _sentence(self) -> list[str | Toned]:
        interval = self.interval
        ends = ""
        if interval is not None and interval.bounded:
            ends = f" ({format_seconds(interval.low)} to {format_seconds(interval.high)})"
        said: list[str | Toned] = ["A step takes ", Toned(format_seconds(self.step_s)), f"{ends}. "]
        tried = [advice for advice in self.plan if advice.known == "tried"]
        best = max(tried, key=lambda advice: advice.saves, default=None)
        both = self._saving(self.together) if self.together and self.together.verdict == Verdict.FASTER else None
        # All of them are in the plan, or it would not be clear which those are.
        if both is not None and len(tried) == self.together.name.count(" + ") + 1 > 1 and both[0] > best.saves:
            said += [f"Tried together, {len(tried)} changes make it ", Toned(f"{_ends(both)} shorter", "faster"), "."]
        elif best is not None:
            less = _ends((best.saves, best.low, best.high))
            said += ["Tried: ", Toned(best.change), ". That makes it ", Toned(f"{less} shorter", "faster"), "."]
        others = [advice for advice in self.plan if advice.known != "tried"]
        if others:
            most = max(others, key=lambda advice: advice.saves or 0.0)
            said.append(f"{' ' * bool(tried)}{most.change[0].upper()}{most.change[1:]}")
            saves = most.saving.removesuffix(f" of {most.of}")
            said += [": that saves ", Toned(saves), " of it."] if saves else ["."]
        count = sum(each.verdict != NO_TIME for each in self.tried)
        unclear = any(t.verdict == Verdict.UNCLEAR and t.interval.low * _MAY_SAVE < 1 for t in self.tried)
        if not self.plan and self.interrupted:
            said += ["What could make it shorter is not known yet: let diagnose() run to its end."]
        elif not self.plan and (self.needed_s or count < len(self.tried)):
            quiet = "close other programs, or " * bool(self.busy)
            said += [f"What could make it shorter is not known yet: {quiet}pass a larger budget_s."]
        elif not self.plan and unclear:
            said += ["Too close to tell what makes it shorter: close other programs, or pass a larger budget_s."]
        elif not self.plan and not count:
            said += [f"Nothing stands out, and no change was tried. {self._more()}"]
        elif not self.plan:
            many = "one change was" if count == 1 else f"{count} changes were"
            compiled = ", torch.compile was not" * any(note.startswith(_NOT_COMPILED) for note in self.notes)
            said += [f"Nothing stands out: {many} tried{compiled}, and none makes it clearly shorter. {self._more()}"]
        return said

    def _more(self) -> str:
        """What to do where no change helps."""
        most = max(self.phases, key=self.phases.__getitem__, default="")
        largest = f"The largest part is {most} ({format_percent(self.phases[most])}), and a" if most else "A"
        return f"{largest} trace tells what is inside: lesson {lesson_order.number('profiler'):02d}."

    def _rows(self) -> Iterator[Row]:
        for phase in PHASES:
            share = self.phases.get(phase, 0.0)
            if share >= _SMALL:
                seconds = format_seconds(share * self.step_s)
                yield Row(phase, format_percent(share), seconds, bar=Bar(0.0, share))

    def _saving(self, tried: Tried) -> tuple[float, float, float]:
        """The share of a step that it saves, with its interval: waiting for data is no part of what was timed."""
        timed = 1 - self.phases.get(LOADING, 0.0)
        ratio, low, high = 1.0, 1.0, 1.0
        if tried.on_top_of is not None:
            ratio, (low, high) = tried.on_top_of.ratio, tried.on_top_of.interval.ends
        ends = (1 - tried.interval.high) * low, (1 - tried.interval.low) * high
        return (1 - tried.ratio) * ratio * timed, ends[0] * timed, ends[1] * timed

    def _warning(self) -> str:
        stopped = "Stopped early: this is what was known so far." if self.interrupted else ""
        short = ""
        if self.needed_s:
            quiet = "close other programs, or " * bool(self.busy)
            short = (
                f"{self.budget_s:g} s were too short to tell what changes do: {quiet}pass budget_s={self.needed_s:g}."
            )
        return " ".join(filter(None, (stopped, short, self.busy)))

    def _notes(self) -> Iterator[str]:
        yield from self.notes
        by_verdict: dict[str, list[str]] = {}
        for tried in self.tried:
            by_verdict.setdefault(tried.verdict, []).append(tried.name)
        useless = by_verdict.get(Verdict.SAME, []) + by_verdict.get(Verdict.SLOWER, [])
        for words, names in (
            ("Tried and of no use here", useless),
            ("Tried, and too close to tell (a larger budget_s tells more)", by_verdict.get(Verdict.UNCLEAR, [])),
            (
                f"Not advised, since the {self.compared} would change by more than {self.tolerance:g}",
                by_verdict.get(CHANGES_RESULTS, []),
            ),
            ("Tried, and this step cannot do it", by_verdict.get(IMPOSSIBLE, [])),
            ("Not timed for lack of time (pass a larger budget_s)", by_verdict.get(NO_TIME, [])),
        ):
            if names:
                yield f"{words}: {listed(names)}."
        names = [*self.found.models, *self.found.optimizers]
        yield f"Worked on: {listed(names)}. All of it is as it was before."

    def _numbers(self) -> Sheet:
        known = [phase for phase in PHASES if phase in self.phases]
        shares = Grid(
            "Where a step's time goes (medians of watched calls)",
            (
                Column("", tuple(known), numeric=False),
                Column("share", tuple(format_percent(self.phases[phase]) for phase in known)),
                Column("time", tuple(format_seconds(self.phases[phase] * self.step_s) for phase in known)),
            ),
        )
        rows = [*self.tried, *([self.together] if self.together else [])]
        tables = [shares]
        if rows:
            tables.append(
                Grid(
                    f"What was tried ({PARITY_STEPS} steps from the same state for the losses, then paired rounds)",
                    (
                        Column("", tuple(t.name for t in rows), numeric=False),
                        Column("verdict", tuple(t.verdict.lower() for t in rows), numeric=False),
                        Column("time", tuple(f"{t.ratio:.3f}" if t.ratio else "" for t in rows)),
                        Column("99% interval", tuple(_interval(t.interval) for t in rows)),
                        Column("loss differs by", tuple(_difference(t.difference) for t in rows)),
                        Column("remark", tuple(t.remark for t in rows), numeric=False),
                    ),
                )
            )
        values = [("peak memory of a step, above what was there", self.peak_bytes and format_bytes(self.peak_bytes))]
        values += [("budget", f"{self.budget_s:g} s"), ("tolerance", f"{self.tolerance:g}")]
        return Sheet((*tables, named_values("", values)))


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

    The step is called some hundred times. First as it is, to see where its time goes. Then each change that is safe to
    try is put in force: it must give the losses that the step gives, from the same weights and random numbers, before
    it is timed in rounds against the step as it is. What looks faster is timed once more, and only that is reported.
    After a change that saves very much the others are tried on top of it.
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
            _Work(diagnosis, step, data).run()
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

    def __init__(self, diagnosis: Diagnosis, step: Callable[..., Any], data: Iterable[Any] | None) -> None:
        self.diagnosis, self.found, self.data = diagnosis, diagnosis.found, data
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
            seen = self._as_it_is()
        diagnosis.busy = watch.sentence
        self._bounds(seen)
        # What torch warns of, a learner has seen in the calls as they are, or it is a trial's own.
        with replayed(), warnings.catch_warnings(action="ignore"):
            bench = Bench(self.work, self.found, self.device, Snapshot(self.found))
            try:
                self._try(bench, seen[-1])
                self._peak(bench)
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

    def _as_it_is(self) -> list[Seen]:
        """Call the step as it is: how long it takes, and where the time goes. Returns what was seen."""
        diagnosis, allowed_s = self.diagnosis, self.diagnosis.budget_s * _CALLS_SHARE
        batches = _Batches(self.data) if self.data is not None else None
        started = time.perf_counter()
        seconds: list[float] = []
        waits: list[float] = []
        sizes: set[str] = set()
        while len(seconds) < _MOST_CALLS:
            if batches is not None:
                batch, wait_s = batches.following()
                sizes.add(_described(batch))
                if not seconds:
                    self.work.args = (batch,)
                waits.append(wait_s)
                seconds.append(self._timed(batch))
            else:
                seconds.append(self._timed())
            spent_s = time.perf_counter() - started
            if spent_s > 0.6 * allowed_s and len(seconds) > (_LEAST_CALLS if spent_s < 2 * allowed_s else 1):
                break
        # The first call wakes everything up; so does the first batch, and workers then have some ready.
        seconds, waits = seconds[1:], waits[1:]
        self._kinds = _two_kinds(seconds) if self.data is None else None
        if len(sizes) > 1:
            diagnosis.notes.append("Batches differ in size; changes are tried on the first.")
        seen: list[Seen] = []
        with PhaseWatch(self.found, self.device) as watch:
            while len(seen) < _MOST_WATCHED:
                seen.append(watch.call(self.work.call))
                spent_s = time.perf_counter() - started
                if spent_s > allowed_s and len(seen) >= (_LEAST_CALLS if spent_s < 4 * allowed_s else 2):
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
        if not is_compiled(self.found):
            return seen
        diagnosis.notes.append(
            "The model is compiled already; what comes before its forward pass is part of that here."
        )
        return seen

    def _timed(self, *args: Any) -> float:
        self.device.synchronize()
        start = time.perf_counter()
        returned = self._step(*args)
        self.device.synchronize()
        seconds = time.perf_counter() - start
        loss = loss_of(returned)
        if loss is not None and not math.isfinite(loss):
            raise StepError(
                f"The loss is {loss} in call {self._calls}: mend that first; no change could be checked against it."
            )
        return seconds

    def _check_work(self, seen: list[Seen]) -> None:
        if not seen[0].counts["backward passes"]:
            raise StepError(
                "The step ran no backward pass: diagnose() is for training steps; compare() times a forward pass alone."
            )
        different = [what for what in seen[0].counts | seen[-1].counts if len({call.counts[what] for call in seen}) > 1]
        if len({call.work for call in seen}) > 1 and different:
            counted = sorted({call.counts[different[0]] for call in seen})
            raise StepError(
                f"The step does different work in each call ({listed(map(str, counted))} {different[0]}): hand over a "
                "step that always does the same, such as a whole round of accumulation."
            )

    def _bounds(self, seen: list[Seen]) -> None:
        """What no change was made for, and how much it can save at most."""
        diagnosis, phases = self.diagnosis, self.diagnosis.phases
        if phases[LOADING] > max(_LOADING_STANDS_OUT, _HANDED_OVER_S / diagnosis.step_s):
            workers = getattr(self.data, "num_workers", None)
            change = "load batches in workers of the DataLoader"
            if workers or (workers is None and self.data is not None):
                change = "let batches arrive sooner"
            has = "" if workers is None else f", with num_workers={workers}"
            waits = f"It waits {format_seconds(phases[LOADING] * diagnosis.step_s)} for each batch{has}."
            diagnosis.plan.append(Advice(change, waits, "data_loading", phases[LOADING]))
        if phases[BEFORE] > max(_STANDS_OUT, _HANDED_OVER_S / diagnosis.step_s):
            takes = format_seconds(phases[BEFORE] * diagnosis.step_s)
            because = f"{takes} pass in a step before the first module runs, and not in a DataLoader."
            diagnosis.plan.append(
                Advice("prepare batches before the step needs them", because, "data_loading", phases[BEFORE])
            )
        for name in seen[-1].unused:
            parts = (call.unused.get(name, 0.0) / max(call.seconds[FORWARD], 1e-9) for call in seen)
            share = phases[FORWARD] * min(1.0, statistics.median(parts))
            if share > _STANDS_OUT:
                takes = format_seconds(share * diagnosis.step_s)
                because = (
                    f"It takes {takes} in a step, and no backward pass goes through it. Where it is needed all the "
                    "same, it costs less under torch.no_grad()."
                )
                change = f"leave out the forward pass of {name} that no gradient comes from"
                diagnosis.plan.append(Advice(change, because, "no_grad", share, "about"))
        if phases[BETWEEN] > _STANDS_OUT:
            takes = format_seconds(phases[BETWEEN] * diagnosis.step_s)
            because = f"{takes} pass in a step after its backward pass, and not in the optimizer's step."
            change = "do less between the backward pass and the optimizer's step"
            diagnosis.plan.append(Advice(change, because, "profiler", phases[BETWEEN]))
        if phases[AFTER] > _STANDS_OUT:
            takes = format_seconds(phases[AFTER] * diagnosis.step_s)
            because = f"{takes} pass in a step after the optimizer's."
            change = "do what follows the optimizer's step less often"
            diagnosis.plan.append(Advice(change, because, "profiler", phases[AFTER]))
        weights = [p for p in self.found.parameters if p.is_floating_point()]
        total, doubles = (sum(p.numel() for p in of) for of in (weights, [p for p in weights if _is_double(p)]))
        if doubles:
            part = "All" if doubles == total else f"{format_percent(doubles / total)} of the"
            because = f"{part} {format_count(total)} weights are in float64: each takes the bytes of two in float32."
            models = [name for name, model in self.found.models.items() if any(map(_is_double, model.parameters()))]
            how = f": {listed(f'{name}.float()' for name in models)}, and inputs of that type" if models else ""
            diagnosis.plan.append(Advice(f"train in float32{how}", because, "mixed_precision"))
        if any(call.profiled for call in seen):
            because = "A profiler records every operation while the step runs, and these times hold what that costs."
            diagnosis.plan.append(Advice("switch the profiler off", because, "profiler"))

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

    # --- changes

    def _try(self, bench: Bench, seen: Seen) -> None:
        diagnosis = self.diagnosis
        # A baseline, its control and one change, in as many rounds as a verdict needs, and the steps before them.
        least_s = 4 * paired.MIN_ROUNDS * diagnosis.step_s
        if least_s > 2 * diagnosis.budget_s:
            self._too_short(least_s / _SCREEN_SHARE)
            return
        plain = self._repeated(bench)
        diagnosis.compared = "loss" if plain.losses else "weights"
        if self._kinds is not None and not diagnosis.busy:
            self._check_times(bench, *self._kinds)
        several = []
        for trial in trials(self.found, seen, self.work, diagnosis.tolerance):
            if trial.name != COMPILE or diagnosis.budget_s >= _LEAST_FOR_COMPILING_S:
                several.append(trial)
            else:
                diagnosis.notes.append(f"{_NOT_COMPILED}: that takes a budget_s of {_LEAST_FOR_COMPILING_S:g} or more.")
        if not can_compile({p.device.type for p in self.found.parameters}) and not is_compiled(self.found):
            diagnosis.notes.append(f"{_NOT_COMPILED}: it finds no compiler on this machine.")
        quick = [trial for trial in several if trial.name != COMPILE]
        alike = self._alike(bench, plain, quick)
        while (clear := self._clear(bench, alike)) is not None and not diagnosis.interrupted:
            bench.adopted += (clear,)
            quick = of_each_kind([clear, *quick])[1:]
            plain = bench.steps()
            alike = self._alike(bench, plain, quick)
        if diagnosis.interrupted:
            return
        # Last, since nobody shall wait for a compiler whose work could not be timed.
        alike += self._alike(bench, plain, [trial for trial in several if trial.name == COMPILE])
        self._time(bench, sorted(alike, key=several.index))

    def _unspent_s(self) -> float:
        """Seconds of the budget that are left; negative where it is exceeded."""
        return self.diagnosis.budget_s - (time.perf_counter() - self._started)

    def _left_s(self) -> float:
        return max(self._unspent_s(), _LEAST_SHARE * self.diagnosis.budget_s)

    def _rounds_s(self, several: list[Trial]) -> float:
        """Seconds that the rounds of a verdict take."""
        step_s = self._step_s[""]
        calls_s = 2 * step_s + sum(self._step_s.get(trial.name, step_s) for trial in several)
        return paired.MIN_ROUNDS * timings(step_s) * calls_s

    def _alike(self, bench: Bench, plain: Steps, several: list[Trial]) -> list[Trial]:
        """Those changes with which the first steps give what they give without."""
        self._step_s = {"": plain.step_s}
        alike = []
        for trial in several:
            needed_s = self._rounds_s([trial]) if trial.name == COMPILE else 2 * PARITY_STEPS * plain.step_s
            compiling_s = _LEFT_FOR_COMPILING_S * (_BUSY_COMPILER if self.diagnosis.busy else 1.0)
            is_late = trial.name == COMPILE and self._unspent_s() < compiling_s
            if is_late or needed_s > self._left_s() * _SCREEN_SHARE:
                self._put(Tried(trial.name, verdict=NO_TIME))
                continue
            tried = self._parity(bench, plain, (trial,), trial.name)
            self._put(tried)
            if not tried.verdict:
                alike.append(trial)
        return alike

    def _clear(self, bench: Bench, alike: list[Trial]) -> Trial | None:
        """A change that saves so much that the others had better be tried on top of it."""
        best = min(alike, key=lambda trial: self._step_s[trial.name], default=None)
        if best is None or len(alike) == 1 or self._step_s[best.name] > _CLEAR * self._step_s[""]:
            return None
        rounds = StepRounds(bench, {best.name: (best,)}, f"timing: {best.name}", self._left_s() * _SCREEN_SHARE)
        judged = rounds.judged()
        self._learn(rounds)
        if best.name not in judged or judged[best.name].verdict is not Verdict.FASTER:
            return None
        self._judge(best.name, judged[best.name])
        self._advise(best)
        self._adopted = self._of(best.name).with_all()
        if bench.adopted:
            self.diagnosis.together = self._adopted
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
            bench.arrange(())
            seconds.append(self._timed())
        if _two_kinds(seconds) is None:
            raise StepError(
                f"The step does different work in each call: some take {format_seconds(short_s)} and others "
                f"{format_seconds(long_s)}. Hand over a step that always does the same."
            )

    def _parity(self, bench: Bench, plain: Steps, changes: tuple[Trial, ...], name: str) -> Tried:
        """Whether a change gives what the step gives."""
        started = time.perf_counter()
        self.work.compile_until = started + self._left_s() * _SCREEN_SHARE
        try:
            with progress(f"first steps: {name}", 1.0):
                steps = bench.steps(changes)
        except Exception as error:
            if self.work.gave_up:
                self.diagnosis.notes.append(
                    f"Compiling was given up after {format_seconds(time.perf_counter() - started)}: {name}."
                )
                return Tried(name, verdict=NO_TIME, remark="compiling was given up")
            return Tried(name, verdict=IMPOSSIBLE, remark=f"{type(error).__name__}: {str(error).splitlines()[0][:80]}")
        finally:
            bench.close()
            self.work.compile_until = math.inf  # what is in the rounds is compiled
        if name == COMPILE:
            self._compiling_s = max(0.0, steps.seconds[0] - plain.seconds[0])
            self.diagnosis.notes.append(f"Compiling took {format_seconds(self._compiling_s)} of the time.")
        difference = plain.difference(steps)
        self._step_s[name] = steps.step_s
        if difference <= self.diagnosis.tolerance and steps.step_s > _FAR_SLOWER * plain.step_s:
            return Tried(name, difference, verdict=str(Verdict.SLOWER), remark="far slower in its first steps")
        return Tried(name, difference, verdict=CHANGES_RESULTS if difference > self.diagnosis.tolerance else "")

    def _time(self, bench: Bench, alike: list[Trial]) -> None:
        diagnosis, screen_s = self.diagnosis, self._left_s() * _SCREEN_SHARE
        fitting: list[Trial] = []
        for trial in alike:
            if not fitting or self._rounds_s([*fitting, trial]) <= screen_s:
                fitting.append(trial)
            else:
                self._put(replace(self._of(trial.name), verdict=NO_TIME))
        if not fitting:
            if self._adopted is None and any(tried.verdict == NO_TIME for tried in diagnosis.tried):
                self._too_short(2 * diagnosis.budget_s)
            return
        screen = StepRounds(bench, {t.name: (t,) for t in fitting}, "trying changes", screen_s)
        judged = screen.judged()
        self._learn(screen)
        for label, judgement in judged.items():
            self._judge(label, judgement)
        if diagnosis.interrupted:
            return
        promising = [
            trial
            for trial in sorted(fitting, key=lambda trial: judged[trial.name].ratio)
            if judged[trial.name].verdict is Verdict.FASTER
            or (judged[trial.name].verdict is Verdict.UNCLEAR and judged[trial.name].ratio < _PROMISING)
        ]
        self._decide(bench, of_each_kind(promising)[:_FINALISTS])

    def _decide(self, bench: Bench, finalists: list[Trial]) -> None:
        """Time what looked good once more: the best of several looks better than it is, in the rounds that chose it."""
        diagnosis = self.diagnosis
        if not finalists:
            return
        cases: dict[str, tuple[Trial, ...]] = {trial.name: (trial,) for trial in finalists}
        all_names = " + ".join(cases)
        together = None
        if len(finalists) > 1:
            together = self._parity(bench, bench.steps(), tuple(finalists), all_names)
            if not together.verdict:
                cases[all_names] = tuple(finalists)
            if self._adopted is None:
                diagnosis.together = together
        final = StepRounds(bench, cases, "timing the best again", self._left_s())
        judged = final.judged()
        self._learn(final)
        for trial in finalists:
            if trial.name in judged:
                self._judge(trial.name, judged[trial.name])
                self._advise(trial)
        if together is not None and all_names in judged:
            together = _with(together, judged[all_names])
            if self._adopted is None or together.verdict == Verdict.FASTER:
                diagnosis.together = replace(together, on_top_of=self._adopted).with_all()
        elif self._adopted is not None and all_names in judged and judged[all_names].verdict is Verdict.FASTER:
            diagnosis.together = self._of(all_names).with_all()

    def _learn(self, rounds: StepRounds) -> None:
        diagnosis = self.diagnosis
        diagnosis.interrupted |= rounds.interrupted
        diagnosis.noise = getattr(rounds, "noise", diagnosis.noise)
        diagnosis.busy = rounds.busy or diagnosis.busy
        if len(rounds.cases[0].samples) < paired.MIN_ROUNDS and not rounds.interrupted:
            self._too_short(2 * diagnosis.budget_s)

    def _too_short(self, needed_s: float) -> None:
        self.diagnosis.needed_s = math.ceil(needed_s)

    def _of(self, name: str) -> Tried:
        return next(tried for tried in self.diagnosis.tried if tried.name == name)

    def _put(self, tried: Tried) -> None:
        """In the place of what was known of the same change."""
        names = [each.name for each in self.diagnosis.tried]
        index = names.index(tried.name) if tried.name in names else len(names)
        self.diagnosis.tried[index : index + 1] = [replace(tried, on_top_of=self._adopted)]

    def _judge(self, name: str, judgement: paired.Judgement) -> None:
        self._put(_with(self._of(name), judgement))

    def _advise(self, trial: Trial) -> None:
        diagnosis, tried = self.diagnosis, self._of(trial.name)
        if tried.verdict != Verdict.FASTER:
            return
        saves, low, high = diagnosis._saving(tried)
        what = "losses" if diagnosis.compared == "loss" else "weights"
        same = f"The {what} are the same to the bit" if not tried.difference else f"The {what} agree"
        because = f"{trial.because} {same}{_difference(tried.difference, ' to ')}."
        if tried.on_top_of is not None:
            because += f" Tried on top of: {tried.on_top_of.name}."
        if trial.name == COMPILE and self._compiling_s:
            steps = math.ceil(self._compiling_s / (saves * diagnosis.step_s))
            because += (
                f" Compiling took {format_seconds(self._compiling_s)}: {format_count(steps)} steps win that back."
            )
        if trial.instead_of == "threads" and diagnosis.busy:
            because += " On a machine without other programs it may save nothing."
        diagnosis.plan.append(Advice(trial.change, because, trial.lesson, saves, "tried", low=low, high=high))

    def _peak(self, bench: Bench) -> None:
        if self.diagnosis.interrupted or self.diagnosis.step_s > 1.0:
            return
        bench.arrange(())
        with contextlib.suppress(Exception):  # a profiler that is on already, say; the times stand
            self.diagnosis.peak_bytes = self.device.peak_memory(self.work.call)[0]


class _Batches:
    def __init__(self, data: Iterable[Any]) -> None:
        self._data, self._batches = data, iter(data)
        self.workers = getattr(data, "num_workers", 0)

    def following(self) -> tuple[Any, float]:
        for _ in range(2):
            start = time.perf_counter()
            try:
                batch = next(self._batches)
            except StopIteration:
                self._batches = iter(self._data)
                continue
            return batch, time.perf_counter() - start
        raise StepError("data has no more batches: pass a loader, or a list of batches, that can be read again.")


def _two_kinds(seconds: Sequence[float]) -> tuple[float, float] | None:
    """The medians of two groups with a wide gap between them and a quarter of the calls in each; None otherwise."""
    ordered = sorted(seconds)
    for i in range(math.ceil(len(ordered) / 4), len(ordered) - len(ordered) // 4):
        if len(ordered) >= _CALLS_FOR_KINDS and ordered[i] > _GAP * ordered[i - 1]:
            return statistics.median(ordered[:i]), statistics.median(ordered[i:])
    return None


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


def _is_double(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float64


def _with(tried: Tried, judgement: paired.Judgement) -> Tried:
    return replace(tried, ratio=judgement.ratio, interval=judgement.interval, verdict=str(judgement.verdict))


def _ends(less: tuple[float, float, float]) -> str:
    """A saving with its interval: ``31% (28 to 34)``."""
    share, low, high = (format_percent(part) for part in less)
    return f"{share} ({low.rstrip('%')} to {high})"


def _interval(interval: Interval | None) -> str:
    return f"{interval.low:.3f} to {interval.high:.3f}" if interval is not None and interval.bounded else ""


def _difference(difference: float | None, before: str = "") -> str:
    if difference is None:
        return ""
    return f"{before}{difference:.1g}" if difference else "" if before else "0"
