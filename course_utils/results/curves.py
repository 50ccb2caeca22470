"""Values over the course of a run, such as losses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from course_utils.results.environment import Environment
from course_utils.results.result import Fact, Result, by_name
from course_utils.show.cards import Axis, Bar, Card, Row
from course_utils.show.formats import listed, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A colour and a dash for each line: printed in grey, or seen with other eyes, the lines still differ.
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (1, 1)), (0, (4, 1, 1, 1, 1, 1)))


@dataclass(frozen=True)
class Curve:
    """One line of :class:`Curves`; x ascends, and y is None where it is not finite."""

    label: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]

    @property
    def final(self) -> float | None:
        """The last value; None if it is not finite."""
        return self.y[-1]


@dataclass(frozen=True, repr=False)
class Curves(Result):
    """Values that change over the course of a run, such as the loss over the steps of a training."""

    kind: ClassVar[str] = "curves"

    curves: tuple[Curve, ...]
    x_label: str
    y_label: str
    environment: Environment

    @property
    def labels(self) -> tuple[str, ...]:
        """What the lines are called."""
        return tuple(curve.label for curve in self.curves)

    def __getitem__(self, label: str) -> Curve:
        return by_name({curve.label: curve for curve in self}, label, f"curve {label!r}")

    def __iter__(self) -> Iterator[Curve]:
        return iter(self.curves)

    def card(self) -> Card:
        """Where each line begins and ends: a bar from the one to the other, with a dot at the end."""
        ends = [(curve, curve.y[0], curve.final) for curve in self]
        values = [value for _, *both in ends for value in both if value is not None]
        rows = tuple(
            Row(curve.label, "", f"{_number(first)} → {_number(last)}", "", _travel(first, last))
            for curve, first, last in ends
        )
        gaps = [curve.label for curve in self if None in curve.y]
        notes = [f"Some values of {listed(gaps)} are not finite: the line has gaps there."] if gaps else []
        low, high = min(values, default=0.0), max(values, default=1.0)
        ticks = ((low, _number(low)), (high, _number(high)))
        return Card(
            self.says or self._sentence(),
            rows,
            Axis(low, high, ticks) if low < high else None,
            heads=("", "from first to last"),
            notes=(*notes, *self.notes),
            **self.stamp(self.busy),
        )

    def _sentence(self) -> str:
        """Where the lines end, the lowest and the highest of several."""
        final = {curve.label: curve.final for curve in self if curve.final is not None}
        where = f"{self.y_label} at the last {self.x_label}"
        if not final:
            return f"{where}: not finite."
        low, high = min(final, key=final.__getitem__), max(final, key=final.__getitem__)
        if low == high:
            return f"{where}: {_number(final[low])} ({low})."
        return f"{where}: from {_number(final[low])} ({low}) to {_number(final[high])} ({high})."

    def facts(self) -> Iterator[Fact]:
        """Every line, with its points."""
        for curve in self:
            words = f"ends at {value_text(curve.final)} ({len(curve.x)} points)"
            sentence = f"{value_text(curve.final)} at {self.x_label} {curve.x[-1]:g}"
            yield Fact(curve.label, None, words, sentence, points=dict(zip(curve.x, curve.y, strict=True)))

    def plot(self) -> Figure:
        """Draw all lines into one panel."""
        from course_utils.show import canvas

        with canvas.style():
            longest_in = max(canvas.text_width_in(label, 9.5) for label in self.labels)
            columns = max(1, int((canvas.WIDTH_IN - 0.4) / (longest_in + 0.6)))
            rows = math.ceil(len(self.curves) / columns) if len(self.curves) > 1 else 0
            title = self.says or self.titled(f"{self.y_label} by {self.x_label}")
            fig = canvas.titled_figure(title, 3.7 + 0.24 * rows, self.caption)
            panel = fig.subplots()
            self._draw(panel)
            if rows:
                canvas.legend(fig, *panel.get_legend_handles_labels(), columns)
            ends = "; ".join(f"{c.label} from {value_text(c.y[0])} to {value_text(c.final)}" for c in self)
            fig.alt = f"{self.y_label} by {self.x_label}: {ends}. {self.caption}."
            return fig

    def _draw(self, ax: Axes) -> None:
        from course_utils.show import canvas

        values = []
        thickest = min(3.4, 1.8 + 0.5 * (len(self.curves) - 1))
        for i, curve in enumerate(self):
            y = [math.nan if v is None else v for v in curve.y]
            values += [v for v in y if not math.isnan(v)]
            # Black, blue, orange...: the first line is usually the reference. A later one is thinner and dashed and
            # lies on top, so that lines that coincide are all seen.
            look = {"ls": _DASHES[i % len(_DASHES)], "color": canvas.case_colour(i), "lw": max(1.3, thickest - 0.5 * i)}
            marker = "o" if len(curve.x) < 3 else ""
            ax.plot(curve.x, y, marker=marker, label=curve.label, zorder=2 + 0.01 * i, **look)
        if values:
            canvas.scale_axis(ax, "y", values, count=6)
        whole = all(float(x).is_integer() for curve in self for x in curve.x)
        ax.xaxis.get_major_locator().set_params(integer=whole)
        ax.set_xlabel(self.x_label)
        ax.set_ylabel(self.y_label)
        canvas.grid(ax, "both")


def _travel(first: float | None, last: float | None) -> Bar | None:
    """From the first value to the last, as far as they are finite."""
    if last is None:
        return None
    return Bar(min(first, last), max(first, last), last) if first is not None else Bar(dot=last)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
