"""The limits of one machine."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from course_utils.results.environment import Environment
from course_utils.results.measurement import WORK_UNITS
from course_utils.results.result import Fact, Result, by_name
from course_utils.show.cards import Card
from course_utils.show.formats import format_rate, format_seconds, listed
from course_utils.show.tables import Column, Grid


@dataclass(frozen=True)
class Ceiling:
    """One limit of a machine, from raw samples."""

    name: str
    unit: str  # ``B/s``, ``FLOP/s`` or ``s``
    work: float  # bytes or operations of one sample; 1 for a latency
    samples_s: tuple[float, ...]  # seconds of each sample, for one repetition of the work

    @property
    def value(self) -> float:
        """The limit: the best rate seen, or the median latency in seconds."""
        return statistics.median(self.samples_s) if self.unit == "s" else self.work / min(self.samples_s)

    @property
    def limits(self) -> str | None:
        """Which kind of work it limits, ``bytes`` or ``flops``; None for a latency."""
        return next((of for of, unit in WORK_UNITS.items() if unit == self.unit), None)

    def in_words(self, unit: str | None = None) -> str:
        """The limit with its unit."""
        return format_seconds(self.value) if self.unit == "s" else format_rate(self.value, self.unit)


@dataclass(frozen=True, repr=False)
class Ceilings(Result):
    """The limits of one machine: what any program can reach at best, in the order in which they are shown."""

    kind: ClassVar[str] = "ceilings"

    entries: tuple[Ceiling, ...]
    environment: Environment

    def __getitem__(self, name: str) -> Ceiling:
        return by_name({e.name: e for e in self.entries}, name, f"ceiling {name!r} on this machine")

    def __iter__(self) -> Iterator[Ceiling]:
        return iter(self.entries)

    def card(self) -> Card:
        """The limits, one a row."""
        limits = listed(f"{entry.name} {entry.in_words()}" for entry in self) if self.entries else "nothing measured"
        columns = (
            Column("limit", tuple(entry.name for entry in self), numeric=False),
            Column("value", tuple(entry.in_words() for entry in self)),
            Column("samples", tuple(str(len(entry.samples_s)) for entry in self)),
        )
        return Card(
            self.says or f"At best on {self.measured_on.device_name}: {limits}.",
            table=Grid("", columns),
            notes=self.notes,
            **self.stamp("rates: the best seen; latencies: the median", self.busy),
        )

    def facts(self) -> Iterator[Fact]:
        """Every limit."""
        return (Fact(entry.name, entry.value, entry.in_words(), unit=entry.unit) for entry in self)
