"""How near lessons come to what a machine can do: each recorded rate beside the ceiling that it is bound by.

A comparison that was given a ceiling brings it along. For the others ``limits`` in lesson.yml says what their rates are
held against, and for a lesson without rates why no ceiling applies. It also holds the reasons of what stays far below.
`faults` names what is left open there, or said of something that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from authoring.lesson_files import HeldAgainst, LessonFile, LessonLimits, load_lessons
from course_utils.measure.ceilings import NAMES
from course_utils.records.kinds.ceilings import Ceilings
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.measurement import WORK_UNITS
from course_utils.records.lessons import experiments, find_lesson
from course_utils.records.store import LessonRecord
from course_utils.show.formats import format_percent

CEILINGS = "measuring/ceilings"
# A share below the first wants a reason, and so does one above the second: what a program exceeds is no limit of it.
LOW, HIGH = 0.5, 1.1


@dataclass(frozen=True)
class Share:
    """One recorded rate beside its ceiling; None stands for what there is not, or what is not known."""

    environment: Environment
    lesson: str
    experiment: str
    over: str | None  # the parameter of a sweep
    value: Any
    case: str
    rate: float
    unit: str  # B/s, FLOP/s or items/s
    ceiling: str | None
    ceiling_value: float | None  # in the unit of the rate
    ceiling_threads: int | None  # that it was measured with; those of the rate are in the environment
    launch_bound: bool | None

    @property
    def share(self) -> float | None:
        """The rate over the ceiling."""
        return None if self.ceiling_value is None else self.rate / self.ceiling_value

    @property
    def where(self) -> str:
        """Experiment and point in words, for example ``flash_attention/forward, length 1024``."""
        return self.experiment if self.over is None else f"{self.experiment}, {self.over} {self.value}"

    @property
    def wants_reason(self) -> bool:
        """Whether somebody has to say why: far from one, and not known to wait for Python alone."""
        return self.share is not None and not LOW <= self.share <= HIGH and not self.launch_bound


def load_limits(lessons: Iterable[LessonFile] | None = None) -> dict[str, LessonLimits]:
    """What each lesson.yml says of ceilings, by slug."""
    lessons = load_lessons() if lessons is None else lessons
    return {lesson.slug: lesson.limits for lesson in lessons if lesson.limits is not None}


def shares(records: Iterable[LessonRecord], limits: Mapping[str, LessonLimits]) -> list[Share]:
    """Every rate in the records beside the ceiling that it is bound by.

    The ceiling is the comparison's own if it has one. Else it is the one that ``limits`` names: as the lesson itself
    has recorded it, or another lesson on the same machine with as many threads, or `measuring`.
    """
    records = list(records)
    by_machine: dict[str, list[Ceilings]] = {}
    for record in sorted(records, key=lambda record: CEILINGS not in record.experiments):
        by_machine.setdefault(record.environment.machine, []).extend(_ceilings(record))
    rows = []
    for record in records:
        there = by_machine[record.environment.machine]
        alike = [each for each in there if each.environment.torch_threads == record.environment.torch_threads]
        here = next(iter([*_ceilings(record), *alike, *there]), None)
        entries = limits.get(record.lesson, LessonLimits()).experiments
        for name in record.experiments:
            rows += _rows(record, name, entries.get(name), here)
    return rows


def _ceilings(record: LessonRecord) -> list[Ceilings]:
    return [record.result(name) for name, experiment in record.experiments.items() if experiment.kind == Ceilings.kind]


def _rows(record: LessonRecord, name: str, held: HeldAgainst | None, here: Ceilings | None) -> Iterator[Share]:
    environment = record.environment
    is_elsewhere = held is not None and held.host and environment.device_kind != "cpu"
    for point, comparison, measurement in record.result(name).measurements():
        candidates, threads = [], environment.torch_threads
        over, value = point or (None, None)
        if comparison is not None and comparison.ceiling is not None:
            candidates = [comparison.ceiling]
        elif held is not None and here is not None and not is_elsewhere:
            threads = here.environment.torch_threads
            entries = {entry.name: entry for entry in here}
            names = held.ceiling.get(measurement.label, held.ceiling.get("", ()))
            candidates = [entries[each] for each in names if each in entries]
        for work, unit in WORK_UNITS.items():
            rate = measurement.rate(work)
            if rate is None:
                continue
            ceiling = next((each for each in candidates if each.unit == unit), None)
            held_to = (None, None, None) if ceiling is None else (ceiling.name, ceiling.value, threads)
            what = (environment, record.lesson, name, over, value, measurement.label, rate, unit)
            yield Share(*what, *held_to, measurement.launch_bound)


def faults(lessons: Iterable[LessonFile], rows: Sequence[Share]) -> list[str]:
    """What the lessons leave open about ceilings, or say of something that is not there, and what to write instead."""
    texts = []
    limits = {lesson.slug: lesson.limits or LessonLimits() for lesson in lessons if lesson.built}
    for lesson in lessons:
        if lesson.built and lesson.limits is None:
            texts.append(f"{lesson.slug} has no limits: add what its rates are held against, or why nothing is")
        known = experiments(find_lesson(lesson.slug)) if lesson.built else []
        for name, held in limits.get(lesson.slug, LessonLimits()).experiments.items():
            if name not in known:
                texts.append(f"lesson {lesson.slug} has no experiment {name}: remove it")
            unknown = {each for names in held.ceiling.values() for each in names} - set(NAMES)
            texts += [f"{name}: there is no ceiling {each!r}: {', '.join(NAMES)}" for each in sorted(unknown)]
    for row in rows:
        held = limits.get(row.lesson, LessonLimits()).experiments.get(row.experiment, HeldAgainst())
        place = f"in {row.lesson}/lesson.yml under limits: {row.experiment.partition('/')[2]}"
        is_named = row.case in held.ceiling or "" in held.ceiling
        if row.unit != WORK_UNITS["items"] and row.ceiling is None and not is_named:
            what = f"{row.experiment} has rates in {row.unit} of {row.case!r}"
            texts.append(f"{what}: write what they are held against, {place}: ceiling:")
        if row.wants_reason and row.environment.device_kind not in held.why:
            share = f"{format_percent(row.share or 0)} of {row.ceiling} on {row.environment.machine}"
            why = f"Write why, once it is checked, {place}: why: {row.environment.device_kind}:"
            texts.append(f"{row.where}, {row.case}: {share}. {why}")
    return list(dict.fromkeys(texts))
