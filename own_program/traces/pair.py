"""Two traces of one program: what differs, step by step, and how much of it the steps can carry."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from course_utils.show.advice import Advice
from course_utils.show.cards import Card, Shown, Toned
from course_utils.show.formats import format_percent, format_seconds, listed
from course_utils.show.tables import Column as TableColumn
from course_utils.show.tables import Grid, Sheet
from own_program.traces import cpu as on_cpu
from own_program.traces import shares as on_gpu
from own_program.traces.columns import Amount, Column, Reading
from own_program.traces.events import PYTHON, TraceError
from own_program.traces.steps import difference

LASTS = "a step in all"
_ENOUGH = 6  # steps of a kind, from which on an interval is worked out
# Below that, two ranges are told apart if they lie so many times their own width from each other. Of two sets of as
# many normal numbers that do not differ, under one in a hundred does.
_APART = {2: 8.0, 3: 2.0, 4: 1.0, 5: 0.5}
_MATTERS = 0.002  # of a step: what changed by less is no difference worth naming
_SHOWN = 0.0005
_RISK = 0.05
_MOST_NAMES, _MOST_ROWS, _NOTED = 12, 6, 3


@dataclass
class Change:
    """One thing in steps of one kind, before and after, in microseconds a step.

    Attributes:
        what: a place of a step's time, what is told beside, or `LASTS`.
        kind: the steps, in words.
        before: step by step.
        after: step by step.
        interval: of the difference of the means, where there are steps enough.
        step: how long a step took before.
    """

    what: str
    kind: str
    before: list[float]
    after: list[float]
    interval: tuple[float, float] | None
    step: float

    @property
    def by(self) -> float:
        """The difference of the means."""
        return statistics.fmean(self.after) - statistics.fmean(self.before)

    @property
    def clearness(self) -> float:
        """How far the two lie apart, in units of what they must to be told apart."""
        if self.interval is not None:
            low, high = self.interval
            half = (high - low) / 2
            return abs(self.by) / half if half else float("inf") if self.by else 0.0
        fewest = min(len(self.before), len(self.after))
        if fewest not in _APART:
            return 0.0
        apart = max(min(self.after) - max(self.before), min(self.before) - max(self.after))
        width = max(max(each) - min(each) for each in (self.before, self.after))
        return apart / max(_APART[fewest] * width, 0.01)  # clocks count no finer

    @property
    def carried(self) -> bool:
        """Whether the steps tell the two apart, and by an amount that matters."""
        return self.clearness > 1 and abs(self.by) >= _MATTERS * self.step


def changes_of(before: Column, after: Column, places: Sequence[str]) -> list[Change]:
    """Everything that can differ between steps of one kind, the step itself first."""
    amounts: list[tuple[str, Amount]] = [(LASTS, lambda shares: shares.lasts)]
    amounts += [(place, lambda shares, place=place: shares.get(place)) for place in places]
    step = before.mean(lambda shares: shares.lasts)
    found = []
    for what, amount in amounts:
        sides = [[amount(each) for each in column.shares] for column in (before, after)]
        if any(map(any, sides)):
            found.append(Change(what, before.name, *sides, None, step))
    if min(len(before.shares), len(after.shares)) >= _ENOUGH:
        for change in found:
            change.interval = _interval(change.before, change.after, _RISK / len(found))
    return found


def _interval(before: Sequence[float], after: Sequence[float], risk: float) -> tuple[float, float]:
    """Welch's interval of a difference of means: B. L. Welch, Biometrika 34 (1947), https://doi.org/10.2307/2332510."""
    by = statistics.fmean(after) - statistics.fmean(before)
    parts = [statistics.variance(each) / len(each) for each in (before, after)]
    if not sum(parts):
        return by, by
    freedom = sum(parts) ** 2 / sum(p**2 / (len(e) - 1) for p, e in zip(parts, (before, after), strict=True))
    half = _student(1 - risk / 2, freedom) * sum(parts) ** 0.5
    return by - half, by + half


def _student(level: float, freedom: float) -> float:
    """A quantile of Student's distribution, by its expansion around the normal one's.

    Source: M. Abramowitz and I. A. Stegun, Handbook of Mathematical Functions (1964), 26.7.5.
    """
    z = statistics.NormalDist().inv_cdf(level)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


