"""Two traces of one program: what differs, step by step, and how much of it the steps can carry."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from course_utils.show.advice import Advice
from course_utils.show.cards import Card, Shown, Toned
from course_utils.show.formats import format_percent, format_seconds, listed
from course_utils.show.tables import Column as TableColumn
from course_utils.show.tables import Grid
from own_program.traces import cpu_time as on_cpu
from own_program.traces import gpu_time as on_gpu
from own_program.traces.events import OP, PYTHON, Trace, TraceFileError
from own_program.traces.profiled_steps import difference
from own_program.traces.trace_time import StepGroup, TraceTime

_LASTS = "a step in all"
_FEW = 6  # steps, below which only large changes are told apart
_MATTERS = 0.002  # of a step: what changed by less is no difference worth naming
_SHOWN = 0.0005
_MOST_ROWS, _TOLD = 6, 3
_OTHER_SIZES = 0.2  # by which the logarithms of tensors' sizes may differ: the last batch is often smaller


@dataclass
class Change:
    """One thing in steps of one kind, before and after, in microseconds a step."""

    what: str  # a place of a step's time, what is told beside, or a step in all
    kind: str  # the steps, in words
    before: list[float]  # step by step
    after: list[float]
    step: float  # how long a step took before

    @property
    def by(self) -> float:
        """The difference of the means."""
        return statistics.fmean(self.after) - statistics.fmean(self.before)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's, of the difference, at 99.5%: so ten lines hold at 95% together. None with one step."""
        sides = self.before, self.after
        counts = [len(side) for side in sides]
        freedom = sum(counts) - 2
        if min(counts) < 2:
            return None
        within = sum(statistics.variance(side) * (len(side) - 1) for side in sides) / freedom
        # The quantile of Student's distribution at 0.9975: at most 5% too large, from 2 degrees of freedom on.
        quantile = math.exp(1.033 + 2.64 / freedom + 1.176 / freedom**2)
        half = quantile * (within * sum(1 / count for count in counts)) ** 0.5
        return self.by - half, self.by + half

    @property
    def carried(self) -> bool:
        """Whether the steps tell the two apart, and by an amount that matters."""
        low, high = self.interval or (0.0, 0.0)
        return (low > 0 or high < 0) and abs(self.by) >= _MATTERS * self.step


