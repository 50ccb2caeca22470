"""What changed between two sets of records: two machines, or two dates.

A verdict that differs is only a change if the 99% intervals of both ratios are apart, and by more than either run's A/A
control, as verdicts are. Both cover the noise within a run; what differs from one run to the next (neighbours, where
memory lies) shows when one machine is recorded twice.
"""

from __future__ import annotations

import io
import math
import subprocess
import tarfile
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from course_utils.records import paired, store
from course_utils.records.kinds.environment import Environment
from course_utils.records.lessons import LessonError, PlannedLessonError, find_lesson
from course_utils.records.paired import Verdict
from course_utils.records.result import Fact
from course_utils.records.store import LessonRecord, RecordError
from course_utils.show.formats import format_percent, format_times

# Relative difference up to which numbers without an interval count as alike. Errors by rounding are read by their
# order of magnitude: half or double says nothing.
TOLERANCE, _ERROR_TOLERANCE = 0.05, 0.5
_OWN, _REFERENCE = "own", "reference"
_WHERE = {_OWN: "your own records", _REFERENCE: "the reference records"}


class RecordChangesError(ValueError):
    """There is nothing to compare. The message says what to name instead."""


class Kind(StrEnum):
    """What became of one row, in the order in which people want to know it."""

    CHANGED = "changed, beyond noise"
    MOVED = "moved"
    WITHIN_NOISE = "changed, within noise"
    UNCLEAR = "unclear on one side"
    DIFFERS = "differs"
    ONE_SIDE = "on one side only"
    NOT_COMPARABLE = "not comparable"
    SAME = "the same"


@dataclass(frozen=True)
class RecordSet:
    """The records of one side, by lesson: what it was asked for as, where they were found, what could not be read."""

    name: str
    where: str
    records: Mapping[str, LessonRecord]
    problems: tuple[str, ...] = ()

    @property
    def environment(self) -> Environment:
        """Machine and software of the newest record."""
        return max(self.records.values(), key=lambda record: record.recorded_at).environment


@dataclass(frozen=True)
class Change:
    """One row on both sides; the note says why it cannot be compared, or by how much it moved."""

    experiment: str
    row: str
    kind: Kind
    a: Fact | None = None
    b: Fact | None = None
    note: str = ""


def _has_interval(fact: Fact | None) -> bool:
    interval = fact and fact.interval
    return bool(interval) and interval.bounded and interval.low > 0


