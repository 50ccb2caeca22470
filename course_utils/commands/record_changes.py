"""What changed between two sets of records: two machines, or two dates.

A verdict that differs is only a change if the 99% intervals of both ratios are apart, and by more than either run's A/A
control, as verdicts are. Both cover the noise within a run; what differs from one run to the next (neighbours, where
memory lies) shows when one machine is recorded twice.
"""

from __future__ import annotations

import dataclasses
import difflib
import io
import math
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from course_utils.records import lessons, paired, store
from course_utils.records.kinds.environment import Environment
from course_utils.records.result import Reading
from course_utils.records.store import LessonRecord, RecordError
from course_utils.show.formats import format_percent, format_ratio, value_text

# Numbers without an interval, such as bytes, count as alike up to this relative difference.
TOLERANCE = 0.05
# Errors by rounding are read by their order of magnitude: half or double says nothing.
_ERROR_TOLERANCE = 0.5
_OWN, _REFERENCE = "own", "reference"


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
    """The records of one side.

    Attributes:
        name: as it was asked for.
        where: where they were found, in words.
        records: by lesson.
        problems: what could not be read, in words.
    """

    name: str
    where: str
    records: Mapping[str, LessonRecord]
    problems: tuple[str, ...] = ()

    @property
    def environment(self) -> Environment:
        """Machine and software of the newest record."""
        return max(self.records.values(), key=lambda record: record.recorded_at).environment


def _plain(reading: Reading) -> dict[str, Any]:
    """What one side says, as plain JSON types."""
    bounded = reading.interval is not None and reading.interval.bounded and reading.interval.high > 0
    return {
        "verdict": reading.verdict or None,
        "value": reading.number,
        "interval_99": [reading.interval.low, reading.interval.high] if bounded else None,
        "noise_floor": reading.floor if reading.verdict and math.isfinite(reading.floor) else None,
        "words": reading.words,
    }


