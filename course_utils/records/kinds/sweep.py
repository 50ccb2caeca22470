"""The same comparison over a range of one parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from course_utils.records.kinds.comparison import Case, Comparison
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.paired import Verdict
from course_utils.records.result import Finding, Reading, Result, built, compact, tuples
from course_utils.records.verdicts import sweep_summary, verdict_words
from course_utils.show.formats import format_interval, format_percent, format_ratio, format_seconds
from course_utils.show.tables import Column, Sheet, facts, split

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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

    def sheet(self) -> Sheet:
        """A row for each point and case; of two cases there is one row, which tells the baseline's time as well."""
        if not self.points:
            nothing = facts(self.titled(f"sweep over {self.over}"), [("points", "none was measured")])
            return Sheet((nothing,), self.notes, (self.environment.where,))
        first = self.points[0].comparison
        key, core, rates = self._columns(first.labels)
        who = f"{first.labels[1]} " if len(first.labels) == 2 else ""
        caption = self.titled(f"median time per call over {self.over}, {who}relative to {first.baseline}")
        tables = split(caption, "Rates", key, core, rates)
        return Sheet(tuple(tables), self._lines(), (first.how, self.environment.where))

    def _columns(self, labels: Sequence[str]) -> tuple[Column, list[Column], list[Column]]:
        """The points, what is said of each, and rates. Of two cases there is one row, with the baseline in columns."""
        two = len(labels) == 2
        rows = [(p.value, case) for p in self.points for case in p.comparison if not (two and case.is_baseline)]

        def column(header: str, cell: Callable[[Case], str], numeric: bool = True) -> Column:
            return Column(header, tuple(cell(case) for _, case in rows), numeric)

        def noise(case: Case) -> str:
            told = case.comparison.noise.bounded and (two or case.is_baseline)
            return f"±{format_percent(case.comparison.noise_floor - 1)}" if told else ""

        core = [] if two else [column("case", lambda case: case.label, numeric=False)]
        core.append(column("verdict", verdict_words, numeric=False))
        if two:
            core.append(column(labels[0], lambda case: format_seconds(case.comparison.cases[0].median_s)))
        core += [
            column(labels[1] if two else "time per call", lambda case: format_seconds(case.median_s)),
            column("relative time", lambda case: "1" if case.is_baseline else format_ratio(case.ratio)),
            column("95% interval", lambda case: "" if case.is_baseline else format_interval(case.interval)),
            column("noise (A/A)", noise),
        ]
        sides = [(f", {label}", partial(_side, number)) for number, label in enumerate(labels)] if two else [("", _own)]
        rates = [column(f"rate{of}", lambda case, side=side: _rate(side(case))) for of, side in sides]
        rates += [
            column(f"share of ceiling{of}", lambda case, side=side: case.comparison.share_of_ceiling(side(case)))
            for of, side in sides
        ]
        return Column(self.over, tuple(str(value) for value, _ in rows)), core, rates

    def _lines(self) -> tuple[str, ...]:
        """What a reader must know."""
        lines = [f"{sweep_summary(self, label)}." for label in self.points[0].comparison.labels[1:]]
        for point in self.points:
            for case in point.comparison:
                if case.verdict is Verdict.UNCLEAR:
                    lines.append(f"{self.over} {point.value}, {case.label}: {case.words}.")
        if self.interrupted:
            lines.append(f"Interrupted after {self.over} {self.values[-1]}.")
        of_points = dict.fromkeys(note for point in self.points for note in point.comparison.notes)
        return (*lines, *self.notes, *of_points)

    def readings(self) -> Iterator[Reading]:
        """Those of the comparison at every point."""
        for point in self.points:
            for reading in point.comparison.readings():
                yield dataclasses.replace(reading, label=f"{self.over} {point.value}: {reading.label}")

    def findings(self) -> Iterator[Finding]:
        """Those of the comparison at every point."""
        for point in self.points:
            for finding in point.comparison.findings():
                yield dataclasses.replace(finding, label=f"{finding.label}, {self.over} {point.value}")

    def measurements(self) -> Iterator[tuple[tuple[str, Any], Comparison, Measurement]]:
        """Every case's times at every point."""
        for point in self.points:
            for case in point.comparison.cases:
                yield (self.over, point.value), point.comparison, case

    def plot(self, ax: Any = None) -> Figure:
        """Draw times or rates over the parameter, and the relative times under them; see :meth:`Result.plot`.

        With ``ax``, only the times or rates are drawn.
        """
        from course_utils.show.figures import sweep_figure

        return sweep_figure(self, ax)

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


def _side(number: int, case: Case) -> Measurement:
    """The times of the n-th case beside a case."""
    return case.comparison.cases[number]


def _own(case: Case) -> Measurement:
    return case.measurement


def _rate(measurement: Measurement) -> str:
    return measurement.rate_text("bytes") or measurement.rate_text("flops")
