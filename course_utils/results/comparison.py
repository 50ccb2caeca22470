"""Cases timed side by side, round by round, with verdicts."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

from course_utils.results import paired
from course_utils.results.ceilings import Ceiling
from course_utils.results.environment import Environment
from course_utils.results.measurement import (
    OWN_WORK,
    Measurement,
    bytes_text,
    rounds_and_calls,
    seconds_text,
    waiting_line,
)
from course_utils.results.paired import Interval, Verdict
from course_utils.results.result import Fact, Result, by_name
from course_utils.results.verdicts import IN_A_SENTENCE, SURE, WORDS, between, too_busy_parts
from course_utils.show.cards import Bar, Card, Row, Toned, ends_of, plain, speed_axis
from course_utils.show.colours import BLUE_INK, GREEN_INK, GREY_44, GREY_55, GREY_E4, ORANGE_INK
from course_utils.show.formats import (
    format_interval,
    format_noise,
    format_percent,
    format_seconds,
    format_times,
    listed,
)
from course_utils.show.tables import Column, Sheet, split

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Medians of times whose quotient is further from the median of the ratios, as a logarithm, have to be explained; where
# the quotient even leaves the interval of the ratio, sooner. Below that, nobody sees it in the figures shown.
_JUMP, _SEEN = 0.1, 0.02
# In an unclear line, more cases than this are only counted.
_NAMED = 2
# Longer than this nobody waits for a comparison.
_LONGEST_BUDGET_S = 60
CONTROL_LABEL = "baseline again (A/A control)"
# Okabe and Ito's hues, dark enough for text on white. Words carry the verdict as well.
VERDICT_COLOURS = {
    Verdict.FASTER: GREEN_INK,
    Verdict.SLOWER: ORANGE_INK,
    Verdict.SAME: BLUE_INK,
    Verdict.UNCLEAR: GREY_55,
}
MARKERS = {Verdict.FASTER: "^", Verdict.SLOWER: "v", Verdict.SAME: "s", Verdict.UNCLEAR: "o"}


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
        """The verdict as a tone of a card; the baseline has none, nor has what a busy machine gave."""
        return "" if self.is_baseline or self.comparison.too_busy else self.verdict.lower()

    @property
    def bar(self) -> Bar:
        """How fast it is, relative to the baseline, with its interval; the baseline's own is that of the noise."""
        low, high = self.interval.inverse().ends if self.interval.bounded else (None, None)
        return Bar(low, high, 1.0 if self.is_baseline else self.speedup)

    def row(self, label: str, behind: Bar | None, with_own_work: bool) -> Row:
        """Its line of a card, and beside its time the GPU's own work; per item, where that was asked for."""
        items = self.measurement.items if self.comparison.per else 1
        own_s = self.measurement.queued_ahead_s
        own = format_seconds(own_s and own_s / items) if with_own_work else ""
        return Row(label, self.cell, format_seconds(self.median_s / items), self.tone, self.bar, behind, own)

    @property
    def colour(self) -> str:
        """What it is drawn in: the verdict's colour; grey where a card has no tone."""
        return VERDICT_COLOURS[self.verdict] if self.tone else GREY_44

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
    def cell(self) -> str:
        """The verdict in a few words, for a cell: ``1.83× as fast``, ``same``, ``too close to call``."""
        if self.is_baseline:
            return "baseline"
        decided = self.verdict in (Verdict.FASTER, Verdict.SLOWER)
        return format_times(self.ratio, tight=True) if decided else WORDS[self.verdict]

    @property
    def interval_words(self) -> str:
        """The interval in the direction of the verdict: ``1.80 to 1.86``; empty if there is none."""
        if not self.interval.bounded:
            return ""
        return format_interval(self.interval.inverse() if self.ratio < 1 else self.interval)

    def parts(self, against: bool = True) -> list[str | Toned]:
        """The verdict as a sentence that names both sides, or the case alone: ``pinned is 1.83 times as fast``."""
        case, tone = Toned(self.label), self.tone
        base = [" as ", Toned(self.comparison.baseline)] if against else []
        if self.is_baseline:
            return [case, " is the baseline"]
        if self.verdict is Verdict.UNCLEAR:
            return [case, " is ", Toned(WORDS[self.verdict], tone)]
        if self.verdict is Verdict.SAME:
            within = f" (within {format_percent(self.comparison.practical)})"
            return [case, " takes ", Toned("the same time", tone), *base, within]
        verb = " is " if self.verdict is Verdict.FASTER else " takes "
        return [case, verb, Toned(format_times(self.ratio), tone), *base]

    @property
    def words(self) -> str:
        """The verdict as a sentence with its interval: ``pinned is 1.83 times as fast as pageable (1.80 to 1.86)``."""
        if self.verdict is Verdict.UNCLEAR:
            where = f": {self.label} is {between(self.interval)}" if self.interval.bounded else ""
            return WORDS[self.verdict] + where
        is_decided = not self.is_baseline and self.verdict is not Verdict.SAME
        return "".join(map(plain, self.parts())) + (f" ({self.interval_words})" if is_decided else "")

    def in_words(self, unit: str | None = None) -> str:
        """The verdict inside a sentence that names the cases itself: ``1.62 times as fast (1.60 to 1.65)``."""
        if self.is_baseline:
            return "the baseline"
        if self.verdict is Verdict.UNCLEAR:
            return WORDS[self.verdict] + (f" ({between(self.interval)})" if self.interval.bounded else "")
        if self.verdict is Verdict.SAME:
            return f"the same (within {format_percent(self.comparison.practical)})"
        return f"{format_times(self.ratio)} ({self.interval_words})"

    def more_rounds(self) -> float:
        """How many times as many rounds would decide, if all intervals shrink with the square root of rounds."""
        half, noise = math.log(self.interval.high / self.interval.low) / 2, math.log(self.comparison.noise_floor)
        away, practical = abs(math.log(self.ratio)), math.log1p(self.comparison.practical)
        for_same = (half / (practical - away)) ** 2 if away < practical else math.inf
        for_direction = ((half + noise) / away) ** 2 if away > practical else math.inf
        return min(for_same, for_direction)

    def __repr__(self) -> str:
        return self.words


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Cases timed side by side, round by round."""

    kind: ClassVar[str] = "comparison"

    cases: tuple[Measurement, ...]  # raw samples of each case; the first is the baseline
    control: Measurement  # the baseline's second timing in each round: the A/A control
    environment: Environment
    cache: str = "warm"  # what the caches held before a call; an older record has ``warm and cold``
    clock: str = "host clock"  # how ``elapsed_s`` was read, in words
    agreement: str = "not checked"  # how it was checked that the cases compute the same thing, in words
    practical: float = paired.PRACTICAL  # relative difference below which nobody cares
    spent_s: float = 0.0
    interrupted: bool = False
    ceiling: Ceiling | None = None  # the machine's limit that rates are shown against, if any
    # of the interval that decided: each look at the rounds spends a share of the 1% (`paired.LOOKS`)
    confidence: float = paired.DECISION_CONFIDENCE
    per: str = field(default="", compare=False)  # what an item is called, where the card tells times per item

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
    def too_busy(self) -> list[str | Toned]:
        """That the machine was too busy to tell, as parts of a sentence; empty if it was not."""
        return too_busy_parts(self.noise_floor, self.busy, self.whose)

    @property
    def others(self) -> list[Case]:
        """All cases but the baseline."""
        return [Case(case, self) for case in self.cases[1:]]

    def showing(self, cases: Sequence[str] | None = None, *, per: str = "") -> Self:
        """The comparison with a choice of its cases, the baseline first; see :meth:`Sweep.showing`.

        Example:
            >>> from course_utils import recorded
            >>> recorded("no_grad/small").showing(["inference_mode"]).labels
            ('gradients on', 'inference_mode')
        """
        chosen = self.labels[1:] if cases is None else [label for label in cases if label != self.baseline]
        shown = tuple(self[label].measurement for label in dict.fromkeys([self.baseline, *chosen]))
        items = {case.items for case in shown}
        if per and (None in items or len(items) > 1):
            raise ValueError(
                f"a time per {per} needs items=, the same for each case, since the verdicts compare calls; they are "
                f"{listed(map(str, items))}"
            )
        return replace(self, cases=shown, whole=self.whole or self, per=per)

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
        behind = {case.label: case.bar for case in self.behind or ()}
        is_bound = any(case.launch_bound for case in self.cases)
        rows = tuple(case.row(case.label, behind.get(case.label), is_bound) for case in self)
        sentence, parts = self._sentence(), self._unclear()
        unclear = "".join(map(plain, parts))
        is_cut = self.interrupted and self.rounds >= paired.MIN_ROUNDS  # fewer are unclear for that reason
        stopped = f"Interrupted after {self.rounds} rounds." if is_cut else ""
        said = self.busy if self.too_busy else "" if sentence == parts and not self.says else unclear
        busy = "" if self.busy in (said or unclear) else self.busy.rstrip(".")
        return Card(
            sentence if self.too_busy else self.says or sentence,
            rows,
            speed_axis(ends_of(rows), self.practical, is_bound),
            heads=("", f"time per {self.per or 'call'}"),
            second=OWN_WORK if is_bound else "",
            warning=" ".join(filter(None, [said, stopped])),
            notes=(*waiting_line([(case.label, case) for case in self.cases]), *self._jumps(), *self.notes),
            numbers=(self.whole or self)._numbers(),
            **self.stamp(format_noise(self.noise_floor), SURE, busy, grey=any(row.behind for row in rows)),
        )

    def _sentence(self) -> list[str | Toned]:
        """What was found, in one sentence: the largest gain, or else the largest loss; then what the others do."""
        if self.too_busy:
            return self.too_busy
        order = (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME)
        clear = [case for case in self.others if case.verdict in order]
        if not clear:
            return self._unclear()
        clear.sort(key=lambda case: (order.index(case.verdict), -abs(math.log(case.ratio))))
        first, *rest = clear
        parts, others = first.parts(), len(self.others) - 1
        counts = Counter(case.verdict for case in rest)
        if len(rest) == 1:
            parts += ["; ", *rest[0].parts(against=False)]
        elif len(rest) == others and len(counts) == 1:
            parts.append(f". The other {others} are all {IN_A_SENTENCE[rest[0].verdict]}")
        elif rest:
            # What is unclear has a line of its own.
            said = listed(
                f"{count} {'is' if count == 1 else 'are'} {IN_A_SENTENCE[verdict]}"
                for verdict in order
                if (count := counts[verdict])
            )
            parts.append(f". Of the other {others}, {said}")
        return [*parts, "."]

    def _unclear(self) -> list[str | Toned]:
        """What could not be decided, in one line, and what would help; nothing if all is decided."""
        unclear = [case for case in self.others if case.verdict is Verdict.UNCLEAR]
        if not unclear:
            return []
        if not self.noise.bounded:
            help_ = "let it run to the end" if self.interrupted else "raise budget_s"
            why = f": a verdict takes {paired.MIN_ROUNDS} rounds, and there are {self.rounds}: {help_}."
            return [Toned("Too close to call", "unclear"), why]
        ranges = [f"{case.label} is {between(case.interval)}" for case in unclear[:_NAMED]]
        if len(unclear) > _NAMED:
            more = len(unclear) - _NAMED
            ranges.append(f"and {more} more case{'s' if more > 1 else ''}")
        floor = self.noise_floor
        drowned = any(case.interval.meets(1 / floor, floor) and not case.interval.meets(1, 1) for case in unclear)
        noise = f" (identical code differs as well: {format_noise(floor)})" if drowned else ""
        said = f": {'; '.join(ranges)}{noise}. {self._way_out(max(case.more_rounds() for case in unclear))}"
        return [Toned("Too close to call", "unclear"), said]

    def _way_out(self, more_rounds: float) -> str:
        """What would settle it: more time, if it would be enough, or a quieter machine."""
        spent = self.spent_s or sum(sum(timed.elapsed_s) * timed.calls for timed in (*self.cases, self.control))
        needed = spent * more_rounds
        busy = f"{self.busy} Stop them" if self.busy else ""
        if needed > _LONGEST_BUDGET_S or self.rounds >= paired.MOST_ROUNDS:
            stop = busy or "Stop other programs and run it again"
            return f"{stop}; if that does not help, the difference is too small for this machine."
        budget = _rounded_up(max(needed, 2 * spent))
        more_time = f"un it again with budget_s={budget:g} (it took {format_seconds(spent)})"
        return f"{busy}, or r{more_time}." if busy else f"R{more_time}, or stop other programs first."

    def _jumps(self) -> list[str]:
        """Where the times shown would give another ratio than the rounds."""
        base = self.cases[0].median_s
        far = [case.label for case in self.others if _is_far(case.median_s / base, case)]
        if not far:
            return []
        return [
            f"Times changed from round to round ({listed(far)}), so those shown do not have the ratio of the rounds: "
            "that one compares neighbours."
        ]

    def _numbers(self) -> Sheet:
        """A row a case, with its interval and what else a call costs; how it was decided and measured."""
        compared = [*self.others, Case(self.cases[0], self)]  # the baseline's own ratios are those of the A/A control
        verdicts = ("baseline", *(WORDS[case.verdict] for case in self.others), "")
        core = [
            Column("verdict", verdicts, numeric=False),
            Column("time per call", tuple(format_seconds(m.median_s) for m in (*self.cases, self.control))),
            Column("relative", ("", *(format_times(case.ratio, tight=True) for case in compared))),
            Column("99% interval", ("", *(case.interval_words for case in compared))),
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
            column(OWN_WORK, lambda m: seconds_text(m.queued_ahead_s)),
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
        return tuple(filter(None, (alike, self.how, self.where)))

    def facts(self) -> Iterator[Fact]:
        """Every case but the baseline, with its verdict."""
        base = self.cases[0]
        for case in self.others:
            yield Fact(
                f"{case.label}, against {base.label}",
                case.ratio,
                case.in_words(),
                detail=f"{format_seconds(case.median_s)}; {base.label}: {format_seconds(base.median_s)}",
                verdict=case.verdict,
                interval=case.interval,
                floor=self.noise_floor,
                practical=self.practical,
            )

    def plot(self) -> Figure:
        """Draw how fast each case is relative to the baseline, round by round."""
        from course_utils.show import canvas

        with canvas.style():
            key = "dots: rounds · bars: 99% intervals · grey: noise · ■ the same · ○ too close to call"
            title = (self.says or "".join(map(plain, self._sentence()))).rstrip(".")
            panels_in = len(self.cases) * canvas.row_in(self.labels, 0.5) + 0.6
            fig = canvas.titled_figure(title, panels_in, key, self.caption)
            ax = fig.subplots()
            if self.noise.bounded:
                ax.axvspan(1 / self.noise_floor, self.noise_floor, color=GREY_E4, lw=0, zorder=0)
            ax.axvline(1.0, color=GREY_44, lw=1, zorder=1)
            reach = [speed for y, case in enumerate(self) for speed in _draw_case(ax, y, case)]
            canvas.speed_axis(ax, reach, "x", apart=0.25)
            canvas.name_rows(ax, self.labels)
            ax.set_xlabel(f"speed relative to {self.baseline} (log scale): right is faster")
            fig.alt = self._alt
            return fig

    @property
    def _alt(self) -> str:
        parts = "; ".join(f"{case.label} {format_seconds(case.median_s)}, {case.in_words()}" for case in self)
        noise = format_noise(self.noise_floor).capitalize()
        return f"Speed relative to {self.baseline}, every round as a dot. {parts}. {noise}. {self.caption}."


def _is_far(quotient: float, case: Case) -> bool:
    """Whether the quotient of the times shown needs an explanation beside the ratio of the rounds."""
    apart = abs(math.log(quotient / case.ratio))
    return apart > _JUMP or (apart > _SEEN and not case.interval.low <= quotient <= case.interval.high)


def _rounded_up(seconds: float) -> float:
    scale = 10 ** math.floor(math.log10(seconds))
    return next(step * scale for step in (1, 2, 5, 10) if step * scale >= seconds)


def _draw_case(ax: Axes, y: int, case: Case) -> list[float]:
    """One row: every round, the interval, the median, the words; returns how far it reaches."""
    from course_utils.show import canvas

    rounds = [math.exp(-ratio) for ratio in case.log_ratios]
    canvas.strip(ax, y, rounds, case.colour, at=case.bar.dot)
    if case.interval.bounded:
        look = {"color": case.colour, "lw": 7, "alpha": 0.6, "solid_capstyle": "butt", "zorder": 3}
        ax.plot([case.bar.low, case.bar.high], [y, y], **look)
    face = "white" if case.verdict is Verdict.UNCLEAR else case.colour
    marker = "o" if case.is_baseline else MARKERS[case.verdict]
    ax.plot([case.bar.dot], [y], marker, ms=7, color=case.colour, mfc=face, zorder=4)
    canvas.label_right(ax, y, f"{case.cell}\n{format_seconds(case.median_s)}", case.colour)
    return [*rounds, *case.bar.values]
