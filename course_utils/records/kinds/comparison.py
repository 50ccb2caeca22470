"""Cases timed side by side, round by round, with verdicts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from course_utils.records import paired
from course_utils.records.kinds.ceilings import Ceiling
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.measurement import (
    Measurement,
    bytes_text,
    launch_bound_line,
    rounds_and_calls,
    seconds_text,
)
from course_utils.records.paired import Interval, Verdict
from course_utils.records.result import Fact, Result, by_name
from course_utils.records.verdicts import (
    UNCLEAR,
    comparison_parts,
    headline,
    interval_words,
    unclear_parts,
    verdict_in_a_text,
    verdict_sentence,
    verdict_words,
)
from course_utils.show.cards import Bar, Card, Row, plain, speed_axis
from course_utils.show.formats import (
    axis_unit,
    format_interval,
    format_noise,
    format_percent,
    format_ratio,
    format_seconds,
    format_times,
)
from course_utils.show.tables import Column, Sheet, split

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONTROL_LABEL = "baseline again (A/A control)"
# Okabe and Ito's hues, dark enough for text on white. Words carry the verdict as well.
VERDICT_COLOURS = {
    Verdict.FASTER: "#00694D",
    Verdict.SLOWER: "#A34800",
    Verdict.SAME: "#005A8C",
    Verdict.UNCLEAR: "#555555",
}
BASELINE_COLOUR, NOISE_COLOUR, PRACTICAL_COLOUR = "#444444", "#C9C9C9", "#F0E442"


@dataclass(frozen=True)
class Case:
    """One case of a comparison, seen against its baseline."""

    measurement: Measurement
    comparison: Comparison

    @property
    def label(self) -> str:
        """What the case is called."""
        return self.measurement.label

    @property
    def is_baseline(self) -> bool:
        """Whether this is the case that the others are compared with."""
        return self.label == self.comparison.baseline

    @property
    def log_ratios(self) -> tuple[float, ...]:
        """Per-round log of time over the baseline's; the baseline's own are those of the A/A control."""
        timed = self.comparison.control if self.is_baseline else self.measurement
        return tuple(paired.log_ratios(timed.elapsed_s, self.comparison.cases[0].elapsed_s))

    @property
    def ratio(self) -> float:
        """Median of the case's time over the baseline's, round by round: 0.5 takes half the time."""
        return math.exp(statistics.median(self.log_ratios))

    @property
    def speedup(self) -> float:
        """The baseline's time over the case's: 2 is twice as fast."""
        return 1 / self.ratio

    @property
    def interval(self) -> Interval:
        """The interval of :attr:`ratio` that the verdict rests on: the one that is shown."""
        return paired.ratio_interval(self.log_ratios, self.comparison.confidence)

    @property
    def verdict(self) -> Verdict:
        """FASTER, SLOWER, SAME or UNCLEAR; see :func:`paired.decide`. The baseline is SAME as itself."""
        if self.is_baseline:
            return Verdict.SAME
        return paired.decide(self.ratio, self.interval, self.comparison.noise, self.comparison.practical)

    @property
    def tone(self) -> str:
        """The verdict as a tone of a card; the baseline has none."""
        return "" if self.is_baseline else self.verdict.lower()

    @property
    def bar(self) -> Bar:
        """How fast it is, relative to the baseline, with its interval; the baseline's own is that of the noise."""
        low, high = self.interval.inverse().ends if self.interval.bounded else (None, None)
        return Bar(low, high, 1.0 if self.is_baseline else self.speedup)

    @property
    def colour(self) -> str:
        """What it is drawn in: the verdict's colour, grey for the baseline."""
        return BASELINE_COLOUR if self.is_baseline else VERDICT_COLOURS[self.verdict]

    @property
    def median_s(self) -> float:
        """Median time of one call, in seconds."""
        return self.measurement.median_s

    @property
    def break_even_calls(self) -> int | None:
        """Calls after which a dearer first call has paid for itself, against the baseline.

        None if the first call is not dearer, or if the case is not FASTER: then it never pays.
        """
        mine, base = self.measurement, self.comparison.cases[0]
        if self.verdict is not Verdict.FASTER or mine.first_call_s is None or base.first_call_s is None:
            return None
        extra = mine.first_call_s - base.first_call_s
        return math.ceil(extra / (base.median_s * (1 - self.ratio))) + 1 if extra > 0 else None

    @property
    def words(self) -> str:
        """The verdict as a sentence, with its interval."""
        return verdict_sentence(self)

    def in_words(self, unit: str | None = None) -> str:
        """The verdict inside a sentence that names the cases itself; see :func:`verdict_in_a_text`."""
        return verdict_in_a_text(self)

    def __repr__(self) -> str:
        return f"{self.label}: {self.words}"


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Cases timed side by side, round by round."""

    kind: ClassVar[str] = "comparison"

    cases: tuple[Measurement, ...]  # raw samples of each case; the first is the baseline
    control: Measurement  # the baseline's second timing in each round: the A/A control
    environment: Environment
    cache: str = "warm"  # ``warm`` or ``cold``: what the caches held before a call
    clock: str = "host clock"  # how ``elapsed_s`` was read, in words
    agreement: str = "not checked"  # how it was checked that the cases compute the same thing, in words
    practical: float = paired.PRACTICAL  # relative difference below which nobody cares
    planned_rounds: int = 0  # rounds that the pilot asked for; fewer were measured if it was interrupted
    spent_s: float = 0.0
    interrupted: bool = False
    ceiling: Ceiling | None = None  # the machine's limit that rates are shown against, if any
    # of the interval that decided: each look at the rounds spends a share of the 1% (`paired.looks`)
    confidence: float = paired.DECISION_CONFIDENCE

    def __post_init__(self) -> None:
        if len(set(self.labels)) < max(2, len(self.cases)):
            raise ValueError("a comparison has two cases or more, of different names")
        if {case.rounds for case in self.cases} != {self.rounds}:
            raise ValueError("the cases have different numbers of rounds")

    @property
    def baseline(self) -> str:
        """Label of the case that the others are compared with."""
        return self.cases[0].label

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of all cases, the baseline first."""
        return tuple(case.label for case in self.cases)

    @property
    def rounds(self) -> int:
        """Rounds that were measured."""
        return self.control.rounds

    @property
    def noise(self) -> Interval:
        """99% interval of the A/A control's ratio: differences inside it are noise."""
        return Case(self.cases[0], self).interval

    @property
    def noise_floor(self) -> float:
        """How far the A/A control strayed: 1.004 means that differences up to 0.4% could be noise."""
        return paired.noise_floor(self.noise)

    @property
    def others(self) -> list[Case]:
        """All cases but the baseline."""
        return [Case(case, self) for case in self.cases[1:]]

    @property
    def how(self) -> str:
        """How it was measured, in one line: rounds, calls, cache, clock, agreement."""
        agreement = self.agreement
        checked = agreement if agreement.startswith(("not ", "checked")) else f"checked: {agreement}"
        return " · ".join([rounds_and_calls(self.cases), f"{self.cache} cache", self.clock, checked])

    def __getitem__(self, label: str) -> Case:
        return by_name({case.label: case for case in self}, label, f"case {label!r} in this comparison")

    def __iter__(self) -> Iterator[Case]:
        return (Case(case, self) for case in self.cases)

    def card(self) -> Card:
        """Who is faster, by how much, how sure: a row a case, its bar the interval of its speed."""
        bars = {case.label: case.bar for case in self}
        behind = {case.label: case.bar for case in self.behind or ()}
        sentence, parts = comparison_parts(self), unclear_parts(self)
        unclear = "".join(map(plain, parts))
        is_cut = self.interrupted and self.rounds >= paired.MIN_ROUNDS  # fewer are unclear for that reason
        stopped = f"Interrupted after {self.rounds} of {self.planned_rounds} rounds." if is_cut else ""
        busy = "" if self.busy in unclear else self.busy.rstrip(".")
        return Card(
            sentence,
            tuple(
                Row(
                    case.label,
                    verdict_words(case),
                    format_seconds(case.median_s),
                    case.tone,
                    bars[case.label],
                    behind.get(case.label),
                )
                for case in self
            ),
            speed_axis(value for bar in (*bars.values(), *behind.values()) for value in bar.values),
            heads=("", "a call"),
            warning=" ".join(filter(None, ["" if sentence == parts else unclear, stopped])),
            notes=(*launch_bound_line(self.cases), *self.notes),
            provenance=self.provenance(format_noise(self.noise_floor), "bars: 99% sure", busy),
            numbers=self._numbers(),
            title=self.name or "",
        )

    def _numbers(self) -> Sheet:
        """A row a case, with its interval and what else a call costs; how it was decided and measured."""
        compared = [*self.others, Case(self.cases[0], self)]  # the baseline's own ratios are those of the A/A control
        words = {Verdict.UNCLEAR: UNCLEAR}
        verdicts = ("baseline", *(words.get(case.verdict, case.verdict.lower()) for case in self.others), "")
        core = [
            Column("verdict", verdicts, numeric=False),
            Column("time per call", tuple(format_seconds(m.median_s) for m in (*self.cases, self.control))),
            Column("relative", ("", *(format_times(case.ratio, tight=True) for case in compared))),
            Column("99% interval", ("", *map(interval_words, compared))),
        ]
        key = Column("case", (*self.labels, CONTROL_LABEL), numeric=False)
        tables = split(
            f"Median time per call, against {self.baseline}", "What else a call costs", key, core, self._costs()
        )
        return Sheet(tuple(tables), (), self._fine_print())

    def _costs(self) -> list[Column]:
        """What a call costs beside its time; no cell for the control."""

        def column(header: str, cell: Callable[[Measurement], str]) -> Column:
            return Column(header, (*map(cell, self.cases), ""))

        pays = tuple(f"{case.break_even_calls} calls" if case.break_even_calls else "" for case in self)
        return [
            column("first call", lambda m: seconds_text(m.first_call_s)),
            Column("pays off after", (*pays, "")),
            column("extra peak memory", lambda m: bytes_text(m.peak_allocated_bytes)),
            column("peak reserved", lambda m: bytes_text(m.peak_reserved_bytes)),
            column("host time (enqueue)", lambda m: seconds_text(m.enqueue_median_s)),
            column("device time", lambda m: seconds_text(m.device_median_s)),
            column("bandwidth", lambda m: m.rate_text("bytes")),
            column("compute", lambda m: m.rate_text("flops")),
            column("throughput", lambda m: m.rate_text("items")),
            column(f"share of {self.ceiling.name}" if self.ceiling else "", self.share_of_ceiling),
        ]

    def share_of_ceiling(self, measurement: Measurement) -> str:
        """A case's rate as a share of the machine's limit; empty where there is none."""
        of = self.ceiling.limits if self.ceiling else None
        rate = measurement.rate(of) if of else None
        return "" if rate is None else format_percent(rate / self.ceiling.value)

    def _fine_print(self) -> tuple[str, ...]:
        """How it was measured."""
        blocked = max(paired.block(case.log_ratios)[1] for case in self)
        alike = f"Neighbouring rounds were alike, so up to {blocked} were merged into one." if blocked > 1 else ""
        return tuple(filter(None, (alike, self.how, self.environment.where)))

    def facts(self) -> Iterator[Fact]:
        """Every case but the baseline, with its verdict."""
        base = self.cases[0]
        for case in self.others:
            interval, shown = case.interval, case.interval
            between = format_interval(interval) if interval.bounded and interval.low > 0 else "no interval"
            yield Fact(
                f"{case.label}, against {base.label}",
                case.ratio,
                f"{case.verdict} {format_ratio(case.ratio)} ({between})",
                case.words.partition(": ")[2],
                f"{format_seconds(case.median_s)}; {base.label}: {format_seconds(base.median_s)}",
                verdict=case.verdict,
                interval=interval,
                shown=shown if shown.bounded and shown.low > 0 else None,
                floor=self.noise_floor,
                practical=self.practical,
            )

    def measurements(self) -> Iterator[tuple[None, Comparison, Measurement]]:
        """Every case's times."""
        for case in self.cases:
            yield None, self, case

    def plot(self) -> Figure:
        """Draw every sample, and the relative times with their intervals; see :meth:`Result.plot`."""
        from course_utils.show import canvas

        with canvas.style():
            names = [*self.labels, CONTROL_LABEL]
            unclear = [f"{case.label}: {case.words}." for case in self.others if case.verdict is Verdict.UNCLEAR]
            stopped = f" · interrupted after {self.rounds} of {self.planned_rounds}" if self.interrupted else ""
            notes = (*unclear[:3], self.how + stopped, self.environment.caption)
            panels_in = len(names) * canvas.row_in(names, 0.44) + 1.15
            several = f"{self.name or 'Comparison'}: {len(self.others)} cases against {self.baseline}"
            title = several if len(self.others) > 1 else headline(self.others[0])
            fig = canvas.titled_figure(title, panels_in, *notes)
            left, right = fig.subplots(1, 2)
            self._draw_samples(left)
            canvas.name_rows(left, names)
            self._draw_ratios(right)
            self._draw_control(right)
            canvas.name_rows(right, [""] * len(names))
            for panel in (left, right):
                canvas.grid(panel, "x")
                for y in range(1, len(names)):
                    panel.axhline(y - 0.5, color="#EEEEEE", lw=0.7, zorder=0)
            canvas.legend(fig, *right.get_legend_handles_labels(), 4, "lower")
            fig.alt = self._alt
            return fig

    @property
    def _alt(self) -> str:
        parts = "; ".join(f"{case.label} {format_seconds(case.median_s)}, {case.words}" for case in self)
        floor = format_percent(self.noise_floor - 1)
        noise = f" The A/A control strayed by {floor}." if self.noise.bounded else ""
        return (
            f"Time per call of {len(self.cases)} cases, every sample as a dot, and the time relative to "
            f"{self.baseline} with intervals. {parts}.{noise} {self.environment.caption}."
        )

    def _draw_samples(self, ax: Axes) -> None:
        """Every sample, a row a case, the control last."""
        from course_utils.show import canvas

        scale, unit = axis_unit("s", self.cases[0].median_s)
        rows = [[second / scale for second in m.elapsed_s] for m in (*self.cases, self.control)]
        colours = [case.colour for case in self] + [BASELINE_COLOUR]
        flat = [value for row in rows for value in row]
        log = canvas.span(flat) > 10
        canvas.scale_axis(ax, "x", flat, log=log)
        for y, (row, colour) in enumerate(zip(rows, colours, strict=True)):
            canvas.strip(ax, y, row, colour)
        ax.set_xlabel(f"time per call ({unit}{', log scale' if log else ''})")
        ax.set_title("every sample; line: median", loc="left")

    def _draw_ratios(self, ax: Axes) -> None:
        """The ratios of the cases, a row each, and what is noise and what does not matter."""
        from course_utils.show import canvas

        ends = [1 - 2 * self.practical, 1.0, 1 + 2 * self.practical]
        if self.noise.bounded:
            floor = self.noise_floor
            ends += [floor, 1 / floor]
            noise = f"noise: A/A control, ±{format_percent(floor - 1)}"
            ax.axvspan(1 / floor, floor, color=NOISE_COLOUR, lw=0, alpha=0.55, zorder=0, label=noise)
        words = f"±{format_percent(self.practical)} does not matter"
        ends_of_practical = (1 / (1 + self.practical), 1 + self.practical)
        ax.axvspan(*ends_of_practical, color=PRACTICAL_COLOUR, lw=0, alpha=0.7, zorder=0.5, label=words)
        ax.axvline(1.0, color="#333333", lw=0.8, zorder=1)
        for y, case in enumerate(self):
            ends += [case.ratio, *(case.interval.ends if case.interval.bounded else ())]
            if not case.is_baseline:
                _draw_ratio(ax, y, case)
                word, _, rest = verdict_words(case).partition(": ")
                text = word if case.verdict is Verdict.UNCLEAR else f"{word}\n{rest}"
                canvas.label_right(ax, y, text, case.colour)
        canvas.scale_axis(ax, "x", ends, log=canvas.span(ends) > 3)
        ax.set_xlabel("relative time (1 = baseline)")

    def _draw_control(self, ax: Axes) -> None:
        """The baseline against itself: 1 in the first row, the A/A control in the last."""
        ax.plot([1, 1], [-0.3, 0.3], color=BASELINE_COLOUR, lw=2.2, solid_capstyle="butt", zorder=5)
        _draw_ratio(ax, len(self.cases), Case(self.cases[0], self), named=True)
        ax.set_title("← faster", loc="left")
        ax.set_title("slower →", loc="right")


def _draw_ratio(ax: Axes, y: float, case: Case, named: bool = False) -> None:
    """The median ratio of one row as a tick, with its 95% (thick) and 99% (thin) interval.

    A tick rather than a dot: good intervals are narrow, and a dot would hide them.
    """
    line = {"color": case.colour, "solid_capstyle": "butt"}
    shown, decides = case.interval, case.interval
    if shown.bounded:
        ax.plot(shown.ends, [y, y], lw=9, alpha=0.75, zorder=4, label="95% interval" if named else None, **line)
    if decides.bounded:
        ax.plot(decides.ends, [y, y], lw=1.8, zorder=3, label="99% (decides)" if named else None, **line)
    style = "-" if decides.bounded else (0, (1, 1))
    ax.plot([case.ratio] * 2, [y - 0.3, y + 0.3], lw=2.2, ls=style, zorder=5, **line)
