"""How near lessons come to what a machine can do: each recorded rate beside the ceiling that it is bound by.

A comparison that was given a ceiling brings it along. For the others ``book/limits.yml`` says what their rates are held
against, and for every lesson without rates why no ceiling applies. It also holds the reasons of what stays far below.
`faults` names what that file leaves open, or says of something that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_utils.measure.ceilings import NAMES
from course_utils.records import store
from course_utils.records.kinds.ceilings import Ceilings
from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.measurement import WORK_UNITS, Measurement
from course_utils.records.lessons import Lesson, experiments
from course_utils.records.store import LessonRecord
from course_utils.show.formats import format_percent

CEILINGS = "measuring/ceilings"
# A share below the first wants a reason, and so does one above the second: what a program exceeds is no limit of it.
LOW, HIGH = 0.5, 1.1
DEVICE_KINDS = ("cpu", "cuda", "mps")


class LimitsError(ValueError):
    """``book/limits.yml`` cannot be read. The message says what to do."""


@dataclass(frozen=True)
class HeldAgainst:
    """What ``book/limits.yml`` says of one experiment.

    Attributes:
        ceilings: names of ceilings by case, of which the first counts that a machine has; under ``""`` those of all
            other cases.
        host: whether it runs on the host even where there is a GPU, whose ceilings say nothing about it.
        why: by kind of device, why its share is far from one.
    """

    ceilings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    host: bool = False
    why: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LessonLimits:
    """What ``book/limits.yml`` says of one lesson.

    Attributes:
        none: why no ceiling applies, in a sentence; empty where one does.
        experiments: by full name.
    """

    none: str = ""
    experiments: Mapping[str, HeldAgainst] = field(default_factory=dict)


@dataclass(frozen=True)
class Share:
    """One recorded rate beside its ceiling.

    Attributes:
        environment: machine and software of the record.
        lesson: its slug.
        experiment: ``lesson/experiment``.
        over: the parameter of a sweep, or None.
        value: the parameter's value at this point, or None.
        case: what was measured.
        rate: work per second.
        unit: ``B/s``, ``FLOP/s`` or ``items/s``.
        ceiling: name of the ceiling, or None where this machine has none for it.
        ceiling_value: the ceiling itself, in ``unit``, or None.
        ceiling_threads: threads that the ceiling was measured with; those of the rate are in ``environment``.
        launch_bound: whether the GPU waited for Python; None where that is not known.
    """

    environment: Environment
    lesson: str
    experiment: str
    over: str | None
    value: Any
    case: str
    rate: float
    unit: str
    ceiling: str | None
    ceiling_value: float | None
    ceiling_threads: int | None
    launch_bound: bool | None

    @property
    def share(self) -> float | None:
        """The rate over the ceiling, or None."""
        return None if self.ceiling_value is None else self.rate / self.ceiling_value

    @property
    def where(self) -> str:
        """Experiment and point in words, for example ``flash_attention/forward, length 1024``."""
        return self.experiment if self.over is None else f"{self.experiment}, {self.over} {self.value}"

    @property
    def wants_reason(self) -> bool:
        """Whether somebody has to say why: far from one, and not known to wait for Python alone."""
        return self.share is not None and not LOW <= self.share <= HIGH and not self.launch_bound


def limits_path() -> Path:
    """Where reasons are written: ``book/limits.yml`` beside the package."""
    return store.package_root().parent / "book" / "limits.yml"


def load_limits(path: Path | None = None) -> dict[str, LessonLimits]:
    """Read what rates are held against.

    Args:
        path: the file; ``book/limits.yml`` by default.

    Returns:
        By slug of the lesson.

    Raises:
        LimitsError: if the file cannot be read, or an entry has another form.

    Example:
        >>> load_limits()["measuring"].experiments["measuring/cold_cache"].ceilings[""]
        ('copy',)
    """
    import yaml

    file = limits_path() if path is None else path
    try:
        read = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LimitsError(f"{file.name} cannot be read: {error}. Mend it, or restore it from git.") from error
    if not isinstance(read, dict):
        raise LimitsError(f"{file.name} names lessons: start each entry with the lesson's slug.")
    return {slug: _lesson(slug, entry) for slug, entry in read.items()}


def _lesson(slug: str, entry: Any) -> LessonLimits:
    if isinstance(entry, str):
        return LessonLimits(none=entry.strip())
    if not isinstance(entry, dict):
        raise LimitsError(f"limits.yml, {slug}: write a sentence that says why no ceiling applies, or experiments.")
    return LessonLimits(experiments={f"{slug}/{name}": _held(f"{slug}/{name}", told) for name, told in entry.items()})


def _held(name: str, told: Any) -> HeldAgainst:
    if not isinstance(told, dict) or (unknown := set(told) - {"ceiling", "host", "why"}):
        what = ", ".join(sorted(unknown)) if isinstance(told, dict) else repr(told)
        raise LimitsError(f"limits.yml, {name}: an experiment has `ceiling`, `host` and `why`, not {what}.")
    given = told.get("ceiling", {})
    by_case = given if isinstance(given, dict) else {"": given}
    why = told.get("why", {})
    why = why if isinstance(why, dict) else dict.fromkeys(DEVICE_KINDS, why)
    if unknown := set(why) - set(DEVICE_KINDS):
        raise LimitsError(
            f"limits.yml, {name}: a reason is for a kind of device ({', '.join(DEVICE_KINDS)}), not {unknown.pop()!r}."
        )
    return HeldAgainst(
        ceilings={case: (names,) if isinstance(names, str) else tuple(names) for case, names in by_case.items()},
        host=bool(told.get("host", False)),
        why={kind: " ".join(words.split()) for kind, words in why.items()},
    )


def shares(
    records: Iterable[LessonRecord], limits: Mapping[str, LessonLimits], measured: Ceilings | None = None
) -> list[Share]:
    """Every rate in the records beside the ceiling that it is bound by.

    The ceiling is the comparison's own if it has one. Else it is the one that ``limits`` names: as the lesson itself
    has recorded it, or another lesson on the same machine with as many threads, or lesson 00.

    Args:
        records: of any machines.
        limits: from :func:`load_limits`.
        measured: ceilings for a machine that has recorded none.

    Returns:
        A row for each rate, in the order of the records.
    """
    kept = list(records)
    recorded: dict[str, list[Ceilings]] = {}
    for record in sorted(kept, key=lambda record: CEILINGS not in record.experiments):
        recorded.setdefault(record.environment.machine, []).extend(_ceilings(record))
    rows = []
    for record in kept:
        there = recorded.get(record.environment.machine, [])
        threads = record.environment.torch_threads
        alike = [each for each in there if each.environment.torch_threads == threads]
        here = next(iter([*_ceilings(record), *alike, *there]), measured)
        told = limits.get(record.lesson, LessonLimits()).experiments
        for name in record.experiments:
            for point, comparison, measurement in record.result(name).measurements():
                rows += _rows(record, name, point or (None, None), comparison, measurement, told.get(name), here)
    return rows


def _ceilings(record: LessonRecord) -> list[Ceilings]:
    return [record.result(name) for name, experiment in record.experiments.items() if experiment.kind == Ceilings.kind]


def _rows(
    record: LessonRecord,
    name: str,
    point: tuple[str | None, Any],
    comparison: Comparison | None,
    measurement: Measurement,
    told: HeldAgainst | None,
    here: Ceilings | None,
) -> Iterator[Share]:
    threads = record.environment.torch_threads
    candidates = []
    if comparison is not None and comparison.ceiling is not None:
        candidates = [comparison.ceiling]
    elif told is not None and here is not None and not (told.host and record.environment.device_kind != "cpu"):
        threads = here.environment.torch_threads
        entries = {entry.name: entry for entry in here}
        names = told.ceilings.get(measurement.label, told.ceilings.get("", ()))
        candidates = [entries[each] for each in names if each in entries]
    for of, unit in WORK_UNITS.items():
        rate = measurement.rate(of)
        if rate is None:
            continue
        ceiling = next((each for each in candidates if each.unit == unit), None)
        yield Share(
            environment=record.environment,
            lesson=record.lesson,
            experiment=name,
            over=point[0],
            value=point[1],
            case=measurement.label,
            rate=rate,
            unit=unit,
            ceiling=None if ceiling is None else ceiling.name,
            ceiling_value=None if ceiling is None else ceiling.value,
            ceiling_threads=None if ceiling is None else threads,
            launch_bound=measurement.launch_bound,
        )


def faults(limits: Mapping[str, LessonLimits], lessons: Sequence[Lesson], rows: Sequence[Share]) -> list[str]:
    """What ``limits.yml`` leaves open, and what it says of something that is not there.

    Args:
        limits: from :func:`load_limits`.
        lessons: those that are built.
        rows: from :func:`shares`, of the reference records.

    Returns:
        One sentence for each fault, which says what to write, and where.
    """
    found = []
    slugs = {lesson.slug: lesson for lesson in lessons}
    for slug in slugs.keys() - limits.keys():
        found.append(f"{slug} is missing: add what its rates are held against, or a sentence that says why none is")
    for slug, told in limits.items():
        if slug not in slugs:
            found.append(f"there is no lesson {slug}: remove it")
            continue
        known = experiments(slugs[slug])
        found += [
            f"lesson {slug} has no experiment {name}: remove it" for name in told.experiments if name not in known
        ]
        for name, held in told.experiments.items():
            unknown = {each for names in held.ceilings.values() for each in names} - set(NAMES)
            found += [f"{name}: there is no ceiling {each!r}: {', '.join(NAMES)}" for each in sorted(unknown)]
    return [*found, *dict.fromkeys(_faults_of_rows(limits, rows))]


def _faults_of_rows(limits: Mapping[str, LessonLimits], rows: Sequence[Share]) -> Iterator[str]:
    owing: dict[tuple[str, str], list[Share]] = {}
    for row in rows:
        entry = limits.get(row.lesson, LessonLimits()).experiments.get(row.experiment)
        named = entry is not None and (row.case in entry.ceilings or "" in entry.ceilings)
        if row.unit != WORK_UNITS["items"] and row.ceiling is None and not named:
            yield (
                f"{row.experiment} has rates in {row.unit} of {row.case!r}: write what they are held against, "
                f"{_place(row)}: ceiling:"
            )
        if row.wants_reason and (entry is None or row.environment.device_kind not in entry.why):
            owing.setdefault((row.environment.machine, row.experiment), []).append(row)
    for (machine, _), same in owing.items():
        farthest = min(same, key=lambda row: row.share or 0)
        share = f"{format_percent(farthest.share or 0)} of {farthest.ceiling} on {machine}"
        more = f" (and {len(same) - 1} more)" if len(same) > 1 else ""
        yield (
            f"{farthest.where}, {farthest.case}: {share}{more}. Write why, once it is checked, "
            f"{_place(farthest)}: why: {farthest.environment.device_kind}:"
        )


def _place(row: Share) -> str:
    return f"under {row.lesson}: {row.experiment.partition('/')[2]}"
