"""Two traces of one program: what differs, step by step, and how much of it the steps can carry."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from course_utils.show.advice import Advice
from course_utils.show.cards import Card, Shown, Toned
from course_utils.show.formats import format_percent, format_seconds, listed
from course_utils.show.tables import Column as TableColumn
from course_utils.show.tables import Grid
from own_program.traces import cpu as on_cpu
from own_program.traces import shares as on_gpu
from own_program.traces.batch import OTHER_SIZES, batch_ratio
from own_program.traces.columns import Amount, Column, Reading
from own_program.traces.events import PYTHON, TraceError
from own_program.traces.steps import difference

LASTS = "a step in all"
_FEW = 6  # steps, below which only large changes are told apart
_MATTERS = 0.002  # of a step: what changed by less is no difference worth naming
_SHOWN = 0.0005
_MOST_ROWS, _NOTED, _TOLD = 6, 5, 3


@dataclass
class Change:
    """One thing in steps of one kind, before and after, in microseconds a step.

    Attributes:
        what: a place of a step's time, what is told beside, or `LASTS`.
        kind: the steps, in words.
        before: step by step.
        after: step by step.
        step: how long a step took before.
    """

    what: str
    kind: str
    before: list[float]
    after: list[float]
    step: float

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
        half = _student(freedom) * (within * sum(1 / count for count in counts)) ** 0.5
        return self.by - half, self.by + half

    @property
    def carried(self) -> bool:
        """Whether the steps tell the two apart, and by an amount that matters."""
        low, high = self.interval or (0.0, 0.0)
        return (low > 0 or high < 0) and abs(self.by) >= _MATTERS * self.step


def _student(freedom: int) -> float:
    """The quantile of Student's distribution at 0.9975: at most 5% too large, from 2 degrees of freedom on."""
    return math.exp(1.033 + 2.64 / freedom + 1.176 / freedom**2)


def _changes_of(before: Column, after: Column, places: Sequence[str], times: float) -> list[Change]:
    """Everything that can differ between steps of one kind, the step itself first; the second's times are divided."""
    amounts: list[tuple[str, Amount]] = [(LASTS, lambda shares: shares.lasts)]
    amounts += [(place, lambda shares, place=place: shares.get(place)) for place in places]
    found = []
    for what, amount in amounts:
        old, new = [amount(each) for each in before.shares], [amount(each) / times for each in after.shares]
        if any(old) or any(new):
            found.append(Change(what, before.name, old, new, before.each))
    return found


