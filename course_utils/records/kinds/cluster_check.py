"""The simulated cluster beside real ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.table import Table
from course_utils.records.result import Fact, NothingToDrawError, Result
from course_utils.show.cards import Bar, Card, Row, Toned, amount_axis
from course_utils.show.formats import format_bytes, value_text
from course_utils.show.tables import Column, Sheet, split

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# What the memory of a rank is for. The last one is all that is none of the others.
CLUSTER_PARTS = ("weights", "gradients", "optimizer", "gathered", "activations")


@dataclass(frozen=True)
class MethodError:
    """How well the simulation met what was measured on real ranks, for one strategy."""

    strategy: str
    deviation: float  # the largest relative deviation, of any part at any point
    points: int  # how many points were measured
    ranks: int  # the most ranks among them
    parameters: int  # the most parameters that a model among them had

    @property
    def words(self) -> str:
        """The deviation, rounded up, and what it is drawn from."""
        bound = max(1, math.ceil(round(self.deviation * 1000, 6))) / 10
        return f"within {bound:.1f}% of {self.points} measured point{'s' if self.points > 1 else ''}"


@dataclass(frozen=True)
class CheckedPoint:
    """What was measured on real ranks, and what the simulation says of the same step."""

    strategy: str  # how the model was spread over the ranks
    ranks: int  # how many there were
    parameters: int  # of the model
    setting: str  # the step's settings, in words
    measured: Mapping[str, int]  # bytes of one rank, by part and for the ``peak``, as far as they were measured
    simulated: Mapping[str, int]  # the same from the simulation

    @property
    def deviation(self) -> float:
        """The largest relative deviation. A part of under 1% of what is largest counts as if it had 1%."""
        floor = 0.01 * max(self.measured.values())
        return max(abs(self.simulated[part] - size) / max(size, floor) for part, size in self.measured.items())


@dataclass(frozen=True, repr=False)
class ClusterCheck(Result):
    """Measured points beside simulated ones. Made by :func:`course_utils.ranks.cluster.check_cluster`."""

    kind: ClassVar[str] = "cluster_check"

    points: tuple[CheckedPoint, ...]
    environment: Environment
    worked_by: str = field(default="simulation", kw_only=True)

    def __post_init__(self) -> None:
        if not self.points or any(not p.measured or set(p.measured) - set(p.simulated) for p in self.points):
            raise ValueError("each checked point has measured sizes, and the same sizes simulated")

    @property
    def error(self) -> float:
        """The largest relative deviation of all."""
        return max(point.deviation for point in self.points)

    @property
    def errors(self) -> tuple[MethodError, ...]:
        """How well the method met the points of each strategy."""
        groups: dict[str, list[CheckedPoint]] = {}
        for point in self.points:
            groups.setdefault(point.strategy, []).append(point)
        return tuple(
            MethodError(
                strategy,
                max(point.deviation for point in group),
                len(group),
                max(point.ranks for point in group),
                max(point.parameters for point in group),
            )
            for strategy, group in groups.items()
        )

    def __iter__(self) -> Iterator[CheckedPoint]:
        return iter(self.points)

    def plot(self) -> Figure:
        """Draw the peak that was met worst, of each strategy on each number of ranks; see :meth:`Result.plot`."""
        points = [point for point in self.points if "peak" in point.measured]
        if not points:
            raise NothingToDrawError("no peak was measured: there is nothing to draw; look at the table")
        worst: dict[str, CheckedPoint] = {}
        for point in points:
            label = f"{point.strategy}, {point.ranks} ranks"
            worst[label] = max(worst.get(label, point), point, key=lambda point: point.deviation)
        columns = ("measured peak", "simulated peak")
        rows = tuple(
            (f"{label}, {point.setting}", point.measured["peak"], point.simulated["peak"])
            for label, point in worst.items()
        )
        units = dict.fromkeys(columns, "bytes")
        how = {"units": units, "name": self.name, "worked_by": self.worked_by}
        return Table(("", *columns), rows, self.environment, **how).plot(columns)

    def card(self) -> Card:
        """How far the simulation is off, in all and for each strategy."""
        errors = self.errors
        bound = MethodError("", self.error, len(self.points), 0, 0)
        rows = tuple(Row(e.strategy, "", f"{e.deviation:.2%} off", "", Bar(0.0, e.deviation)) for e in errors)
        return Card(
            self.says or ["The simulation is ", Toned(bound.words), "."],
            rows,
            amount_axis((e.deviation for e in errors), "{:.2%}".format),
            notes=self.notes,
            numbers=self._numbers(),
            **self.stamp(f"up to {max(e.ranks for e in errors)} ranks", self.busy),
        )

    def _numbers(self) -> Sheet:
        labels = [f"{p.strategy}, {p.ranks} rank{'s' if p.ranks > 1 else ''}, {p.setting}" for p in self.points]
        deviations = tuple(f"{point.deviation:.2%}" for point in self.points)
        tables = split(
            "Measured | simulated",
            "Its parts: measured | simulated",
            Column("", tuple(labels), numeric=False),
            (Column("largest deviation", deviations), self._sizes("peak")),
            tuple(map(self._sizes, CLUSTER_PARTS)),
        )
        return Sheet(tuple(tables), (), (self.where,))

    def _sizes(self, part: str) -> Column:
        cells = [
            f"{format_bytes(point.measured[part])} | {format_bytes(point.simulated[part])}"
            if part in point.measured
            else ""
            for point in self.points
        ]
        return Column(part, tuple(cells))

    def facts(self) -> Iterator[Fact]:
        """How well every strategy was met."""
        for error in self.errors:
            words = value_text(error.deviation, "relative")
            ranks = f"up to {error.ranks} ranks"
            label, row = f"{error.strategy}: off by", error.strategy
            yield Fact(label, error.deviation, words, error.words, ranks, row, unit="relative")