@dataclass(frozen=True)
class Change:
    """One row on both sides.

    Attributes:
        experiment: ``lesson/experiment``.
        row: what the row is about; empty if it speaks of the whole experiment.
        kind: what became of it.
        a: what A says, if it says anything.
        b: what B says.
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
        sides = {name: _plain(told) if told else None for name, told in (("a", self.a), ("b", self.b))}
        return {"experiment": self.experiment, "row": self.row, "kind": str(self.kind), **sides, "note": self.note}


@dataclass(frozen=True)
class ClaimChange:
    """A claim of the ledger, or a part of one, that both sides decide, and not alike.

    Attributes:
        claim: its id.
        words: what it says.
        a: the verdict that follows from A's records.
        b: the verdict that follows from B's.
    """

    claim: str
    words: str
    a: str
    b: str


@dataclass(frozen=True)
class Changes:
    """All that two sides say.

    Attributes:
        a: one side.
        b: the other.
        changes: every row, lesson by lesson.
        same_runs: lessons for which both sides hold the very same run.
        only_a: lessons that only A has recorded.
        only_b: lessons that only B has recorded.
        notices: what a reader must know about a lesson, such as other problem sizes.
        claims: claims with another verdict.
        tolerance: relative difference up to which numbers without an interval count as alike.
    """

    a: RecordSet
    b: RecordSet
    changes: tuple[Change, ...]
    same_runs: tuple[str, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    notices: tuple[str, ...]
    claims: tuple[ClaimChange, ...] = ()
    tolerance: float = TOLERANCE

    @property
    def counts(self) -> Counter[Kind]:
        """Rows by what became of them."""
        return Counter(change.kind for change in self.changes)

    @property
    def intervals_compared(self) -> int:
        """Pairs of 99% intervals that were set against each other."""
        return sum(
            change.kind is not Kind.NOT_COMPARABLE
            and all(told and told.interval and told.interval.bounded for told in (change.a, change.b))
            for change in self.changes
        )

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
                "problems": list(side.problems),
            }
            for name, side in (("a", self.a), ("b", self.b))
        }
        return {
            **sides,
            "changes": [change.to_json() for change in self.changes],
            "counts": {str(kind): self.counts[kind] for kind in Kind},
            "intervals_compared": self.intervals_compared,
            "apart_by_chance_at_most": round(self.apart_by_chance, 4),
            "same_runs": list(self.same_runs),
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "notices": list(self.notices),
            "claims": [vars(claim) for claim in self.claims],
            "tolerance": self.tolerance,
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
    if colon and before not in (_OWN, _REFERENCE):
        return _read_commit(name, before, machine)
    roots = {_OWN: store.results_root(), _REFERENCE: store.reference_root()}
    words = {_OWN: "your own records", _REFERENCE: "the reference records"}
    holding = [whose for whose in ([before] if colon else roots) if machine in store.machines(roots[whose])]
    if len(holding) > 1:
        raise RecordChangesError(
            f"there are records of your own and reference records of {machine!r}: "
            f"say {_OWN}:{machine} or {_REFERENCE}:{machine}"
        )
    if not holding:
        known = sorted({known for whose in ([before] if colon else roots) for known in store.machines(roots[whose])})
        raise RecordChangesError(
            f"there is no machine, folder or file {name!r}{_nearest(machine, known)}. "
            f"Recorded machines: {', '.join(known) or 'none'}"
        )
    folder = roots[holding[0]] / machine
    return _read(name, words[holding[0]], _files_in(folder))


def _nearest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _files_in(folder: Path) -> list[Path]:
    files = [path for path in sorted(folder.glob("*.json")) if not path.name.startswith(".")]
    if files:
        return files
    machines = store.machines(folder)
    if len(machines) > 1:
        raise RecordChangesError(f"{folder} holds several machines: name one, such as {folder / machines[0]}")
    return sorted((folder / machines[0]).glob("*.json")) if machines else []


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
    folder = store.package_root()
    if commit.startswith("-"):
        raise RecordChangesError(f"{commit!r} is no commit")
    listed = _git("ls-tree", "-d", "--name-only", commit, "records/", folder=folder).decode().splitlines()
    known = sorted(Path(line).name for line in listed)
    if machine not in known:
        raise RecordChangesError(
            f"commit {commit} has no records of {machine!r}{_nearest(machine, known)}. "
            f"It has: {', '.join(known) or 'none'}"
        )
    packed = _git("archive", "--format=tar", commit, f"records/{machine}", folder=folder)
    with tempfile.TemporaryDirectory() as unpacked, tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(unpacked, filter="data")
        return _read(name, f"the reference records in commit {commit}", _files_in(Path(unpacked, "records", machine)))


def _git(*arguments: str, folder: Path) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False)
    except OSError as error:
        raise RecordChangesError("REV:MACHINE needs git, and there is none: name a folder instead") from error
    if done.returncode != 0:
        said = (done.stderr.decode(errors="replace").strip() or "git failed").splitlines()[0]
        raise RecordChangesError(
            f"git cannot read that commit ({said}): REV:MACHINE takes a commit, such as HEAD~3:amd-epyc-2-cores"
        )
    return done.stdout


# Comparing


def compare_records(a: RecordSet, b: RecordSet, tolerance: float = TOLERANCE) -> Changes:
    """Set two sides against each other.

    Args:
        a: one side.
        b: the other.
        tolerance: relative difference up to which numbers without an interval count as alike: 0.05 is 5%.

    Returns:
        What became of every row of every experiment.

    Raises:
        RecordChangesError: if both sides are the very same records.
        ValueError: if the tolerance is negative or no number.

    Example:
        >>> a, b = read_records("amd-epyc-2-cores"), read_records("intel-xeon-processor-2-cores")
        >>> compare_records(a, b).intervals_compared > 0
        True
    """
    if a.records == b.records:
        raise RecordChangesError(f"{a.name} and {b.name} are the very same records: there is nothing to compare")
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"the tolerance is a relative difference of 0 or more, got {tolerance!r}; 0.05 is 5%")
    both = [lesson for lesson in _in_order({*a.records, *b.records}) if lesson in a.records and lesson in b.records]
    same = tuple(lesson for lesson in both if _same_run(a.records[lesson], b.records[lesson]))
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
    return Changes(
        a,
        b,
        tuple(changes),
        same,
        tuple(lesson for lesson in _in_order(a.records) if lesson not in b.records),
        tuple(lesson for lesson in _in_order(b.records) if lesson not in a.records),
        tuple(notices),
        tolerance=tolerance,
    )


def _in_order(names: Any) -> list[str]:
    """Lessons in the order of the course; those that it no longer has at the end."""
    try:
        course = [lesson.slug for lesson in lessons.find_lessons()]
    except lessons.LessonError:
        course = []
    return sorted(names, key=lambda name: (course.index(name) if name in course else len(course), name))


def _same_run(here: LessonRecord, there: LessonRecord) -> bool:
    return (here.recorded_at, here.environment, here.experiments) == (
        there.recorded_at,
        there.environment,
        there.experiments,
    )


def _sizes(record: LessonRecord) -> str:
    return f"{record.environment.size} sizes on {record.environment.device_kind}"


def _lesson_changes(here: LessonRecord, there: LessonRecord, tolerance: float) -> Iterator[Change]:
    alike = _sizes(here) == _sizes(there)
    for name in dict.fromkeys([*here.experiments, *there.experiments]):
        ours, theirs = here.experiments.get(name), there.experiments.get(name)
        if ours is None or theirs is None:
            yield Change(name, "", Kind.ONLY_A if theirs is None else Kind.ONLY_B)
            continue
        mine = {reading.label: reading for reading in here.result(name).readings()}
        other = {reading.label: reading for reading in there.result(name).readings()}
        reason = ""
        if ours.parameters_hash != theirs.parameters_hash:
            reason = "the experiment's parameters changed"
        elif ours.code_hash != theirs.code_hash:
            reason = "the experiment's code changed"
        for label in dict.fromkeys([*mine, *other]):
            a, b = mine.get(label), other.get(label)
            if reason:
                yield Change(name, label, Kind.NOT_COMPARABLE, a, b, reason)
            elif a is None or b is None:
                yield Change(name, label, Kind.ONLY_A if b is None else Kind.ONLY_B, a, b)
            elif not alike and not a.verdict:
                yield Change(name, label, Kind.NOT_COMPARABLE, a, b, "other problem sizes")
            else:
                yield _change(name, label, a, b, tolerance)


def _apart(a: Reading, b: Reading) -> bool:
    """Whether two 99% intervals are apart by more than the A/A control of either side."""
    low, high = sorted((a.interval, b.interval), key=lambda interval: interval.low)
    if not (low.bounded and high.bounded) or low.meets(high.low, high.high):
        return False
    return high.low / low.high > max(a.floor, b.floor)


def _change(name: str, label: str, a: Reading, b: Reading, tolerance: float) -> Change:
    """What became of a reading that both sides have, by the same code and sizes."""
    if a.interval is not None and b.interval is not None and a.number and b.number:
        apart = _apart(a, b)
        factor = f"{format_ratio(b.number / a.number)} times A's"
        if a.verdict != b.verdict and paired.Verdict.UNCLEAR in (a.verdict, b.verdict):
            kind = Kind.BECAME_CLEAR if a.verdict == paired.Verdict.UNCLEAR else Kind.BECAME_UNCLEAR
            return Change(name, label, kind, a, b, factor if apart else "")
        if a.verdict != b.verdict:
            return Change(name, label, Kind.CHANGED if apart else Kind.WITHIN_NOISE, a, b)
        if apart and abs(math.log(b.number / a.number)) > math.log1p(a.practical):
            return Change(name, label, Kind.MOVED, a, b, factor)
        return Change(name, label, Kind.SAME_VERDICT if a.verdict else Kind.SAME_VALUE, a, b)
    if a.points is not None and b.points is not None:
        note = _curve_difference(a.points, b.points, tolerance)
    elif a.number is not None and b.number is not None:
        allowed = max(tolerance, _ERROR_TOLERANCE) if a.unit == "relative" else tolerance
        difference = _relative(a.number, b.number)
        note = f"by {format_percent(difference)}" if difference > allowed else ""
    else:
        note = "" if a.value == b.value else "other words"
    return Change(name, label, Kind.DIFFERS if note else Kind.SAME_VALUE, a, b, note)


def _relative(a: float, b: float) -> float:
    """How far two numbers are apart, relative to the larger one."""
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


def _curve_difference(a: Mapping[float, float | None], b: Mapping[float, float | None], tolerance: float) -> str:
    """Where two curves are furthest apart, in words; empty if they are alike."""
    if list(a) != list(b):
        return f"read off elsewhere: {len(a)} and {len(b)} points"
    points = [(x, a[x], b[x]) for x in a]
    if gaps := [x for x, one, two in points if (one is None) != (two is None)]:
        return f"only one of them is finite at {gaps[0]:g}"
    finite = [(x, one, two) for x, one, two in points if one is not None and two is not None]
    worst = max(finite, key=lambda point: _relative(point[1], point[2]), default=None)
    if worst is None or _relative(worst[1], worst[2]) <= tolerance:
        return ""
    x, one, two = worst
    return f"by {format_percent(_relative(one, two))} at {x:g}: {value_text(one)} and {value_text(two)}"


def with_claims(changes: Changes) -> Changes:
    """Add the claims of the ledger on which the two sides decide differently.

    A claim in several parts is judged part by part; what one side leaves open is no difference.

    Args:
        changes: from :func:`compare_records`.

    Returns:
        The changes with the claims; a claim that an older record cannot answer becomes a notice.

    Example:
        >>> a, b = read_records("amd-epyc-2-cores"), read_records("intel-xeon-processor-2-cores")
        >>> with_claims(compare_records(a, b)).notices
        ()
    """
    from authoring.claims import ClaimError, judge, load_claims

    try:
        ledger = load_claims()
    except ClaimError as error:
        return dataclasses.replace(changes, notices=(*changes.notices, f"No claims are compared: {error}"))
    found, notices = [], []
    with tempfile.TemporaryDirectory() as folder:
        roots = Path(folder, "a"), Path(folder, "b")
        for root, side in zip(roots, (changes.a, changes.b), strict=True):
            for record in side.records.values():
                store.save_lesson(record, root)
        for claim in ledger:
            # Old and new calls do the same whatever was measured: they are not run here.
            parts = tuple(part for part in claim.parts if part.experiments and not part.calls)
            measured = dataclasses.replace(claim, parts=parts)
            try:
                judged = [judge(measured, root).parts for root in roots]
            except ClaimError as error:
                notices.append(f"Claim {claim.id} is not compared: {error}")
                continue
            for one, other in zip(*judged, strict=True):
                if one.verdict != other.verdict and "open" not in (one.verdict, other.verdict):
                    found.append(ClaimChange(claim.id, one.part.what, one.verdict, other.verdict))
    return dataclasses.replace(changes, claims=tuple(found), notices=(*changes.notices, *notices))
