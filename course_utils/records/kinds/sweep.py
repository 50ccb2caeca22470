"""The same comparison over a range of one parameter."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from course_utils.records import paired
from course_utils.records.kinds.comparison import Case, Comparison
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.paired import Verdict
from course_utils.records.result import Fact, NothingToDrawError, Result, by_name
from course_utils.records.verdicts import sweep_summary, verdict_words
from course_utils.show.formats import (
    format_interval,
    format_percent,
    format_ratio,
    format_seconds,
    is_number,
)
from course_utils.show.tables import Column, Sheet, named_values, split

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = {Verdict.FASTER: "^", Verdict.SLOWER: "v", Verdict.SAME: "s", Verdict.UNCLEAR: "o"}


@dataclass(frozen=True)
class SweepPoint:
    """One point of a sweep: the value of the parameter that varies, and the comparison there."""

    value: Any
    comparison: Comparison


@dataclass(frozen=True, repr=False)
class Sweep(Result):
    """The same comparison over a range of one parameter, which is called ``over``."""

    kind: ClassVar[str] = "sweep"

    over: str
    points: tuple[SweepPoint, ...]
    environment: Environment
    interrupted: bool = False

    def __getitem__(self, value: Any) -> Comparison:
        points = {point.value: point.comparison for point in self.points}
        return by_name(points, value, f"point {self.over}={value!r} in this sweep")

    def __iter__(self) -> Iterator[SweepPoint]:
        return iter(self.points)

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of the parameter that was varied."""
        return tuple(point.value for point in self.points)

    def first(self, label: str, verdict: str) -> Any | None:
        """The first value at which a case gets a verdict."""
        return next((p.value for p in self.points if p.comparison[label].verdict == verdict), None)

    def sheet(self) -> Sheet:
        """A row for each point and case; of two cases there is one row, which tells the baseline's time as well."""
        if not self.points:
            nothing = named_values(self.titled(f"sweep over {self.over}"), [("points", "none was measured")])
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
            is_known = case.comparison.noise.bounded and (two or case.is_baseline)
            return f"±{format_percent(case.comparison.noise_floor - 1)}" if is_known else ""

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
        sides = [(f", {label}", i) for i, label in enumerate(labels)] if two else [("", None)]

        def timed(case: Case, side: int | None) -> Measurement:
            return case.measurement if side is None else case.comparison.cases[side]

        rates = [column(f"rate{of}", lambda case, side=side: _rate(timed(case, side))) for of, side in sides]
        rates += [
            column(f"share of ceiling{of}", lambda case, side=side: case.comparison.share_of_ceiling(timed(case, side)))
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

    def facts(self) -> Iterator[Fact]:
        """Those of the comparison at every point."""
        for point in self.points:
            for fact in point.comparison.facts():
                yield dataclasses.replace(fact, label=f"{self.over} {point.value}: {fact.label}")

    def measurements(self) -> Iterator[tuple[tuple[str, Any], Comparison, Measurement]]:
        """Every case's times at every point."""
        for point in self.points:
            for case in point.comparison.cases:
                yield (self.over, point.value), point.comparison, case

    def plot(self) -> Figure:
        """Draw how fast each case is relative to the baseline, over the parameter: up is faster.

        See :meth:`Result.plot`.
        """
        from course_utils.show import canvas

        if not self.points:
            raise NothingToDrawError("this sweep holds no point: nothing was measured that could be drawn")
        first = self.points[0].comparison
        with canvas.style():
            key = f"bars: {paired.DECISION_CONFIDENCE:.0%} intervals · grey: noise · ■ the same · ○ too close to call"
            title = "; ".join(sweep_summary(self, label, brief=True) for label in first.labels[1:])
            fig = canvas.titled_figure(title, 3.5, key, self.environment.caption)
            ax = fig.subplots()
            self._draw_noise(ax)
            ends = {first.baseline: (1.0, canvas.BASELINE)}
            speeds = [1.0]
            for number, label in enumerate(first.labels[1:]):
                cases = [point.comparison[label] for point in self.points]
                speeds += _draw_curve(ax, cases, number, len(first.labels) - 1, joined=self._ordered)
                ends[label] = (cases[-1].speedup, canvas.CURVES[number % len(canvas.CURVES)][0])
            canvas.speed_axis(ax, speeds)
            self._name_points(ax)
            canvas.name_sides(ax, f"▲ faster than {first.baseline}", "▼ slower")
            canvas.name_ends(ax, ends)
            fig.alt = self._alt
            return fig

    @property
    def _ordered(self) -> bool:
        """Whether the values are numbers: a line from point to point means something, between two names it does not."""
        return all(map(is_number, self.values))

    @property
    def _alt(self) -> str:
        parts = []
        for point in self.points:
            words = "; ".join(f"{case.label} {verdict_words(case)}" for case in point.comparison.others)
            parts.append(f"{self.over} {point.value}: {words}")
        baseline = self.points[0].comparison.baseline
        return f"Speed relative to {baseline} over {self.over}. {'. '.join(parts)}. {self.environment.caption}."

    def _name_points(self, ax: Axes) -> None:
        """Under every point its value and, since speeds are relative to it, the time that the baseline takes there."""
        from course_utils.show import canvas

        count = len(self.points)
        names, step = [], 1 if not self._ordered else math.ceil(count / 7)
        for point in self.points:
            value = canvas.plain_number(point.value) if self._ordered else str(point.value)
            time = format_seconds(point.comparison.cases[0].median_s)
            names.append(f"{textwrap.fill(value, max(9, 52 // count), break_long_words=False)}\n{time}")
        ax.set_xlim(-0.5, count - 0.5)
        ax.set_xticks(range(0, count, step), names[::step])
        ax.set_xlabel(f'{self.over}, and the time per call of "{self.points[0].comparison.baseline}"')

    def _draw_noise(self, ax: Axes) -> None:
        """What the baseline against itself took for a difference at each point, and the baseline's own line."""
        for x, point in enumerate(self.points):
            if math.isfinite(floor := point.comparison.noise_floor):
                ax.fill_between([x - 0.5, x + 0.5], 1 / floor, floor, color="#E4E4E4", lw=0, zorder=0)
        ax.axhline(1.0, color="#444444", lw=1, zorder=1)

    @classmethod
    def to_file(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The sweep has the environment once, not at each point."""
        for point in values["points"]:
            del point["comparison"]["environment"]
        return values

    @classmethod
    def from_file(cls, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Each point's comparison has the sweep's environment."""
        here = {"environment": record["environment"]}
        points = [{**point, "comparison": {**point["comparison"], **here}} for point in record["points"]]
        return {**record, "points": points}


def _rate(measurement: Measurement) -> str:
    return measurement.rate_text("bytes") or measurement.rate_text("flops")


def _draw_curve(ax: Axes, cases: Sequence[Case], number: int, of: int, joined: bool) -> list[float]:
    """One case's speeds, beside those of the others, so that none hides another; returns how far they reach.

    Over names there is no line from point to point, but one from the baseline to each mark.
    """
    from course_utils.show import canvas

    colour, dash = canvas.CURVES[number % len(canvas.CURVES)]
    at = [x + 0.09 * (number - (of - 1) / 2) for x in range(len(cases))]
    line = {"color": colour, "ls": dash, "zorder": 2}
    if joined:
        # A later line is thinner and broken: where two coincide, both are seen.
        ax.plot(at, [case.speedup for case in cases], lw=max(1.4, 3 - 0.8 * number), alpha=0.8, **line)
    else:
        ax.vlines(at, [1.0] * len(at), [case.speedup for case in cases], lw=1.6, **line)
    reach = [case.speedup for case in cases]
    for x, case in zip(at, cases, strict=True):
        if case.interval.bounded:
            reach += (ends := case.interval.inverse().ends)
            ax.plot([x, x], ends, color=case.colour, lw=4, alpha=0.5, solid_capstyle="butt", zorder=3)
        face = "white" if case.verdict is Verdict.UNCLEAR else case.colour
        ax.plot([x], [case.speedup], _MARKERS[case.verdict], ms=8, color=case.colour, mfc=face, zorder=4)
    return reach