class TracePair(Shown):
    """What differs between two traces of one program.

    Attributes:
        changes: everything that was compared, by kind of step.
        plan: always empty: a difference is no advice. Read one trace alone for its plan.

    Raises:
        TraceError: if they cannot be compared: one is of a GPU and the other is not, or one marks no steps.
    """

    plan: tuple[Advice, ...] = ()

    def __init__(self, before: Reading, after: Reading) -> None:
        if bool(before.devices) != bool(after.devices):
            without = (after if before.devices else before).trace
            mend = "; it ends in the middle, so copy or export it again" if without.cut else ""
            raise TraceError(
                f"The two cannot be compared: {without.name} holds no work of a GPU, and the other does{mend}."
            )
        if unmarked := [each for each in (before, after) if all(column.whole for column in each.columns)]:
            raise TraceError(_without_steps(before, unmarked))
        self.before, self.after = before, after
        places = on_cpu.CPU_PLACES if before.cpu else (*on_gpu.PLACES, on_gpu.HIDDEN)
        marked = [[column for column in each.columns if not column.whole] for each in (before, after)]
        self.pairs, self._alone = _matched(*marked)
        self.changes = [changes_of(*pair, places) for pair in self.pairs]

    def card(self) -> Card:
        """What differs most clearly, and everything that was compared."""
        steps = [min(len(a.shares), len(b.shares)) for a, b in self.pairs]
        few = [count for count in steps if count < _ENOUGH]
        warning = [*self.before.trace.flaws, *self.after.trace.flaws]
        if few:
            counts = sorted(set(few))
            words = listed([f"{count} step{'s' * (count > 1)}" for count in counts])
            each = " each" if len(few) > 1 and len(counts) == 1 else ""
            warning.append(
                f"No interval claimed: {words}{each} of a kind, where {_ENOUGH} are needed; in brackets is from where "
                "to where the steps went, if three digits show it. How much faster the program became, so few steps "
                f"cannot say. {_how_far(counts)}"
            )
        if (stacks := bool(self.before.trace.events[PYTHON])) != bool(self.after.trace.events[PYTHON]):
            which = "first" if stacks else "second"
            warning.append(f"Only the {which} was recorded with stacks, which make Python slower: record both alike.")
        notes = self._named()
        if len(few) < len(steps):
            notes.append(
                "In brackets is an interval of the difference, 95% for all lines of a kind together, as if steps were "
                "independent. It speaks of these two recordings; another run may differ more. Told apart is what "
                f"changed by {format_percent(_MATTERS)} of a step and more, with an interval that leaves out zero."
            )
        if self._alone:
            notes.append(f"Nothing in the other trace runs as {listed(self._alone)} does: not compared.")
        if whole := {column.name for each in (self.before, self.after) for column in each.columns if column.whole}:
            notes.append(f"No step is marked in {listed(sorted(whole))}: not compared.")
        notes += [
            f"{reading.trace.name}: {note}"
            for reading in (self.before, self.after)
            for part in reading.parts
            for note in part.steps.notes
        ]
        return Card(
            sentence=self._sentence(),
            table=self._table(),
            warning=" ".join(warning),
            notes=tuple(notes),
            provenance=f"From {self.before.trace.name} to {self.after.trace.name}. {self.before.parts[0].steps.basis}.",
            numbers=self._numbers(),
        )

    def _sentence(self) -> list[str | Toned]:
        if not self.pairs:
            return [Toned("The two cannot be compared"), ": no steps of one run what steps of the other run."]
        every = [change for of_kind in self.changes for change in of_kind]
        # What a step's time went to says more than that it changed; the step itself is told after it.
        inner = [change for change in every if change.carried and change.what != LASTS]
        whole = [change for change in every if change.carried and change.what == LASTS]
        if not inner and not whole:
            lasts = "; ".join(f"{_signed(c.by)} in {c.kind}" for c in every if c.what == LASTS)
            return [Toned("No difference that the steps carry"), f": a step's length changed by {lasts}."]
        first = max(inner or whole, key=lambda change: change.clearness)
        same = [change for change in every if change.what == first.what and change is not first]
        also = [
            f"{_signed(change.by)} in {change.kind}{'' if change.carried else ' (not told apart)'}" for change in same
        ]
        name = "the step itself" if first.what == LASTS else first.what
        words = f": {_signed(first.by)} in {first.kind}{', ' if also else ''}{', '.join(also)}."
        others = sorted((c for c in inner if c.what != first.what), key=lambda c: -abs(c.by))[:2]
        more = ""
        if others:
            more = " Also " + listed([f"{c.what}, {_signed(c.by)} in {c.kind}" for c in others]) + "."
        if whole and first.what != LASTS:
            lasts = listed([f"{_signed(c.by)} ({_signed_share(c.by / c.step)}) in {c.kind}" for c in whole])
            more += f" A step's length: {lasts}."
        if larger := [c for c in every if c.what == LASTS and not c.carried and abs(c.by) > abs(first.by)]:
            lasts = listed([f"{_signed(c.by)} in {c.kind}" for c in larger])
            more += f" A step's length changed by more, {lasts}, which is not told apart."
        return ["What differs most clearly is ", Toned(name), words + more]

    def _table(self) -> Grid | None:
        names, before, after, by, carried = [], [], [], [], []
        for of_kind in self.changes:
            lasts, *rest = of_kind
            shown = [c for c in rest if c.carried or max(*c.before, *c.after) >= _SHOWN * c.step]
            shown.sort(key=lambda change: (-change.carried, -abs(change.by)))
            for change in [lasts, *shown[:_MOST_ROWS]]:
                names.append(f"{change.kind}, in all" if change is lasts else f"· {change.what}")
                before.append(_mean(change.before, change.interval))
                after.append(_mean(change.after, change.interval))
                interval = change.interval
                ends = f" ({_signed(interval[0])} to {_signed(interval[1])})" if interval else ""
                by.append(_signed(change.by) + ends)
                carried.append("yes" if change.carried else "no")
        if not names:
            return None
        columns = (("before", before), ("after", after), ("change", by), ("told apart", carried))
        cells = [TableColumn(head, tuple(values)) for head, values in columns]
        return Grid("", (TableColumn("", tuple(names), numeric=False), *cells))

    def _named(self) -> list[str]:
        """The operators or kernels that changed most, where it is their time that differs."""
        what = "operators" if self.before.cpu else "kernels that compute"
        places = (on_cpu.OPERATORS, on_cpu.ELSEWHERE) if self.before.cpu else (on_gpu.COMPUTE,)
        notes = []
        for (before, after), of_kind in zip(self.pairs, self.changes, strict=True):
            if not any(change.carried and change.what in places for change in of_kind):
                continue
            names = _changed(before, after, places[0])[:_NOTED]
            least = _MATTERS * of_kind[0].step
            most = [f"{name} {_signed(new - old)}" for name, old, new in names if abs(new - old) >= least]
            if most:
                notes.append(
                    f"Of the {what} in {before.name}, these changed most, a step on average: {', '.join(most)}. "
                    "None was tested by itself."
                )
        return notes

    def _numbers(self) -> Sheet | None:
        grids = []
        for before, after in self.pairs:
            ranked = _changed(before, after)[:_MOST_NAMES]
            if not ranked:
                continue
            grids.append(
                Grid(
                    f"What changed most by name in {before.name}, a step on average",
                    (
                        TableColumn("", tuple(name for name, _, _ in ranked), numeric=False),
                        TableColumn("before", tuple(format_seconds(old / 1e6) for _, old, _ in ranked)),
                        TableColumn("after", tuple(format_seconds(new / 1e6) for _, _, new in ranked)),
                        TableColumn("change", tuple(_signed(new - old) for _, old, new in ranked)),
                    ),
                )
            )
        return Sheet(tuple(grids)) if grids else None


