"""What changed between two sets of records: two machines, or two dates.

A verdict that differs is only a change if the 99% intervals of both ratios are apart, and by more than either run's A/A
control, as verdicts are. Both cover the noise within a run; what differs from one run to the next (neighbours, where
memory lies) shows when one machine is recorded twice.
"""

from __future__ import annotations

import dataclasses
import io
import math
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from course_utils.records import lessons, paired, store
from course_utils.records.kinds.environment import Environment
from course_utils.records.paired import Verdict
from course_utils.records.result import Reading
from course_utils.records.store import LessonRecord, RecordError
from course_utils.show.formats import format_percent, format_ratio, value_text
from course_utils.show.suggestions import did_you_mean

# Errors by rounding are read by their order of magnitude: half or double says nothing.
_ERROR_TOLERANCE = 0.5
_OWN, _REFERENCE = "own", "reference"
_WHERE = {_OWN: "your own records", _REFERENCE: "the reference records"}


class RecordChangesError(ValueError):
    """There is nothing to compare. The message says what to name instead."""


class Kind(StrEnum):
    """What became of one row, in the order in which people want to know it."""

    CHANGED = "changed, beyond noise"
    MOVED = "moved"
    WITHIN_NOISE = "changed, within noise"
    BECAME_UNCLEAR = "became unclear"
    BECAME_CLEAR = "became clear"
    DIFFERS = "differs"
    ONLY_A = "only in A"
    ONLY_B = "only in B"
    NOT_COMPARABLE = "not comparable"
    SAME_VERDICT = "same verdict"
    SAME_VALUE = "same value"


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
    """One row on both sides.

    Attributes:
        experiment: ``lesson/experiment``.
        row: what the row is about; empty if it speaks of the whole experiment.
        note: why it cannot be compared, or by how much it moved.
    """

    experiment: str
    row: str
    kind: Kind
    a: Reading | None = None
    b: Reading | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        sides = {"a": self.a and _plain(self.a), "b": self.b and _plain(self.b)}
        return {"experiment": self.experiment, "row": self.row, "kind": str(self.kind), **sides, "note": self.note}


def _plain(reading: Reading) -> dict[str, Any]:
    """What one side says, as plain JSON types, which know no infinity."""
    return {
        "verdict": reading.verdict or None,
        "value": reading.number,
        "interval_99": [reading.interval.low, reading.interval.high] if _has_interval(reading) else None,
        "noise_floor": reading.floor if reading.verdict and math.isfinite(reading.floor) else None,
        "words": reading.words,
    }


def _has_interval(reading: Reading | None) -> bool:
    interval = reading and reading.interval
    return bool(interval) and interval.bounded and interval.low > 0


@dataclass(frozen=True)
class Changes:
    """All that two sides say.

    Attributes:
        changes: every row, lesson by lesson.
        same_runs: lessons for which both sides hold the very same run.
        only_a: lessons that only A has recorded; ``only_b`` likewise.
        notices: what a reader must know about a lesson, such as other problem sizes.
        tolerance: relative difference up to which numbers without an interval count as alike.
    """

    a: RecordSet
    b: RecordSet
    changes: tuple[Change, ...]
    same_runs: tuple[str, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    notices: tuple[str, ...]
    tolerance: float

    @property
    def counts(self) -> Counter[Kind]:
        """Rows by what became of them."""
        return Counter(change.kind for change in self.changes)

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

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        sides = {
            name: {
                "name": side.name,
                "where": side.where,
                "environment": side.environment.to_record(),
                "lessons": {lesson: record.recorded_at for lesson, record in side.records.items()},
                "problems": side.problems,
            }
            for name, side in (("a", self.a), ("b", self.b))
        }
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            **sides,
            "changes": [change.to_json() for change in self.changes],
            "counts": {str(kind): self.counts[kind] for kind in Kind},
            "intervals_compared": self.intervals_compared,
            "apart_by_chance_at_most": round(self.apart_by_chance, 4),
        }


# Finding records