class TracePair(Shown):
    """What differs between two traces of one program.

    Attributes:
        changes: everything that was compared, by kind of step.
        times: how many times as large the second trace's batch is, by the shapes that were recorded; 1 if none were.
        plan: always empty: a difference is no advice. Read one trace alone for its plan.

    Raises:
        TraceError: if they cannot be compared: one is of a GPU and the other is not, or one marks no steps.
    """

    plan: tuple[Advice, ...] = ()

    def __init__(self, before: Reading, after: Reading) -> None:
        if bool(before.devices) != bool(after.devices):
            lacking, what = [after if before.devices else before], "no work of a GPU, and the other does"
        else:
            lacking = [each for each in (before, after) if all(column.whole for column in each.columns)]
            what = "no marked steps: record with the profiler's step() after each training step"
        if lacking:
            names = listed([each.trace.name for each in lacking])
            cut = any(each.trace.cut for each in lacking)
            what = f"hold{'s' * (len(lacking) == 1)} {what}{'. It ends in the middle: copy or export it again' * cut}"
            raise TraceError(f"The two cannot be compared: {names} {what}.")
        self.before, self.after = before, after
        places = on_cpu.CPU_PLACES if before.cpu else (*on_gpu.PLACES, on_gpu.HIDDEN)
        marked = [[column for column in each.columns if not column.whole] for each in (before, after)]
        self.pairs, self._alone = _matched(*marked)
        ratio = batch_ratio(before.trace, after.trace, [(old.kind, new.kind) for old, new in self.pairs])
        self._other_sizes = ratio == OTHER_SIZES
        self.times = 1.0 if self._other_sizes else ratio
        self.changes = [_changes_of(*pair, places, self.times) for pair in self.pairs]

    def card(self) -> Card:
        """What differs most, and everything that was compared."""
        steps = [min(len(a.shares), len(b.shares)) for a, b in self.pairs]
        warning = [*self.before.trace.flaws, *self.after.trace.flaws]
        if self._other_sizes:
            warning.append(
                "Operators of the two were given tensors of other sizes: their steps do not do the same work."
            )
        if few := sorted({count for count in steps if count < _FEW}):
            only = f"Only {listed(map(str, few))} step{'s' * (few != [1])} of a kind"
            wide = "one tells nothing apart" if few == [1] else "so few tell only large changes apart"
            warning.append(f"{only}: {wide}. Record {_FEW} and more.")
        if (stacks := bool(self.before.trace.events[PYTHON])) != bool(self.after.trace.events[PYTHON]):
            which = "first" if stacks else "second"
            warning.append(f"Only the {which} was recorded with stacks, which make Python slower: record both alike.")
        notes = self._named()
        if max(steps, default=0) > 1:
            notes.append(
                "In brackets is an interval of the difference, 95% for all lines of a kind together, as if steps were "
                "independent. It speaks of these two recordings; another run may differ more. Told apart is what "
                f"changed by {format_percent(_MATTERS)} of a step and more, with an interval that leaves out zero."
            )
        if self._alone:
            notes.append(f"Nothing in the other trace runs as {listed(self._alone)} does: not compared.")
        if whole := {column.name for each in (self.before, self.after) for column in each.columns if column.whole}:
            notes.append(f"No step is marked in {listed(sorted(whole))}: not compared.")
        for reading in (self.before, self.after):
            notes += [f"{reading.trace.name}: {note}" for part in reading.parts for note in part.steps.notes]
        return Card(
            sentence=self._sentence(),
            table=self._table(),
            warning=" ".join(warning),
            notes=tuple(notes),
            provenance=f"From {self.before.trace.name} to {self.after.trace.name}. {self.before.parts[0].steps.basis}.",
        )

    def _sentence(self) -> list[str | Toned]:
        if not self.pairs:
            return [Toned("The two cannot be compared"), ": no steps of one run what steps of the other run."]
        steps = [of_kind[0] for of_kind in self.changes]
        inner = [change for of_kind in self.changes for change in of_kind[1:] if change.carried]
        inner.sort(key=lambda change: -abs(change.by))
        a_step, start = "A step", ""
        if self.times != 1:
            larger, times = self.times > 1, f"{max(self.times, 1 / self.times):.3g} times"
            start = (
                f"A batch of the {'second' if larger else 'first'} trace holds {times} as much data, so the second's "
            )
            start += f"times are {'divided' if larger else 'multiplied'} by {times.split()[0]}. "
            a_step = "For as much data, a step"
        steps.sort(key=lambda change: -abs(change.by))
        lasts = listed([_step_words(change, len(steps) > 1) for change in steps[:_TOLD]])
        if not inner and not any(change.carried for change in steps):
            return [start, Toned("No difference that the steps carry"), f". {a_step}'s length changed by {lasts}."]
        if not inner:
            return [start, Toned(f"{a_step}'s length"), f" changed by {lasts}."]
        first, *others = inner
        also = [f"{change.what}, {_signed(change.by)} in {change.kind}" for change in others[: _TOLD - 1]]
        more = f". Also {listed(also)}" if also else ""
        words = f": {_signed(first.by)} in {first.kind}{more}. {a_step}'s length changed by {lasts}."
        return [start, "The largest change that the steps carry is ", Toned(first.what), words]

    def _table(self) -> Grid | None:
        rows = []
        for lasts, *rest in self.changes:
            shown = [
                change for change in rest if change.carried or max(*change.before, *change.after) >= _SHOWN * lasts.step
            ]
            shown.sort(key=lambda change: (-change.carried, -abs(change.by)))
            for change in [lasts, *shown[:_MOST_ROWS]]:
                name = f"{change.kind}, in all" if change is lasts else f"· {change.what}"
                means = [format_seconds(statistics.fmean(side) / 1e6) for side in (change.before, change.after)]
                low, high = map(_signed, change.interval or (0.0, 0.0))
                by = _signed(change.by) + (f" ({low} to {high})" if change.interval else "")
                rows.append((name, *means, by, "yes" if change.carried else "no"))
        scaled = f" ÷ {self.times:.3g}" if self.times > 1 else f" × {1 / self.times:.3g}" if self.times < 1 else ""
        heads = ("", "before", f"after{scaled}", "change", "told apart")
        cells = [
            TableColumn(head, each, numeric=bool(head))
            for head, each in zip(heads, zip(*rows, strict=True), strict=False)
        ]
        return Grid("", tuple(cells)) if rows else None

    def _named(self) -> list[str]:
        """The operators or kernels that changed most, where it is their time that differs."""
        what = "operators" if self.before.cpu else "kernels that compute"
        places = (on_cpu.OPERATORS, on_cpu.ELSEWHERE) if self.before.cpu else (on_gpu.COMPUTE,)
        notes = []
        for (before, after), of_kind in zip(self.pairs, self.changes, strict=True):
            if not any(change.carried and change.what in places for change in of_kind):
                continue
            old, new = (on_gpu.by_name(column.shares, places[0]) for column in (before, after))
            none = (0, 0.0)
            by = {name: new.get(name, none)[1] / self.times - old.get(name, none)[1] for name in old | new}
            most = sorted(by, key=lambda name: (-abs(by[name]), name))[:_NOTED]
            if told := [f"{name} {_signed(by[name])}" for name in most if abs(by[name]) >= _MATTERS * of_kind[0].step]:
                notes.append(
                    f"Of the {what} in {before.name}, these changed most, a step on average: {', '.join(told)}. "
                    "None was tested by itself."
                )
        return notes


def _matched(before: Sequence[Column], after: Sequence[Column]) -> tuple[list[tuple[Column, Column]], list[str]]:
    """Kinds of steps of the two that run most alike; and those that are left."""
    if len(before) == len(after) == 1:
        return [(before[0], after[0])], []
    several = len({column.device for column in (*before, *after)}) > 2
    near = sorted(  # kinds may run the same on more or less data, and so for longer
        (difference(a.kind.steps[0].ran, b.kind.steps[0].ran), abs(math.log(b.each / a.each)), i, j)
        for i, a in enumerate(before)
        for j, b in enumerate(after)
        if a.device == b.device or several
    )
    found: dict[int, int] = {}
    for far, _, i, j in near:
        if far < 0.5 and i not in found and j not in found.values():
            found[i] = j
    alone = [column.name for i, column in enumerate(before) if i not in found]
    alone += [column.name for j, column in enumerate(after) if j not in found.values()]
    return [(before[i], after[j]) for i, j in sorted(found.items())], alone


def _step_words(change: Change, several: bool) -> str:
    kind = f" in {change.kind}" if several else ""
    unsure = "" if change.carried else ", not told apart"
    share = format_percent(abs(change.by) / change.step)
    return f"{_signed(change.by)}{kind} ({'−' if change.by < 0 else '+'}{share}{unsure})"


def _signed(us: float) -> str:
    return ("+" if us > 0 else "−" if us < 0 else "±") + format_seconds(abs(us) / 1e6)
