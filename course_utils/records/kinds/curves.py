"""Values over the course of a run, such as losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from course_utils.records.kinds.environment import Environment
from course_utils.records.result import Finding, Reading, Result, built, compact, fields_of, tuples
from course_utils.show.formats import value_text
from course_utils.show.tables import Column, Grid, Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Curve:
    """One line of :class:`Curves`.

    Attributes:
        label: what it shows.
        x: where it was read off, ascending.
        y: what was read off there; None for a value that is not finite.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]

    @property
    def final(self) -> float | None:
        """The last value; None if it is not finite."""
        return self.y[-1]

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The curve from its dictionary."""
        result = built(cls, tuples(record, ("x", "y")))
        if not result.x or len(result.x) != len(result.y):
            raise ValueError(f"{result.label!r} has no points, or other numbers of x and of y")
        return result


@dataclass(frozen=True, repr=False)
class Curves(Result):
    """Values that change over the course of a run, such as the loss over the steps of a training.

    Attributes:
        curves: the lines.
        x_label: what x is.
        y_label: what y is, with its unit.
        environment: machine and software.
        name: the record's name, ``lesson/experiment``.
        parameters: problem sizes and settings.
        notes: what a reader must know, in words.
    """

    kind: ClassVar[str] = "curves"

    curves: tuple[Curve, ...]
    x_label: str
    y_label: str
    environment: Environment
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """What the lines are called."""
        return tuple(curve.label for curve in self.curves)

    def __getitem__(self, label: str) -> Curve:
        for curve in self.curves:
            if curve.label == label:
                return curve
        raise KeyError(f"no curve {label!r}; there are: {', '.join(self.labels)}")

    def __iter__(self) -> Iterator[Curve]:
        return iter(self.curves)

    def sheet(self) -> Sheet:
        """Where each line begins, how low it gets, and where it ends."""
        last_x = sorted({curve.x[-1] for curve in self})
        last = f"last, at {self.x_label} {last_x[0]:g}" if len(last_x) == 1 else "last"
        lowest = [min((value for value in curve.y if value is not None), default=None) for curve in self]
        table = Grid(
            self.titled(f"{self.y_label} by {self.x_label}"),
            (
                Column("", self.labels, numeric=False),
                Column("points", tuple(str(len(curve.x)) for curve in self)),
                Column("first", tuple(_number(curve.y[0]) for curve in self)),
                Column("lowest", tuple(map(_number, lowest))),
                Column(last, tuple(_number(curve.final) for curve in self)),
            ),
        )
        gaps = [curve.label for curve in self if None in curve.y]
        lines = [f"Some values of {', '.join(gaps)} are not finite: the line has gaps there."] if gaps else []
        return Sheet((table,), (*lines, *self.notes), (self.environment.where,))

    def readings(self) -> Iterator[Reading]:
        """Every line, with its points."""
        for curve in self:
            words = f"ends at {value_text(curve.final)} ({len(curve.x)} points)"
            points = dict(zip(curve.x, curve.y, strict=True))
            yield Reading(curve.label, None, words, points=points)

    def findings(self) -> Iterator[Finding]:
        """Where each line ends."""
        for curve in self:
            yield Finding(curve.label, f"{value_text(curve.final)} at {self.x_label} {curve.x[-1]:g}")

    def plot(self, *, log_y: bool = False, ax: Any = None) -> Figure:
        """Draw all lines into one panel.

        Args:
            log_y: whether y is logarithmic; values that are not positive are left out then.
            ax: a matplotlib axes to draw into; by default a new figure with machine and date under it.

        Returns:
            The figure. It shows itself in a notebook; ``.savefig(path)`` writes it.
        """
        from course_utils.show.table_figures import curves_figure

        return curves_figure(self, log_y=log_y, ax=ax)

    def to_record(self) -> dict[str, Any]:
        """The curves as plain JSON types."""
        record = {**fields_of(self), "environment": self.environment.to_record()}
        record["curves"] = [dataclasses.asdict(curve) for curve in self.curves]
        return compact(record)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The curves from :meth:`to_record`'s dictionary."""
        values = tuples(record, ("notes",))
        values["curves"] = tuple(Curve.from_record(curve) for curve in record["curves"])
        values["environment"] = Environment.from_record(record["environment"])
        result = built(cls, values)
        if not result.curves or len(set(result.labels)) < len(result.curves):
            raise ValueError("there is at least one curve, and each has a name of its own")
        return result


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