def _without_steps(before: Reading, unmarked: Sequence[Reading]) -> str:
    """Why recordings without steps are not compared: nothing says that they hold as much work."""
    if len(unmarked) == 2:
        which = "neither of them marks its steps"
    else:
        which = f"the {'first' if unmarked[0] is before else 'second'}, {unmarked[0].trace.name}, marks no steps"
    mend = "record with the profiler's step() after each training step"
    if any(each.trace.cut for each in unmarked):
        mend = "it ends in the middle, so copy or export it again"
    return f"The two cannot be compared: {which}; {mend}."


def _how_far(counts: Sequence[int]) -> str:
    """What so few steps must do to be told apart."""
    far = [f"{_APART[count]:g} times (with {count} steps)" for count in counts if count in _APART]
    if not far:
        return "One step tells nothing apart."
    return (
        f"Told apart is a change of {format_percent(_MATTERS)} of a step and more, where before and after lie over "
        f"{listed(far)} the wider bracket from each other: by chance, under one line in a hundred does."
    )


def _changed(before: Column, after: Column, *places: str) -> list[tuple[str, float, float]]:
    """Names with their microseconds a step, before and after; what changed most comes first."""
    old, new = (on_gpu.by_name(column.shares, *places) for column in (before, after))
    found = [(name, old.get(name, (0, 0.0))[1], new.get(name, (0, 0.0))[1]) for name in old.keys() | new.keys()]
    return sorted(found, key=lambda each: (-abs(each[2] - each[1]), each[0]))


def _matched(before: Sequence[Column], after: Sequence[Column]) -> tuple[list[tuple[Column, Column]], list[str]]:
    """Kinds of steps of the two that run most alike; and those that are left."""
    if len(before) == len(after) == 1:
        return [(before[0], after[0])], []
    near = sorted(
        (difference(a.kind.steps[0].ran, b.kind.steps[0].ran), _ratio(a, b), i, j)
        for i, a in enumerate(before)
        for j, b in enumerate(after)
        if before[i].device == after[j].device or len({c.device for c in (*before, *after)}) > 2
    )
    found: dict[int, int] = {}
    for far, _, i, j in near:
        if far < 0.5 and i not in found and j not in found.values():
            found[i] = j
    alone = [column.name for i, column in enumerate(before) if i not in found]
    alone += [column.name for j, column in enumerate(after) if j not in found.values()]
    return [(before[i], after[j]) for i, j in sorted(found.items())], alone


def _ratio(some: Column, other: Column) -> float:
    """How many times as long as the other the longer one lasts: kinds may run the same on more or less data."""
    lasts = [column.mean(lambda shares: shares.lasts) for column in (some, other)]
    return max(lasts) / min(lasts)


def _mean(values: Sequence[float], interval: object) -> str:
    mean = format_seconds(statistics.fmean(values) / 1e6)
    low, high = (format_seconds(each / 1e6) for each in (min(values), max(values)))
    return mean if interval is not None or low == high else f"{mean} ({low} to {high})"


def _signed(us: float) -> str:
    return ("+" if us > 0 else "−" if us < 0 else "±") + format_seconds(abs(us) / 1e6)


def _signed_share(share: float) -> str:
    return ("+" if share > 0 else "−") + format_percent(abs(share))
