"""What all results share: how they show themselves, how they become records, and the registry of their kinds."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from course_utils.records.paired import PRACTICAL, Interval
from course_utils.show import tables
from course_utils.show.formats import is_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from course_utils.records.kinds.comparison import Comparison
    from course_utils.records.kinds.measurement import Measurement
    from course_utils.show.tables import Sheet


T = TypeVar("T")


class NothingToDrawError(ValueError):
    """A result holds no numbers that a figure could show."""


@dataclass(frozen=True)
class Reading:
    """One thing that a result says, in values that can be counted and set against another run's.

    Attributes:
        label: what it is about; no two readings of a result share it.
        value: a number, text or truth value; of a case its ratio to the baseline; None where no one value tells all.
        words: the value as text, with its unit and its interval.
        unit: of a number without an interval: a key of :data:`course_utils.show.formats.VALUE_FORMATS`.
        verdict: FASTER, SLOWER, SAME or UNCLEAR; empty where nothing is compared.
        interval: 99% interval of a ratio or of a median time.
        floor: factor up to which the run's A/A control takes ratios for noise, infinite if it is too short to say; 1
            where nothing is compared.
        practical: relative difference below which nobody cares.
        points: of a curve: x to y.
    """

    label: str
    value: float | str | bool | None
    words: str
    unit: str | None = None
    verdict: str = ""
    interval: Interval | None = None
    floor: float = 1.0
    practical: float = PRACTICAL
    points: Mapping[float, float | None] | None = None

    @property
    def number(self) -> float | None:
        """The value, if it is a number."""
        return float(self.value) if is_number(self.value) else None


@dataclass(frozen=True)
class Finding:
    """One thing that a result says, in a sentence.

    Attributes:
        label: what it is about.
        words: the sentence, without the verdict that may come first.
        detail: what is behind it.
        verdict: FASTER, SLOWER, SAME or UNCLEAR; empty for a result without a verdict.
        ratio: a case's time over the baseline's, with its 95% interval: low, middle, high.
    """

    label: str
    words: str
    detail: str = ""
    verdict: str = ""
    ratio: tuple[float, float, float] | None = None


def compact(value: Any) -> Any:
    """Make a value fit for a record: six significant digits are far below any timer's noise and keep files small."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, tuple | list):
        return [compact(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): compact(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | str):
        return value
    # Parameters may be numpy's numbers, or torch's dtypes and devices.
    return compact(value.tolist()) if hasattr(value, "tolist") else str(value)


def fields_of(result: Any) -> dict[str, Any]:
    """Field names and values, nested results as they are."""
    return {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value from a file is of the type that a field is declared with."""
    inner = typing.get_args(hint)
    if hint is Any:
        return True
    if typing.get_origin(hint) is types.UnionType:
        return any(_fits(value, one) for one in inner)
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, typing.get_origin(hint) or hint)


def built(cls: type[T], values: Mapping[str, Any]) -> T:
    """Make a result from a record's values.

    Raises:
        TypeError: if a field is missing, unknown, or of another type than it is declared with.
    """
    result = cls(**values)
    for f in dataclasses.fields(cls):
        if not _fits(getattr(result, f.name), _hints(cls)[f.name]):
            raise TypeError(f"{cls.__name__}.{f.name} cannot be {str(values[f.name])[:60]!r}")
    return result


def tuples(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The values with the lists of these names as tuples."""
    return {key: tuple(value) if key in names else value for key, value in values.items()}


def built_of(cls: type[T], row: Sequence[Any]) -> T:
    """Make a result from a row of its fields' values."""
    return built(cls, dict(zip((f.name for f in dataclasses.fields(cls)), row, strict=True)))


class Result:
    """What all results share. A kind of result is a subclass, in a module of its own in ``records/kinds``.

    A kind has to say what it shows (:meth:`sheet`). What it can be compared by, told in a sentence, or drawn as is its
    own choice: nothing, by default.
    """

    kind: ClassVar[str]
    name: str | None

    def sheet(self) -> Sheet:
        """The tables and lines that show the result, as text and as HTML."""
        raise NotImplementedError

    def readings(self) -> Iterator[Reading]:
        """Yield what the result says, in values that can be counted and set against another run's.

        Baselines are left out: every case is seen against its own.

        Example:
            >>> from course_utils import recorded
            >>> next(recorded("measuring/known_answers").readings()).label
            'the same product, against product'
        """
        return iter(())

    def findings(self) -> Iterator[Finding]:
        """Yield what the result says, in sentences."""
        return iter(())

    def measurements(self) -> Iterator[tuple[tuple[str, Any] | None, Comparison | None, Measurement]]:
        """Yield raw times: the point of the sweep (name and value), the comparison that they are part of, the times."""
        return iter(())

    def plot(self, ax: Any = None) -> Figure:
        """Draw the result.

        Args:
            ax: a matplotlib axes to draw into; by default a new figure with machine and date under it.

        Returns:
            The figure. It shows itself in a notebook; ``.savefig(path)`` writes it.

        Raises:
            NothingToDrawError: if there is nothing to draw.
        """
        raise NothingToDrawError(f"a result of kind {self.kind} has nothing to draw: show it as a table instead")

    def titled(self, words: str) -> str:
        """The words as a title: after the record's name, if there is one."""
        return f"{self.name}: {words}" if self.name else words

    def to_record(self) -> dict[str, Any]:
        """The result as plain JSON types, raw samples included."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return tables.text(self.sheet())

    def _repr_html_(self) -> str:
        return tables.html(self.sheet())