def read_records(name: str) -> RecordSet:
    """Find the records that a name stands for.

    Args:
        name: a machine, ``own:MACHINE`` or ``reference:MACHINE`` where both have one, ``REV:MACHINE`` for the reference
            records in a commit of git, a folder, or a record's file.

    Returns:
        The records. What cannot be read is left out, and named among the problems.

    Raises:
        RecordChangesError: if there are none.

    Example:
        >>> "measuring" in read_records("amd-epyc-2-cores").records
        True
    """
    path = Path(name)
    if path.is_file():
        return _read(name, "a file", [path])
    if path.is_dir():
        return _read(name, "a folder", _files_in(path))
    before, colon, machine = name.rpartition(":")
    if colon and before not in _WHERE:
        return _read_commit(name, before, machine)
    roots = {_OWN: store.results_root(), _REFERENCE: store.reference_root()}
    asked = {before: roots[before]} if colon else roots
    holding = [whose for whose, root in asked.items() if machine in store.machines(root)]
    if len(holding) > 1:
        raise RecordChangesError(
            f"there are records of your own and reference records of {machine!r}: "
            f"say {_OWN}:{machine} or {_REFERENCE}:{machine}"
        )
    if not holding:
        known = sorted({known for root in asked.values() for known in store.machines(root)})
        raise RecordChangesError(
            f"there is no machine, folder or file {name!r}{did_you_mean(machine, known)}. "
            f"Recorded machines: {', '.join(known) or 'none'}"
        )
    return _read(name, _WHERE[holding[0]], _files_in(roots[holding[0]] / machine))


def _files_in(folder: Path) -> list[Path]:
    if files := sorted(folder.glob("[!.]*.json")):
        return files
    machines = store.machines(folder)
    if len(machines) > 1:
        raise RecordChangesError(f"{folder} holds several machines: name one, such as {folder / machines[0]}")
    return sorted((folder / machines[0]).glob("[!.]*.json")) if machines else []


def _read(name: str, where: str, files: Sequence[Path]) -> RecordSet:
    records, problems = {}, []
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
    if commit.startswith("-"):
        raise RecordChangesError(f"{commit!r} is no commit")
    listed = _git("ls-tree", "-r", "--name-only", commit, "records/").decode().splitlines()
    known = sorted({Path(line).parent.name for line in listed if line.endswith(".json")})
    if machine not in known:
        raise RecordChangesError(
            f"commit {commit} has no records of {machine!r}{did_you_mean(machine, known)}. "
            f"It has: {', '.join(known) or 'none'}"
        )
    packed = _git("archive", "--format=tar", commit, f"records/{machine}")
    with tempfile.TemporaryDirectory() as unpacked, tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(unpacked, filter="data")
        return _read(name, f"the reference records in commit {commit}", _files_in(Path(unpacked, "records", machine)))


def _git(*arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=store.package_root(), capture_output=True, check=False)
    except OSError as error:
        raise RecordChangesError("REV:MACHINE needs git, and there is none: name a folder instead") from error
    if done.returncode != 0:
        reason = (done.stderr.decode(errors="replace").strip() or "git failed").splitlines()[0]
        raise RecordChangesError(
            f"git cannot read that commit ({reason}): REV:MACHINE takes a commit, such as HEAD~3:amd-epyc-2-cores"
        )
    return done.stdout


# Comparing


def compare_records(a: RecordSet, b: RecordSet, tolerance: float = 0.05) -> Changes:
    """Set two sides against each other.

    Args:
        a: one side.
        b: the other.
        tolerance: relative difference up to which numbers without an interval count as alike: 0.05 is 5%.

    Returns:
        What became of every row of every experiment.

    Raises:
        RecordChangesError: if both sides are the very same records.

    Example:
        >>> a, b = read_records("amd-epyc-2-cores"), read_records("intel-xeon-processor-2-cores")
        >>> compare_records(a, b).intervals_compared > 0
        True
    """
    if a.records == b.records:
        raise RecordChangesError(f"{a.name} and {b.name} are the very same records: there is nothing to compare")
    both = _in_order(set(a.records) & set(b.records))
    same = tuple(lesson for lesson in both if a.records[lesson] == b.records[lesson])
    changes: list[Change] = []
    notices = []
    for lesson in both:
        if lesson not in same:
            here, there = a.records[lesson], b.records[lesson]
            if (sizes := _sizes(here)) != _sizes(there):
                notices.append(
                    f"{lesson}: A ran {sizes}, B {_sizes(there)}. "
                    "What differs may come from that; values without an interval are not compared."
                )
            changes += _lesson_changes(here, there, tolerance)
    only_a, only_b = _in_order(set(a.records) - set(b.records)), _in_order(set(b.records) - set(a.records))
    return Changes(a, b, tuple(changes), same, tuple(only_a), tuple(only_b), tuple(notices), tolerance)


def _in_order(names: Iterable[str]) -> list[str]:
    """Lessons in the order of the course; those that it no longer has at the end."""
    try:
        course = [lesson.slug for lesson in lessons.find_lessons()]
    except lessons.LessonError:
        course = []
    return sorted(names, key=lambda name: (course.index(name) if name in course else len(course), name))


