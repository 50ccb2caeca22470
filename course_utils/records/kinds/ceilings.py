"""The limits of one machine."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.measurement import WORK_UNITS
from course_utils.records.result import Finding, Reading, Result, built, compact, tuples
from course_utils.show.formats import format_rate, format_seconds
from course_utils.show.tables import Column, Grid, Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Ceiling:
    """One limit of a machine, from raw samples.

    Attributes:
        name: for example ``copy`` or ``matmul bfloat16``.
        unit: ``B/s``, ``FLOP/s`` or ``s``.
        work: bytes or operations of one sample; 1 for a latency.
        samples_s: seconds of each sample, for one repetition of the work.
    """

    name: str
    unit: str
    work: float
    samples_s: tuple[float, ...]

    @property
    def value(self) -> float:
        """The limit: the best rate seen, or the median latency in seconds."""
        return statistics.median(self.samples_s) if self.unit == "s" else self.work / min(self.samples_s)

    @property
    def samples(self) -> list[float]:
        """Every sample in the unit of the value: seconds, or work per second."""
        return list(self.samples_s) if self.unit == "s" else [self.work / sample for sample in self.samples_s]

    @property
    def limits(self) -> str | None:
        """Which kind of work it limits, ``bytes`` or ``flops``; None for a latency."""
        return next((of for of, unit in WORK_UNITS.items() if unit == self.unit), None)

    def text(self, value: float) -> str:
        """A value with the ceiling's unit."""
        return format_seconds(value) if self.unit == "s" else format_rate(value, self.unit)

    def in_words(self, unit: str | None = None) -> str:
        """The limit with its unit."""
        return self.text(self.value)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The ceiling from its dictionary."""
        result = built(cls, tuples(record, ("samples_s",)))
        if not result.samples_s or min(result.samples_s) <= 0:
            raise ValueError(f"{result.name!r} has no samples, or samples that are not positive")
        return result


@dataclass(frozen=True, repr=False)
class Ceilings(Result):
    """The limits of one machine: what any program can reach at best.

    Attributes:
        entries: the ceilings, in the order in which they are shown.
        environment: machine and software.
        name: the record's name, ``lesson/experiment``.
        parameters: problem sizes.
        notes: what a reader must know, in words.
    """

    kind: ClassVar[str] = "ceilings"

    entries: tuple[Ceiling, ...]
    environment: Environment
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Ceiling:
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise KeyError(f"no ceiling {name!r} on this machine; there are: {', '.join(e.name for e in self.entries)}")

    def __iter__(self) -> Iterator[Ceiling]:
        return iter(self.entries)

    def sheet(self) -> Sheet:
        """The limits, one a row, with the range of their samples."""
        entries = self.entries
        spread = tuple(f"{e.text(min(e.samples))} to {e.text(max(e.samples))}" for e in entries)
        table = Grid(
            self.titled(f"limits of {self.environment.device_name}"),
            (
                Column("limit", tuple(entry.name for entry in entries), numeric=False),
                Column("value", tuple(entry.in_words() for entry in entries)),
                Column("samples from", spread),
                Column("samples", tuple(str(len(entry.samples_s)) for entry in entries)),
            ),
        )
        how = "Rates are the best that was seen, latencies the median."
        return Sheet((table,), self.notes, (how, self.environment.where))

    def readings(self) -> Iterator[Reading]:
        """Every limit."""
        for entry in self.entries:
            yield Reading(entry.name, entry.value, entry.in_words(), entry.unit)

    def findings(self) -> Iterator[Finding]:
        """Every limit."""
        for entry in self.entries:
            yield Finding(entry.name, entry.in_words())

    def plot(self, ax: Any = None) -> Figure:
        """Draw each limit as a bar, with every sample; see :meth:`Result.plot`."""
        from course_utils.show.figures import ceilings_figure

        return ceilings_figure(self, ax)

    def to_record(self) -> dict[str, Any]:
        """The ceilings as plain JSON types."""
        return compact(
            {
                "entries": [dataclasses.asdict(entry) for entry in self.entries],
                "environment": self.environment.to_record(),
                "name": self.name,
                "parameters": self.parameters,
                "notes": self.notes,
            }
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The ceilings from :meth:`to_record`'s dictionary."""
        values = tuples(record, ("notes",))
        values["entries"] = tuple(Ceiling.from_record(entry) for entry in record["entries"])
        values["environment"] = Environment.from_record(record["environment"])
        return built(cls, values)
