"""What changed between two sets of records: two machines, or two dates.

Ratios and times are compared, which have 99% intervals. One has changed if both intervals are apart, and by more than
either run's A/A control, as verdicts are. Both cover the noise within a run; what differs from one run to the next
(neighbours, where memory lies) shows when one machine is recorded twice.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from course_utils.results import paired, store
from course_utils.results.paired import Verdict
from course_utils.results.result import Fact, Result
from course_utils.results.store import LessonRecord, RecordError
from course_utils.show.formats import format_times, listed

ANOTHER_VERDICT, MOVED = "another verdict", "moved beyond noise"
_OWN, _REFERENCE = "own", "reference"
_WHERE = {_OWN: "your own records", _REFERENCE: "the reference records"}


class RecordChangesError(ValueError):
    """There is nothing to compare. The message says what to name instead."""


@dataclass(frozen=True)
class RecordSet:
    """The records of one side, by lesson: what it was asked for as, where they were found, what could not be read."""

    name: str
    where: str
    records: Mapping[str, LessonRecord]
    problems: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The side in words, with machine and software of its newest record."""
        newest = max(self.records.values(), key=lambda record: record.recorded_at)
        count = f"{len(self.records)} lesson{'s' * (len(self.records) != 1)}"
        return f"{self.name} ({self.where}, {count}), {newest.environment.caption}"


@dataclass(frozen=True)
class Pair:
    """A ratio or a time on both sides: ``ANOTHER_VERDICT``, ``MOVED``, or "" where nothing changed beyond noise."""

    experiment: str
    a: Fact
    b: Fact
    change: str


@dataclass(frozen=True)
class Changes:
    """What two sides say of what both have, and what a reader must know of the rest."""

    a: RecordSet
    b: RecordSet
    pairs: tuple[Pair, ...]
    remarks: tuple[str, ...]


# Finding records


def read_records(name: str) -> RecordSet:
    """Find the records that a name stands for; what cannot be read is left out, and named among the problems.

    Args:
        name: a machine, or the beginning of its name, ``own:MACHINE`` or ``reference:MACHINE`` where both have one, or
            a machine's folder of records.

    Raises:
        RecordChangesError: if there are none.
    """
    if Path(name).is_dir():
        return _read(name, "a folder", Path(name))
    roots = {_OWN: store.results_root(), _REFERENCE: store.reference_root()}
    whose, _, machine = name.rpartition(":")
    asked, machine = ({whose: roots[whose]}, machine) if whose in roots else (roots, name)
    known = {whose: store.machines(root) for whose, root in asked.items()}
    try:
        machine = store.machine_named(machine, sorted({each for own in known.values() for each in own}))
    except RecordError as error:
        raise RecordChangesError(f"{error} Nor is there a folder {name!r}.") from error
    holding = [whose for whose, own in known.items() if machine in own]
    if len(holding) > 1:
        raise RecordChangesError(
            f"there are records of your own and reference records of {machine!r}: "
            f"say {_OWN}:{machine} or {_REFERENCE}:{machine}"
        )
    return _read(name, _WHERE[holding[0]], roots[holding[0]] / machine)


def _read(name: str, where: str, folder: Path) -> RecordSet:
    records, problems = {}, []
    for file in sorted(folder.glob("[!.]*.json")):
        try:
            record = store.load_lesson(file)
            for experiment in record.experiments:
                record.result(experiment)
        except RecordError as error:
            problems.append(str(error))
        else:
            records[record.lesson] = record
    if not records:
        raise RecordChangesError(problems[0] if problems else f"there are no records in {name}")
    return RecordSet(name, where, records, tuple(problems))


# Comparing