def _sizes(record: LessonRecord) -> str:
    return f"{record.environment.size} sizes on {record.environment.device_kind}"


def _lesson_changes(here: LessonRecord, there: LessonRecord, tolerance: float) -> Iterator[Change]:
    alike = _sizes(here) == _sizes(there)
    for name in dict.fromkeys([*here.experiments, *there.experiments]):
        before, after = here.experiments.get(name), there.experiments.get(name)
        if before is None or after is None:
            yield Change(name, "", Kind.ONLY_B if before is None else Kind.ONLY_A)
            continue
        reason = ""
        if before.parameters_hash != after.parameters_hash:
            reason = "the experiment's parameters changed"
        elif before.code_hash != after.code_hash:
            reason = "the experiment's code changed"
        readings_a = {reading.label: reading for reading in here.result(name).readings()}
        readings_b = {reading.label: reading for reading in there.result(name).readings()}
        for label in dict.fromkeys([*readings_a, *readings_b]):
            a, b = readings_a.get(label), readings_b.get(label)
            kind, note = Kind.NOT_COMPARABLE, reason
            if not reason and a and b:
                kind, note = _compared(a, b, alike, tolerance)
            elif not reason:
                kind = Kind.ONLY_A if a else Kind.ONLY_B
            yield Change(name, label, kind, a, b, note)


def _compared(a: Reading, b: Reading, same_sizes: bool, tolerance: float) -> tuple[Kind, str]:
    """What became of a row that both sides have, by the same code."""
    if not same_sizes and not a.verdict:
        return Kind.NOT_COMPARABLE, "other problem sizes"
    if a.interval and b.interval and a.number and b.number:
        return _timed_change(a, b)
    note = _difference(a, b, tolerance)
    return Kind.DIFFERS if note else Kind.SAME_VALUE, note


def _apart(a: Reading, b: Reading) -> bool:
    """Whether two 99% intervals are apart by more than the A/A control of either side."""
    if not (_has_interval(a) and _has_interval(b)):
        return False
    low, high = sorted((a.interval, b.interval), key=lambda interval: interval.low)
    return not low.meets(high.low, high.high) and high.low / low.high > max(a.floor, b.floor)


def _timed_change(a: Reading, b: Reading) -> tuple[Kind, str]:
    """What became of a ratio or of a time, and by how much it moved."""
    apart = _apart(a, b)
    moved = f"{format_ratio(b.number / a.number)} times A's"
    if a.verdict != b.verdict and Verdict.UNCLEAR in (a.verdict, b.verdict):
        kind = Kind.BECAME_CLEAR if a.verdict == Verdict.UNCLEAR else Kind.BECAME_UNCLEAR
        return kind, moved if apart else ""
    if a.verdict != b.verdict:
        return Kind.CHANGED if apart else Kind.WITHIN_NOISE, ""
    if apart and abs(math.log(b.number / a.number)) > math.log1p(a.practical):
        return Kind.MOVED, moved
    return Kind.SAME_VERDICT if a.verdict else Kind.SAME_VALUE, ""


def _difference(a: Reading, b: Reading, tolerance: float) -> str:
    """By how much two values without an interval differ, in words; empty if they are alike."""
    if a.points is not None and b.points is not None:
        return _curve_difference(a.points, b.points, tolerance)
    if a.number is None or b.number is None:
        return "" if a.value == b.value else "other words"
    allowed = max(tolerance, _ERROR_TOLERANCE) if a.unit == "relative" else tolerance
    difference = _relative(a.number, b.number)
    return f"by {format_percent(difference)}" if difference > allowed else ""


def _relative(a: float, b: float) -> float:
    """How far two numbers are apart, relative to the larger one."""
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


def _curve_difference(a: Mapping[float, float | None], b: Mapping[float, float | None], tolerance: float) -> str:
    """Where two curves are furthest apart, in words; empty if they are alike."""
    if list(a) != list(b):
        return f"read off elsewhere: {len(a)} and {len(b)} points"
    if gaps := [x for x in a if (a[x] is None) != (b[x] is None)]:
        return f"only one of them is finite at {gaps[0]:g}"
    differences = {x: _relative(a[x], b[x]) for x in a if a[x] is not None}
    worst = max(differences, key=differences.get, default=None)
    if worst is None or differences[worst] <= tolerance:
        return ""
    return f"by {format_percent(differences[worst])} at {worst:g}: {value_text(a[worst])} and {value_text(b[worst])}"