@dataclass(frozen=True)
class Changes:
    """All that two sides say: every row, lessons whose run is the very same, and what a reader must know of others."""

    a: RecordSet
    b: RecordSet
    changes: tuple[Change, ...]
    same_runs: tuple[str, ...]
    notices: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Rows by what became of them, what matters most first."""
        counts = Counter(change.kind for change in self.changes)
        return {str(kind): counts[kind] for kind in Kind if counts[kind]}

    @property
    def only(self) -> dict[str, list[str]]:
        """The lessons that only ``A`` or only ``B`` has."""
        a, b = set(self.a.records), set(self.b.records)
        return {"A": sorted(a - b), "B": sorted(b - a)}

    @property
    def intervals_compared(self) -> int:
        """Pairs of 99% intervals that were set against each other."""
        compared = [change for change in self.changes if change.kind is not Kind.NOT_COMPARABLE]
        return sum(_has_interval(change.a) and _has_interval(change.b) for change in compared)

    @property
    def apart_by_chance(self) -> float:
        """How many of those pairs chance alone takes apart on average, at most, if nothing had changed.

        Two intervals of one truth are only apart if one of them misses it, and each does in 1% of the cases.
        """
        return 2 * (1 - paired.DECISION_CONFIDENCE) * self.intervals_compared


# Finding records


def read_records(name: str) -> RecordSet:
    """Find the records that a name stands for; what cannot be read is left out, and named among the problems.

    Args:
        name: a machine, or the beginning of its name, ``own:MACHINE`` or ``reference:MACHINE`` where both have one,
            ``REV:MACHINE`` for the reference records in a commit of git, a folder, or a record's file.

    Raises:
        RecordChangesError: if there are none.
    """
    path = Path(name)
    if path.exists():
        return _read(name, "a folder" if path.is_dir() else "a file", path)
    before, colon, machine = name.rpartition(":")
    if colon and before not in _WHERE:
        return _read_commit(name, before, machine)
    roots = {_OWN: store.results_root(), _REFERENCE: store.reference_root()}
    asked = {before: roots[before]} if colon else roots
    known = {whose: store.machines(root) for whose, root in asked.items()}
    try:
        machine = store.machine_named(machine, sorted({each for own in known.values() for each in own}))
    except RecordError as error:
        raise RecordChangesError(_of_a_lesson(name) or f"{error} Nor is there a folder or a file {name!r}.") from error
    holding = [whose for whose, own in known.items() if machine in own]
    if len(holding) > 1:
        raise RecordChangesError(
            f"there are records of your own and reference records of {machine!r}: "
            f"say {_OWN}:{machine} or {_REFERENCE}:{machine}"
        )
    return _read(name, _WHERE[holding[0]], roots[holding[0]] / machine)


def _of_a_lesson(name: str) -> str:
    """What to say of a lesson's name, which is no machine's; empty if no lesson has it either."""
    try:
        return f"{find_lesson(name).name} is a lesson: name two machines, and what both recorded is compared"
    except PlannedLessonError as error:
        return str(error)
    except LessonError:
        return ""


def _read(name: str, where: str, place: Path) -> RecordSet:
    records, problems = {}, []
    files = sorted([*place.glob("[!.]*.json"), *place.glob("*/[!.]*.json")]) if place.is_dir() else [place]
    for file in files:
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
    if len({record.environment.machine for record in records.values()}) > 1:
        raise RecordChangesError(f"{name} holds records of several machines: name the folder of one")
    return RecordSet(name, where, records, tuple(problems))


def _read_commit(name: str, commit: str, machine: str) -> RecordSet:
    command = ["git", "archive", "--format=tar", commit, "records"]
    try:
        packed = subprocess.run(command, cwd=store.package_root(), capture_output=True, check=True).stdout
    except OSError as error:
        raise RecordChangesError("REV:MACHINE needs git, and there is none: name a folder instead") from error
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.decode(errors="replace").strip() or "git failed").splitlines()[0]
        raise RecordChangesError(
            f"git cannot read that commit ({reason}): REV:MACHINE takes a commit, such as HEAD~3:amd-epyc-2-cores"
        ) from error
    with tempfile.TemporaryDirectory() as unpacked, tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(unpacked, filter="data")
        root = Path(unpacked, "records")
        try:
            machine = store.machine_named(machine, store.machines(root))
        except RecordError as error:
            raise RecordChangesError(f"in commit {commit} {error}") from error
        return _read(name, f"the reference records in commit {commit}", root / machine)


# Comparing


def compare_records(a: RecordSet, b: RecordSet) -> Changes:
    """Set two sides against each other: what became of every row of every experiment.

    Raises:
        RecordChangesError: if both sides are the very same records.
    """
    if a.records == b.records:
        raise RecordChangesError(f"{a.name} and {b.name} are the very same records: there is nothing to compare")
    changes: list[Change] = []
    same_runs, notices = [], []
    for lesson in sorted(set(a.records) & set(b.records)):
        here, there = a.records[lesson], b.records[lesson]
        if here == there:
            same_runs.append(lesson)
            continue
        if (sizes := _sizes(here)) != _sizes(there):
            notices.append(
                f"{lesson}: A ran {sizes}, B {_sizes(there)}. "
                "What differs may come from that; values without an interval are not compared."
            )
        changes += _lesson_changes(here, there)
    return Changes(a, b, tuple(changes), tuple(same_runs), tuple(notices))


def _sizes(record: LessonRecord) -> str:
    return f"{record.environment.size} sizes on {record.environment.device_kind}"


def _lesson_changes(here: LessonRecord, there: LessonRecord) -> Iterator[Change]:
    for name in dict.fromkeys([*here.experiments, *there.experiments]):
        before, after = here.experiments.get(name), there.experiments.get(name)
        if before is None or after is None:
            yield Change(name, "", Kind.ONE_SIDE, note="only in B" if before is None else "only in A")
            continue
        reason = ""
        if before.parameters_hash != after.parameters_hash:
            reason = "the experiment's parameters changed"
        elif before.code_hash != after.code_hash:
            reason = "the experiment's code changed"
        facts_a = {fact.label: fact for fact in here.result(name).facts()}
        facts_b = {fact.label: fact for fact in there.result(name).facts()}
        for label in dict.fromkeys([*facts_a, *facts_b]):
            a, b = facts_a.get(label), facts_b.get(label)
            kind, note = Kind.NOT_COMPARABLE, reason
            if not reason and a and b:
                kind, note = _compared(a, b, same_sizes=_sizes(here) == _sizes(there))
            elif not reason:
                kind = Kind.ONE_SIDE
            yield Change(name, label, kind, a, b, note)


def _compared(a: Fact, b: Fact, same_sizes: bool) -> tuple[Kind, str]:
    """What became of a row that both sides have, by the same code."""
    if not same_sizes and not a.verdict:
        return Kind.NOT_COMPARABLE, "other problem sizes"
    if a.interval and b.interval and a.number and b.number:
        return _timed_change(a, b)
    note = _curve_difference(a.points, b.points) if a.points and b.points else _difference(a, b)
    return Kind.DIFFERS if note else Kind.SAME, note


def _timed_change(a: Fact, b: Fact) -> tuple[Kind, str]:
    """What became of a ratio or of a time, and by how much it moved."""
    apart = False
    if _has_interval(a) and _has_interval(b):
        # By more than the A/A control of either side.
        low, high = sorted((a.interval, b.interval), key=lambda interval: interval.low)
        apart = not low.meets(high.low, high.high) and high.low / low.high > max(a.floor, b.floor)
    moved = f"B: {format_times(b.number / a.number)}" if apart else ""
    if a.verdict != b.verdict and Verdict.UNCLEAR in (a.verdict, b.verdict):
        return Kind.UNCLEAR, moved
    if a.verdict != b.verdict:
        return Kind.CHANGED if apart else Kind.WITHIN_NOISE, ""
    if apart and abs(math.log(b.number / a.number)) > math.log1p(a.practical):
        return Kind.MOVED, moved
    return Kind.SAME, ""


def _difference(a: Fact, b: Fact) -> str:
    """By how much two values without an interval differ, in words; empty if they are alike."""
    if a.number is None or b.number is None:
        return "" if a.value == b.value else "other words"
    allowed = _ERROR_TOLERANCE if a.unit == "relative" else TOLERANCE
    difference = _relative(a.number, b.number)
    return f"by {format_percent(difference)}" if difference > allowed else ""


def _relative(a: float, b: float) -> float:
    """How far two numbers are apart, relative to the larger one."""
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


def _curve_difference(a: Mapping[float, float | None], b: Mapping[float, float | None]) -> str:
    """Where two curves are furthest apart, in words; empty if they are alike."""
    if [x for x in a if a[x] is not None] != [x for x in b if b[x] is not None]:
        return "read off elsewhere, or finite elsewhere"
    differences = {x: _relative(a[x], b[x]) for x in a if a[x] is not None}
    worst = max(differences, key=differences.get, default=0.0)
    too_much = differences.get(worst, 0.0) > TOLERANCE
    return f"by {format_percent(differences[worst])} at {worst:g}" if too_much else ""


def changes_text(changes: Changes, *, everything: bool = False, width: int = 110) -> str:
    """What changed, what matters most first, and how much of it may be chance; all of it with ``everything``."""
    import jinja2

    text = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("changes.txt.j2")
    lines = text.render(
        changes=changes, counts=changes.counts, everything=everything, width=width, tolerance=format_percent(TOLERANCE)
    ).splitlines()
    return "\n".join(_wrapped(line, width) for line in lines)


def _wrapped(line: str, width: int) -> str:
    """A line, broken under its own indent where it is too long."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False)
