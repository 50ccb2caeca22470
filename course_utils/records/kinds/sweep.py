"""The same comparison over a range of one parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.environment import Environment
from course_utils.records.result import Result, built, compact, tuples


@dataclass(frozen=True)
class SweepPoint:
    """One point of a sweep: the value of the parameter that varies, and the comparison there."""

    value: Any
    comparison: Comparison


@dataclass(frozen=True, repr=False)
class Sweep(Result):
    """The same comparison over a range of one parameter.

    Attributes:
        over: name of the parameter that varies.
        points: a comparison for each value, in order.
        environment: machine and software.
        name: the record's name, ``lesson/experiment``.
        parameters: problem sizes and settings that do not vary.
        interrupted: whether it was stopped before the last value.
        notes: what a reader must know, in words.
    """

    kind: ClassVar[str] = "sweep"

    over: str
    points: tuple[SweepPoint, ...]
    environment: Environment
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    notes: tuple[str, ...] = ()

    def __getitem__(self, value: Any) -> Comparison:
        for point in self.points:
            if point.value == value:
                return point.comparison
        raise KeyError(f"no point {self.over}={value!r} in this sweep; there are: {', '.join(map(str, self.values))}")

    def __iter__(self) -> Iterator[SweepPoint]:
        return iter(self.points)

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of the parameter that was varied."""
        return tuple(point.value for point in self.points)

    def first(self, label: str, verdict: str) -> Any | None:
        """The first value at which a case gets a verdict.

        Args:
            label: the case.
            verdict: ``FASTER``, ``SLOWER``, ``SAME`` or ``UNCLEAR``.

        Returns:
            The value; None if no point has that verdict.
        """
        return next((p.value for p in self.points if p.comparison[label].verdict == verdict), None)

    def to_record(self) -> dict[str, Any]:
        """The sweep as plain JSON types, raw samples included."""
        points = []
        for point in self.points:
            record = point.comparison.to_record()
            del record["environment"]  # the sweep has it once
            points.append({"value": point.value, "comparison": record})
        return compact(
            {
                "over": self.over,
                "points": points,
                "environment": self.environment.to_record(),
                "name": self.name,
                "parameters": self.parameters,
                "interrupted": self.interrupted,
                "notes": self.notes,
            }
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The sweep from :meth:`to_record`'s dictionary."""
        values = tuples(record, ("notes",))
        values["environment"] = Environment.from_record(record["environment"])
        values["points"] = tuple(
            SweepPoint(
                point["value"],
                Comparison.from_record({**point["comparison"], "environment": record["environment"]}),
            )
            for point in record["points"]
        )
        return built(cls, values)