class TracePair(Shown):
    """What differs between two traces.

    Attributes:
        plan: empty: what to change, each trace says by itself.
        pairs: the steps that are compared: those of a kind in the first trace and in the second.
        changes: for each of them what differs, the step itself first.
    """

    plan: tuple[Advice, ...] = ()

    def __init__(self, before: TraceTime, after: TraceTime) -> None:
        lacking, what = [each for each in (before, after) if not each.gpus], "no work of a GPU, and the other does"
        if len(lacking) != 1:
            lacking = [each for each in (before, after) if not each.marked]
            what = "no marked steps: record with the profiler's step() after each training step"
        if lacking:
            names = listed([each.trace.name for each in lacking])
            raise TraceFileError(f"The two cannot be compared: {names} hold{'s' * (len(lacking) == 1)} {what}.")
        self.before, self.after = before, after
        self.pairs, self._alone = _matched(before.groups, after.groups)
        places = on_cpu.CPU_PLACES if before.cpu else (*on_gpu.GPU_PLACES, on_gpu.HIDDEN)
        self.changes = [_changes(*pair, places) for pair in self.pairs]

    def card(self) -> Card:
        """What differs most, and everything that was compared."""
        steps = [min(len(a.steps), len(b.steps)) for a, b in self.pairs]
        notes = []
        if max(steps, default=0) > 1:
            notes.append(
                "In brackets is an interval of the difference, 95% for all lines of a kind together, as if steps were "
                "independent. It speaks of these two recordings; another run may differ more. Told apart is what "
                f"changed by {format_percent(_MATTERS)} of a step and more, with an interval that leaves out zero."
            )
        if self._alone:
            notes.append(f"Nothing in the other trace runs as {listed(self._alone)} does: not compared.")
        for each in (self.before, self.after):
            notes += [f"{each.trace.name}: {note}" for part in each.parts for note in part.steps.notes]
        return Card(
            sentence=self._sentence(),
            table=self._table(),
            warning=" ".join(self._warnings(min(steps, default=_FEW))),
            notes=tuple(notes),
            provenance=f"From {self.before.trace.name} to {self.after.trace.name}. {self.before.parts[0].steps.basis}.",
        )

    def _warnings(self, steps: int) -> list[str]:
        warnings = []
        old, new = _sizes(self.before.trace), _sizes(self.after.trace)
        times = statistics.median([new[name] / old[name] for name in old.keys() & new.keys()] or [1.0])
        if abs(math.log(times)) > _OTHER_SIZES:
            warnings.append(
                f"Operators of the second were given {'larger' if times > 1 else 'smaller'} tensors, often {times:.2g} "
                "times as large: its steps do not do the same work."
            )
        if steps < _FEW:
            wide = "one tells nothing apart" if steps == 1 else "so few tell only large changes apart"
            warnings.append(f"Only {steps} step{'s' * (steps > 1)} of a kind: {wide}. Record {_FEW} and more.")
        if (stacks := bool(self.before.trace.events[PYTHON])) != bool(self.after.trace.events[PYTHON]):
            which = "first" if stacks else "second"
            warnings.append(f"Only the {which} was recorded with stacks, which make Python slower: record both alike.")
        return warnings

    def _sentence(self) -> list[str | Toned]:
        if not self.pairs:
            return [Toned("The two cannot be compared"), ": no steps of one run what steps of the other run."]
        steps = sorted((of_kind[0] for of_kind in self.changes), key=lambda change: -abs(change.by))
        inner = [change for of_kind in self.changes for change in of_kind[1:] if change.carried]
        inner.sort(key=lambda change: -abs(change.by))
        lasts = f" changed by {listed([_step_words(change, len(steps) > 1) for change in steps[:_TOLD]])}."
        if not inner and not any(change.carried for change in steps):
            return [Toned("No difference that the steps carry"), f". A step's length{lasts}"]
        if not inner:
            return [Toned("A step's length"), lasts]
        first, *others = inner
        also = [f"{change.what}, {_signed(change.by)} in {change.kind}" for change in others[: _TOLD - 1]]
        more = f". Also {listed(also)}" if also else ""
        words = f": {_signed(first.by)} in {first.kind}{more}. A step's length{lasts}"
        return ["The largest change that the steps carry is ", Toned(first.what), words]

    def _table(self) -> Grid | None:
        rows = []
        for lasts, *rest in self.changes:
            shown = [each for each in rest if each.carried or max(*each.before, *each.after) >= _SHOWN * lasts.step]
            shown.sort(key=lambda change: (-change.carried, -abs(change.by)))
            for change in [lasts, *shown[:_MOST_ROWS]]:
                name = f"{change.kind}, in all" if change is lasts else f"· {change.what}"
                means = [format_seconds(statistics.fmean(side) / 1e6) for side in (change.before, change.after)]
                low, high = map(_signed, change.interval or (0.0, 0.0))
                by = _signed(change.by) + (f" ({low} to {high})" if change.interval else "")
                rows.append((name, *means, by, "yes" if change.carried else "no"))
        heads = ("", "before", "after", "change", "told apart")
        columns = zip(heads, zip(*rows, strict=True), strict=False)
        return Grid("", tuple(TableColumn(head, each, numeric=bool(head)) for head, each in columns)) if rows else None


def _changes(before: StepGroup, after: StepGroup, places: Sequence[str]) -> list[Change]:
    """Everything that can differ between steps of one kind, the step itself first."""
    lasts = [[step.lasts for step in group.steps] for group in (before, after)]
    usual = statistics.fmean(lasts[0])
    found = [Change(_LASTS, before.name, *lasts, usual)]
    for place in places:
        old, new = ([step.get(place) for step in group.steps] for group in (before, after))
        if any(old) or any(new):
            found.append(Change(place, before.name, old, new, usual))
    return found


def _matched(
    before: Sequence[StepGroup], after: Sequence[StepGroup]
) -> tuple[list[tuple[StepGroup, StepGroup]], list[str]]:
    """Kinds of steps of the two that run most alike; and those that are left."""
    if len(before) == len(after) == 1:
        return [(before[0], after[0])], []
    near = sorted(
        (difference(a.steps[0], b.steps[0]), a.device != b.device, i, j)
        for i, a in enumerate(before)
        for j, b in enumerate(after)
    )
    found: dict[int, int] = {}
    for far, _, i, j in near:
        if far < 0.5 and i not in found and j not in found.values():
            found[i] = j
    alone = [group.name for i, group in enumerate(before) if i not in found]
    alone += [group.name for j, group in enumerate(after) if j not in found.values()]
    return [(before[i], after[j]) for i, j in sorted(found.items())], alone


def _sizes(trace: Trace) -> dict[str, float]:
    """How many elements each operator was given, on average: known where shapes were recorded."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for operator in trace.events[OP]:
        if operator.elements:
            sizes[operator.name].append(operator.elements)
    return {name: statistics.fmean(each) for name, each in sizes.items()}


def _step_words(change: Change, several: bool) -> str:
    kind = f" in {change.kind}" if several else ""
    unsure = "" if change.carried else ", not told apart"
    share = format_percent(abs(change.by) / change.step)
    return f"{_signed(change.by)}{kind} ({'−' if change.by < 0 else '+'}{share}{unsure})"


def _signed(us: float) -> str:
    return ("+" if us > 0 else "−" if us < 0 else "±") + format_seconds(abs(us) / 1e6)
