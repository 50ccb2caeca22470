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

from course_utils.commands import CommandError
from course_utils.results import paired, store
from course_utils.results.paired import Verdict
from course_utils.results.result import Fact, Result
from course_utils.results.store import LessonRecord
from course_utils.show.formats import format_times, listed

ANOTHER_VERDICT, MOVED = "another verdict", "moved beyond noise"


@dataclass(frozen=True)
class RecordSet:
    """The records of one side by lesson, and what it was asked for as."""

    name: str
    records: Mapping[str, LessonRecord]

    @property
    def words(self) -> str:
        """The side in words, with machine and software of its newest record."""
        newest = max(self.records.values(), key=lambda record: record.recorded_at)
        return f"{self.name} (lessons: {len(self.records)}), {newest.environment.caption}"


@dataclass(frozen=True)
class Pair:
    """A ratio or a time on both sides: ``ANOTHER_VERDICT``, ``MOVED``, or "" where nothing changed beyond noise."""

    experiment: str
    a: Fact
    b: Fact
    change: str


@dataclass(frozen=True)
class RecordChanges:
    """What two sides say of what both have, and what a reader must know of the rest."""

    a: RecordSet
    b: RecordSet
    pairs: tuple[Pair, ...]
    remarks: tuple[str, ...]

    def in_words(self, width: int = 110) -> str:
        """What changed, what matters most first, and how much of it may be chance."""
        lines = [f"A: {self.a.words}", f"B: {self.b.words}", "", *self.remarks]
        counts = []
        for kind in (ANOTHER_VERDICT, MOVED):
            changed = [pair for pair in self.pairs if pair.change == kind]
            counts.append(f"{len(changed)} {kind}")
            lines += ["", kind] if changed else []
            for pair in changed:
                factor = f" (B: {format_times(pair.b.number / pair.a.number)})" if kind == MOVED else ""
                lines += [f"  {pair.experiment}, {pair.a.label}{factor}"]
                lines += [f"    A  {pair.a.words}", f"    B  {pair.b.words}"]
        # Two intervals of one truth are only apart if one of them misses it, and each does in 1% of the cases.
        by_chance = 2 * (1 - paired.DECISION_CONFIDENCE) * len(self.pairs)
        lines += [
            "",
            f"Pairs of 99% intervals that were compared: {len(self.pairs)}; {', '.join(counts)}. Had nothing changed, "
            f"chance would take apart on average at most {by_chance:.2g} of them. Runs of one machine differ by more: "
            "record it twice and compare those, before you make much of a small move.",
        ]
        return "\n".join(_wrapped(line, width) for line in lines)


def _wrapped(line: str, width: int) -> str:
    """A line, broken under its own indent where it is too long."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False)


def read_records(name: str) -> RecordSet:
    """Find the records that a name stands for.

    Args:
        name: a machine, or the beginning of its name, ``own:MACHINE`` or ``reference:MACHINE`` where both have one, or
            a machine's folder of records.

    Raises:
        CommandError: if there are none. The message says what to name instead.
        RecordError: if there is no such machine, or a record is damaged.
    """
    folder = Path(name) if Path(name).is_dir() else _folder_of(name)
    records = {file.stem: store.load_lesson(file) for file in sorted(folder.glob("[!.]*.json"))}
    if not records:
        raise CommandError(f"there are no records in {name}")
    return RecordSet(name, records)


def _folder_of(name: str) -> Path:
    """Where a machine's records are: the reader's own, or the course's."""
    roots = {"own": store.results_root(), "reference": store.reference_root()}
    whose, _, machine = name.rpartition(":")
    if whose in roots:
        roots = {whose: roots[whose]}
    known = {machine for root in roots.values() for machine in store.machines(root)}
    machine = store.machine_named(machine, sorted(known))
    folders = [root / machine for root in roots.values() if machine in store.machines(root)]
    if len(folders) > 1:
        raise CommandError(
            f"there are records of your own and reference records of {machine!r}: "
            f"say own:{machine} or reference:{machine}"
        )
    return folders[0]


def compare_records(a: RecordSet, b: RecordSet) -> RecordChanges:
    """Set two sides against each other: every ratio, and every time that was taken at the same problem sizes.

    Raises:
        CommandError: if both sides are the very same records.
    """
    if a.records == b.records:
        raise CommandError(f"{a.name} and {b.name} are the very same records: there is nothing to compare")
    experiments_a, experiments_b = ({n: r for r in side.records.values() for n in r.experiments} for side in (a, b))
    found: dict[str, list[str]] = {
        "Only in A": sorted({*experiments_a} - {*experiments_b}),
        "Only in B": sorted({*experiments_b} - {*experiments_a}),
    }
    pairs: list[Pair] = []
    for name in sorted({*experiments_a} & {*experiments_b}):
        here, there = experiments_a[name], experiments_b[name]
        one, other = here.result(name), there.result(name)
        if here == there:
            found.setdefault("The same run on both sides", []).append(name)
        elif not store.alike(one, other):
            found.setdefault("With other parameters, and not compared", []).append(name)
        else:
            if here.environment.size != there.environment.size:
                found.setdefault("At other problem sizes, so that only ratios are compared", []).append(name)
            if here.experiments[name].code_hash != there.experiments[name].code_hash:
                found.setdefault("By other code", []).append(name)
            pairs += _pairs(name, one, other)
    remarks = tuple(f"{what}: {listed(names)}." for what, names in found.items() if names)
    return RecordChanges(a, b, tuple(pairs), remarks)


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
