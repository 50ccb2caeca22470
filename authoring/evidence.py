"""Records as texts and the claims ledger read them: experiments by name and machine, and values in words."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from course_utils.files import package_root
from course_utils.lesson_notebooks import Lesson, LessonError, experiments, find_lesson, notebooks_root
from course_utils.results import store
from course_utils.results.paired import Interval, Verdict
from course_utils.results.result import WORKED_BY, Result
from course_utils.results.table import TABLE_UNITS
from course_utils.results.verdicts import WORDS
from course_utils.show.formats import format_interval, value_text
from course_utils.show.suggestions import did_you_mean, typed


class EvidenceError(ValueError):
    """An expression that cannot be read or worked out. The message names what there is."""


class NotRecordedError(EvidenceError):
    """An expression reads experiments that the machine has not recorded."""


@dataclass(frozen=True)
class ShownNumber:
    """A number that a reader wants to see: an expression, and the unit if it brings none of its own."""

    label: str
    show: str
    unit: str | None = None


class Quantity(float):
    """A number with a unit, one of `TABLE_UNITS`. Sums, differences and multiples keep it."""

    unit: str | None

    def __new__(cls, value: float, unit: str | None) -> Self:
        """Make one from a number."""
        quantity = super().__new__(cls, value)
        quantity.unit = unit
        return quantity

    def __repr__(self) -> str:
        return in_words(self)

    def _plus(self, other: float) -> float:
        # 0 is where sum() begins.
        is_alike = getattr(other, "unit", self.unit if other == 0 else None) == self.unit
        value = float(self) + float(other)
        return Quantity(value, self.unit) if is_alike else value

    __add__ = __radd__ = _plus

    def __sub__(self, other: float) -> float:
        return self._plus(-other)

    def __neg__(self) -> Self:
        return Quantity(-float(self), self.unit)

    def __abs__(self) -> Self:
        return Quantity(abs(float(self)), self.unit)

    def __mul__(self, other: float) -> float:
        value = float(self) * float(other)
        return value if isinstance(other, Quantity) else Quantity(value, self.unit)

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> float:
        value = float(self) / float(other)
        if not isinstance(other, Quantity):
            return Quantity(value, self.unit)
        return Quantity(value, "ratio") if self.unit == other.unit else value


def quantity(value: float, unit: str) -> Quantity:
    """A number with the unit that a text shows it in."""
    if unit not in TABLE_UNITS:
        raise EvidenceError(f"there is no unit {unit!r}; there are: {', '.join(TABLE_UNITS)}")
    return Quantity(value, unit)


# Records


class Recorded(NamedTuple):
    """An experiment as a machine has recorded it."""

    record: store.LessonRecord
    result: Any
    is_of_other_code: bool  # than the notebook has now


@functools.lru_cache(maxsize=1024)
def _recorded(name: str, path: Path, *contents: bytes) -> Recorded | None:
    """An experiment; None if it is not there. Other ``contents`` are read again."""
    del contents
    try:
        record = store.load_lesson(path)
        if name not in record.experiments:
            return None
        return Recorded(record, record.result(name), store.code_has_changed(record, name))
    except store.RecordError as error:
        raise EvidenceError(str(error)) from error


def recorded(names: Iterable[str], machine: str | None, root: Path | None = None) -> dict[str, Recorded]:
    """Experiments as one machine has recorded them; ``root`` is where reference records are.

    Raises:
        EvidenceError: if there is no such machine or experiment, or a record is damaged.
        NotRecordedError: if the machine lacks one of them.
    """
    names = list(names)
    if not names:
        return {}
    files = {f"{name.partition('/')[0]}.json" for name in names}
    known = machines(root)
    folder = root or store.reference_root()
    holding = {each for each in known if all((folder / each / file).is_file() for file in files)}
    try:
        machine = store.machine_named(machine, known, holding)
    except store.RecordError as error:
        raise EvidenceError(str(error)) from error
    experiments_by_name = {}
    for name in names:
        lesson = name.partition("/")[0]
        path = store.record_path(root or store.reference_root(), machine, lesson)
        notebooks = notebooks_root().glob(f"[0-9][0-9]_{lesson}.ipynb")
        contents = [file.read_bytes() for file in (path, *notebooks) if file.is_file()]
        experiments_by_name[name] = _recorded(name, path, *contents) if path.is_file() else None
    if missing := [name for name, recorded in experiments_by_name.items() if recorded is None]:
        for name in missing:
            _check_exists(name)
        lessons = ", ".join(dict.fromkeys(name.partition("/")[0] for name in missing))
        raise NotRecordedError(
            f"{', '.join(missing)}: not recorded on {machine}. Run {typed(f'record {lessons} --reference')} there."
        )
    return experiments_by_name


def _check_exists(name: str) -> None:
    """Raise if no notebook has an experiment of this name: it is misspelt, not missing."""
    slug = name.partition("/")[0]
    try:
        # Its file by name: all lessons would be read anew for each experiment that a machine lacks.
        found = next(notebooks_root().glob(f"[0-9][0-9]_{slug}.ipynb"), None)
        known = experiments(Lesson(0, slug, "", found) if found else find_lesson(slug))
    except LessonError as error:
        raise EvidenceError(f"there is no experiment {name!r}: {error}") from error
    # A text may rest on what an older edition recorded, and is judged by a learner's records, too.
    records = (package_root() / "records").glob(f"*/{slug}.json")
    if name not in known and not any(name in store.load_lesson(path).experiments for path in records):
        hint = did_you_mean(name, known)
        raise EvidenceError(f"there is no experiment {name!r}{hint}. The lesson has: {', '.join(known) or 'none'}.")


def machines(root: Path | None = None) -> list[str]:
    """The machines that have reference records, sorted; ``root`` is where these are."""
    return store.machines(root or store.reference_root())


def newest_result(recorded: Iterable[Recorded]) -> Result:
    """The one of some results that a number is said to come from: the newest that a GPU worked on, else a CPU's."""
    in_order = [*WORKED_BY]
    newest_first = sorted(recorded, key=lambda each: each.record.recorded_at, reverse=True)
    return min((each.result for each in newest_first), key=lambda result: in_order.index(result.worked_by))


def in_words(value: Any, unit: str | None = None) -> str:
    """A value as it stands in a text, in the words and with the digits that the course's tables use.

    ``unit`` is that of a number without one.

    Example:
        >>> in_words(0.0123, "s"), in_words(3), in_words(True), in_words(("flash", "math"))
        ('12.3 ms', '3', 'yes', 'flash and math')
    """
    if hasattr(value, "in_words"):
        return value.in_words(unit)
    if isinstance(value, Verdict):
        return WORDS[value]
    if isinstance(value, Interval):
        unit = unit or getattr(value.low, "unit", None)
        is_ratio = unit in (None, "ratio")
        return format_interval(value) if is_ratio else f"{in_words(value.low, unit)} to {in_words(value.high, unit)}"
    if isinstance(value, tuple | list):
        words = [in_words(each, unit) for each in value]
        return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words) or "none"
    if isinstance(value, Quantity):
        return value_text(float(value), unit or value.unit)
    if value is None or isinstance(value, str | bool | int | float):
        return value_text(value, unit)
    raise EvidenceError(f"a whole {type(value).__name__} does not fit into a text: name the case or the number of it")