def compare_records(a: RecordSet, b: RecordSet) -> Changes:
    """Set two sides against each other: every ratio, and every time that was taken at the same problem sizes.

    Raises:
        RecordChangesError: if both sides are the very same records.
    """
    if a.records == b.records:
        raise RecordChangesError(f"{a.name} and {b.name} are the very same records: there is nothing to compare")
    own = {"A": {*a.records} - {*b.records}, "B": {*b.records} - {*a.records}}
    found: dict[str, list[str]] = {f"Only in {side}": sorted(lessons) for side, lessons in own.items()}
    pairs: list[Pair] = []
    for lesson in sorted({*a.records} & {*b.records}):
        here, there = a.records[lesson], b.records[lesson]
        if here == there:
            found.setdefault("The same run on both sides", []).append(lesson)
            continue
        found["Only in A"] += sorted({*here.experiments} - {*there.experiments})
        found["Only in B"] += sorted({*there.experiments} - {*here.experiments})
        if here.environment.size != there.environment.size:
            found.setdefault("At other problem sizes, so that only ratios are compared", []).append(lesson)
        for name in (name for name in here.experiments if name in there.experiments):
            if not store.alike(one := here.result(name), other := there.result(name)):
                found.setdefault("With other parameters, and not compared", []).append(name)
                continue
            if here.experiments[name].code_hash != there.experiments[name].code_hash:
                found.setdefault("By other code", []).append(name)
            pairs += _pairs(name, one, other)
    remarks = (f"{what}: {listed(names)}." for what, names in found.items() if names)
    return Changes(a, b, tuple(pairs), (*a.problems, *b.problems, *remarks))


def _pairs(name: str, one: Result, other: Result) -> Iterator[Pair]:
    facts = {fact.label: fact for fact in other.facts()}
    same_sizes = one.environment.size == other.environment.size
    for a in one.facts():
        b = facts.get(a.label)
        if b and _has_interval(a) and _has_interval(b) and (same_sizes or a.verdict):
            yield Pair(name, a, b, _change(a, b))


def _has_interval(fact: Fact) -> bool:
    return bool(fact.interval and fact.number) and fact.interval.bounded and fact.interval.low > 0


def _change(a: Fact, b: Fact) -> str:
    low, high = sorted((a.interval, b.interval), key=lambda interval: interval.low)
    if low.meets(high.low, high.high) or high.low / low.high <= max(a.floor, b.floor):
        return ""
    if a.verdict != b.verdict and Verdict.UNCLEAR not in (a.verdict, b.verdict):
        return ANOTHER_VERDICT
    return MOVED if abs(math.log(b.number / a.number)) > math.log1p(a.practical) else ""


def changes_text(changes: Changes, width: int = 110) -> str:
    """What changed, what matters most first, and how much of it may be chance."""
    pairs = changes.pairs
    lines = [f"A: {changes.a.words}", f"B: {changes.b.words}", "", *changes.remarks]
    for kind in (ANOTHER_VERDICT, MOVED):
        changed = [pair for pair in pairs if pair.change == kind]
        lines += ["", kind] if changed else []
        for pair in changed:
            factor = f" (B: {format_times(pair.b.number / pair.a.number)})" if kind == MOVED else ""
            lines += [
                f"  {pair.experiment}, {pair.a.label}{factor}",
                f"    A  {pair.a.words}",
                f"    B  {pair.b.words}",
            ]
    if pairs:
        counts = [f"{sum(pair.change == kind for pair in pairs)} {kind}" for kind in (ANOTHER_VERDICT, MOVED)]
        # Two intervals of one truth are only apart if one of them misses it, and each does in 1% of the cases.
        by_chance = 2 * (1 - paired.DECISION_CONFIDENCE) * len(pairs)
        lines += [
            "",
            f"Had nothing changed, chance would take apart on average at most {by_chance:.2g} of the pairs. Runs of "
            "one machine differ by more: record it twice and compare those, before you make much of a small move.",
            f"{len(pairs)} pair{'s' * (len(pairs) != 1)} of 99% intervals compared: {', '.join(counts)}.",
        ]
    else:
        lines += ["There is nothing to compare."]
    return "\n".join(_wrapped(line, width) for line in lines)


def _wrapped(line: str, width: int) -> str:
    """A line, broken under its own indent where it is too long."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False)
