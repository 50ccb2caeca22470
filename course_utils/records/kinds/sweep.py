"""The same comparison over a range of one parameter."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from course_utils.records.kinds.ceilings import Ceiling
from course_utils.records.kinds.comparison import NOISE_COLOUR, PRACTICAL_COLOUR, Case, Comparison
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.paired import SHOWN_CONFIDENCE, Verdict, median_interval
from course_utils.records.result import Fact, NothingToDrawError, Result, by_name
from course_utils.records.verdicts import sweep_summary, verdict_words
from course_utils.show.formats import (
    axis_unit,
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

_MARKERS = {Verdict.FASTER: "v", Verdict.SLOWER: "^", Verdict.SAME: "s", Verdict.UNCLEAR: "o"}


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
        """Draw times or rates over the parameter, and the relative times under them; see :meth:`Result.plot`."""
        from course_utils.show import canvas

        if not self.points:
            raise NothingToDrawError("this sweep holds no point: nothing was measured that could be drawn")
        first = self.points[0].comparison
        with canvas.style():
            summary = sweep_summary(self, first.labels[1])
            what = "rate" if self._work else "time per call"
            title = summary if len(first.labels) == 2 else f"{self.name or 'Sweep'}: {what} over {self.over}"
            rows = math.ceil((len(first.labels) + bool(self._work)) / 3)
            notes = (first.how, self.environment.caption)
            fig = canvas.titled_figure(title, 5.2 + 0.24 * rows, *notes)
            upper, lower = fig.subplots(2, 1, sharex=True, height_ratios=(2.1, 1.7))
            self._draw_values(upper)
            self._draw_ratios(lower)
            self._name_x(lower)
            upper.tick_params(axis="x", which="both", labelbottom=False)
            handles, names = upper.get_legend_handles_labels()
            canvas.legend(fig, handles, [canvas.wrapped(name, 32, most=1) for name in names], 3)
            canvas.legend(fig, *lower.get_legend_handles_labels(), 6, "lower")
            fig.alt = self._alt
            return fig

    @property
    def _ordered(self) -> bool:
        """Whether the values are numbers: a line from point to point means something, between two names it does not."""
        return all(map(is_number, self.values))

    @property
    def _work(self) -> str | None:
        """The kind of work whose rate is drawn: if every case has it, and there is a ceiling to compare with."""
        of = self._ceiling.limits if self._ceiling else None
        return of if of and all(getattr(m, of) is not None for _, _, m in self.measurements()) else None

    @property
    def _ceiling(self) -> Ceiling | None:
        return next((point.comparison.ceiling for point in self.points if point.comparison.ceiling), None)

    @property
    def _alt(self) -> str:
        parts = []
        for point in self.points:
            cases = point.comparison.others
            words = ((c.label, c.verdict if c.verdict is Verdict.UNCLEAR else verdict_words(c)) for c in cases)
            parts.append(f"{self.over} {point.value}: {'; '.join(map(' '.join, words))}")
        return f"Time per call and relative time over {self.over}. {'. '.join(parts)}. {self.environment.caption}."

    def _positions(self, case: int = 0) -> list[float]:
        """Where the points stand on the x axis. Over names the cases stand side by side, so that none hides another."""
        if self._ordered:
            return [float(value) for value in self.values]
        cases = len(self.points[0].comparison.labels)
        return [x + (0.12 * (case - (cases - 1) / 2) if case else 0.0) for x in range(len(self.values))]

    def _name_x(self, ax: Axes) -> None:
        """Scale, ticks and name of the x axis."""
        from course_utils.show import canvas

        at = self._positions()
        if self._ordered:
            shown = at[:: math.ceil(len(at) / 9)]
            canvas.scale_axis(ax, "x", at, log=min(at) > 0 and canvas.span(at) >= 8, pad=0.04)
            ax.set_xticks(shown, [canvas.plain_number(x) for x in shown])
        else:
            ax.set_xlim(-0.5, len(at) - 0.5)
            ax.set_xticks(at, [canvas.wrapped(str(value), max(8, 80 // len(at))) for value in self.values])
        ax.set_xlabel(self.over)

    def _draw_values(self, ax: Axes) -> None:
        """Medians of times or rates, every sample faintly, and the interval of each median as a band."""
        from course_utils.show import canvas

        what = "rate" if self._work else "time per call"
        work, ceiling, labels = self._work, self._ceiling, self.points[0].comparison.labels
        samples = [[_values(point.comparison[label].measurement, work) for point in self.points] for label in labels]
        flat = [value for series in samples for point in series for value in point]
        scale, unit = axis_unit(ceiling.unit if work else "s", statistics.median(flat))
        for i, (label, series) in enumerate(zip(labels, samples, strict=True)):
            colour, at = canvas.case_colour(i), self._positions(i)
            for x, point in zip(at, series, strict=True):
                ax.plot([x] * len(point), [v / scale for v in point], "o", ms=4, mew=0, color=colour, alpha=0.35)
            middles = [statistics.median(point) / scale for point in series]
            marker, line = "o" if i else "D", "-" if self._ordered else "none"
            ax.plot(at, middles, ls=line, marker=marker, ms=4, color=colour, lw=1.8, label=label, zorder=3)
            bands = [median_interval(point, SHOWN_CONFIDENCE) for point in series]
            if all(band.bounded for band in bands) and self._ordered:
                low, high = zip(*((band.low / scale, band.high / scale) for band in bands), strict=True)
                ax.fill_between(at, low, high, color=colour, alpha=0.25, lw=0, zorder=2.5)
        if work:
            flat.append(ceiling.value)
            ax.axhline(ceiling.value / scale, color="#000000", lw=1.2, ls="--", label=f"ceiling: {ceiling.name}")
        log = canvas.span(flat) > 10
        canvas.scale_axis(ax, "y", [value / scale for value in flat], log=log, count=6)
        ax.set_ylabel(f"{what} ({unit}{', log scale' if log else ''})")
        canvas.grid(ax, "both")

    def _draw_ratios(self, ax: Axes) -> None:
        """The ratio to the baseline over the parameter, with the noise of each point."""
        from course_utils.show import canvas

        at, comparisons = self._positions(), [point.comparison for point in self.points]
        for verdict, marker in _MARKERS.items():
            face = "white" if verdict is Verdict.UNCLEAR else None
            ax.plot([], [], marker, color="#333333", mfc=face, label=verdict.value)
        ends = [1.0]
        floors = [comparison.noise_floor for comparison in comparisons]
        if all(map(math.isfinite, floors)):
            ends += [*floors, *(1 / floor for floor in floors)]
            noise = {"color": NOISE_COLOUR, "alpha": 0.55, "lw": 0, "zorder": 0, "label": "noise (A/A)"}
            if self._ordered:
                ax.fill_between(at, [1 / floor for floor in floors], floors, **noise)
            else:
                ax.bar(at, [floor - 1 / floor for floor in floors], 0.8, [1 / floor for floor in floors], **noise)
        practical = comparisons[0].practical
        words = f"±{format_percent(practical)} does not matter"
        ax.axhspan(1 / (1 + practical), 1 + practical, color=PRACTICAL_COLOUR, alpha=0.7, lw=0, zorder=0.5, label=words)
        ax.axhline(1.0, color="#333333", lw=0.8, zorder=1)
        for i, label in enumerate(comparisons[0].labels[1:], start=1):
            ends += self._draw_case(ax, [comparison[label] for comparison in comparisons], i)
        canvas.scale_axis(ax, "y", ends, log=canvas.span(ends) > 3, count=6, pad=0.1)
        ax.set_ylabel("relative time\n(1 = baseline)")
        canvas.grid(ax, "both")

    def _draw_case(self, ax: Axes, cases: Sequence[Case], number: int) -> list[float]:
        """The ratios of one case; returns how far they and their intervals reach."""
        from course_utils.show import canvas

        colour, ends = canvas.case_colour(number), []
        if self._ordered:
            ax.plot(self._positions(), [case.ratio for case in cases], "-", color=colour, lw=1.2, alpha=0.7, zorder=2)
        for x, case in zip(self._positions(number), cases, strict=True):
            ends.append(case.ratio)
            if case.interval.bounded:
                ends += case.interval.ends
                ax.plot([x, x], case.interval.ends, color=colour, lw=3, solid_capstyle="butt", zorder=3)
            face = "white" if case.verdict is Verdict.UNCLEAR else colour
            ax.plot([x], [case.ratio], _MARKERS[case.verdict], ms=7, color=colour, mfc=face, zorder=4)
        return ends

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


def _values(measurement: Measurement, work: str | None) -> list[float]:
    """Every sample: seconds of a call, or a rate."""
    return [getattr(measurement, work) / second if work else second for second in measurement.elapsed_s]
