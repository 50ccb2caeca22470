"""How good are timers as judges? The record of ``benchmarks/timer_quality.py``, summarised and shown.

Known answers were put to :func:`course_utils.compare` and to the usual way (two medians, one after the other):
identical code, twins that do 3% or 5% more of the same work, and exactly twice the work. Nothing here measures.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from course_utils.records.kinds.environment import Environment
from course_utils.records.paired import Verdict
from course_utils.records.store import RecordError, package_root
from course_utils.show.colours import AMBER, BLUE, GREEN, GREY_33, GREY_77, ORANGE
from course_utils.show.formats import format_percent, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCHEMA_VERSION = 1
KIND = "timer_quality"
# Each judge is a method together with the rule that turns its numbers into a verdict: a field of its trials.
JUDGES = {
    "compare": ("compare", "verdict"),
    "Timer, 1% rule": ("timer", "verdict"),
    "Timer, quartiles apart": ("timer", "cautious"),
}
_WRONG_ON_IDENTICAL_CODE = (Verdict.FASTER, Verdict.SLOWER)
# The figure shows how often this twin was found, and draws a line at the share that should be.
_TWIN, _DETECTION = 1.03, 0.90
# Okabe and Ito's palette, as in the course's other figures; the marker's shape says the same as the colour.
_VERDICT_STYLE = {
    Verdict.FASTER: (GREEN, "^", "wrong: faster"),
    Verdict.SLOWER: (ORANGE, "v", "wrong: slower"),
    Verdict.SAME: (BLUE, "s", "right: the same"),
    Verdict.UNCLEAR: (GREY_77, "o", "too close to call"),
}
_JUDGE_COLOUR = dict(zip(JUDGES, (BLUE, ORANGE, AMBER), strict=True))
_METHOD_LABEL = {"compare": "compare", "timer": "Timer"}


@dataclass(frozen=True)
class Trial:
    """One question put to one timer, and its answer.

    Attributes:
        truth: how much work the case does, relative to the baseline: 1, 1.03, 1.05 or 2.
        verdict: ``compare``'s verdict; of the Timer the one by the 1% rule: a ratio further than 1% from 1 decides.
        cautious: the Timer's by the kinder rule: beyond 1%, and the middle halves of the two samples do not overlap.
    """

    method: str
    function: str
    condition: str
    truth: float
    index: int
    ratio: float
    verdict: str
    cautious: str | None = None
    low: float | None = None  # the interval that decided; None for a Timer, ``high`` also where there was no interval
    high: float | None = None
    rounds: int | None = None
    seconds: float | None = None
    noticed: bool | None = None  # whether the result says that other programs were busy


class Rate(NamedTuple):
    """How often something happened, with exact one-sided 95% bounds (Clopper and Pearson)."""

    hits: int
    trials: int

    @property
    def bounds(self) -> dict[str, float]:
        """It happens ``at least`` and ``at most`` this often."""
        from scipy.stats import binomtest

        least, most = (binomtest(*self, alternative=side).proportion_ci(0.95) for side in ("greater", "less"))
        return {"at least": least.low, "at most": most.high}

    def words(self, bound: str) -> str:
        """For example ``0 of 400 (at most 0.75%)``."""
        if not self.trials:
            return "–"
        return f"{self.hits} of {self.trials} ({bound} {_percent(self.bounds[bound])})"


@dataclass(frozen=True, repr=False)
class TimerQuality:
    """The record of one run of the benchmark. It says how often each judge was right, and draws itself."""

    environment: Environment
    settings: Mapping[str, Any]
    trials: tuple[Trial, ...]
    recorded_at: str
    complete: bool

    @classmethod
    def from_record(cls, data: Mapping[str, Any]) -> TimerQuality:
        """The benchmark's result from its JSON. Unknown columns are ignored."""
        known = {field.name for field in fields(Trial)}
        rows = [dict(zip(data["columns"], row, strict=True)) for row in data["trials"]]
        trials = [Trial(**{name: value for name, value in row.items() if name in known}) for row in rows]
        return cls(
            Environment.from_record(data["environment"]),
            trials=tuple(trials),
            **{name: data[name] for name in ("settings", "recorded_at", "complete")},
        )

    @property
    def conditions(self) -> list[str]:
        """The conditions that were tried, in the order of the settings."""
        return self.settings["conditions"]

    def select(self, judge: str, condition: str, truth: float) -> list[tuple[float, str]]:
        """Ratios of the trials of one kind, each with the judge's verdict."""
        method, rule = JUDGES[judge]
        kind = (method, condition, truth)
        chosen = [trial for trial in self.trials if (trial.method, trial.condition, trial.truth) == kind]
        return [(trial.ratio, getattr(trial, rule)) for trial in chosen]

    def rate(self, judge: str, condition: str, truth: float, verdicts: Sequence[str]) -> Rate:
        """How often the judge came to one of some verdicts."""
        trials = self.select(judge, condition, truth)
        return Rate(sum(verdict in verdicts for _, verdict in trials), len(trials))

    def false_verdicts(self, judge: str, condition: str) -> Rate:
        """How often identical code was called faster or slower."""
        return self.rate(judge, condition, 1.0, _WRONG_ON_IDENTICAL_CODE)

    def detection(self, judge: str, condition: str, truth: float) -> Rate:
        """How often a twin that does more work was called slower."""
        return self.rate(judge, condition, truth, (Verdict.SLOWER,))

    def called_same(self, judge: str, condition: str) -> Rate:
        """How often identical code was called the same."""
        return self.rate(judge, condition, 1.0, (Verdict.SAME,))

    def of_compare(self, condition: str, truth: float) -> list[Trial]:
        """``compare``'s trials of one kind, whole."""
        kind = ("compare", condition, truth)
        return [trial for trial in self.trials if (trial.method, trial.condition, trial.truth) == kind]

    def sentences(self) -> list[str]:
        """How good each judge was, in each condition; then what only ``compare`` tells."""
        judged = [
            f"{judge}, {condition}: false verdicts {self.false_verdicts(judge, condition).words('at most')}, "
            f"identical code called the same in {self.called_same(judge, condition).words('at least')}, "
            f"1.03x twin found in {self.detection(judge, condition, 1.03).words('at least')}, "
            f"1.05x in {self.detection(judge, condition, 1.05).words('at least')}"
            for condition in self.conditions
            for judge in JUDGES
        ]
        return [*judged, *filter(None, map(self._twice_the_work, self.conditions))]

    def _twice_the_work(self, condition: str) -> str:
        """What ``compare`` says of twice the work, how long it took, and whether it noticed other programs."""
        trials = [trial for trial in self.of_compare(condition, 2.0) if trial.high]
        if not trials:
            return ""
        ratios, widths = [trial.ratio for trial in trials], [trial.high / trial.low - 1 for trial in trials]
        everything = [trial for trial in self.trials if trial.condition == condition and trial.noticed is not None]
        return (
            f"compare, {condition}: twice the work took {min(ratios):.3f} to {max(ratios):.3f} times as long, decided "
            f"in {format_seconds(statistics.median(trial.seconds for trial in trials))}, interval "
            f"{_percent(statistics.median(widths))} wide (medians); other programs were noticed in "
            f"{sum(trial.noticed for trial in everything)} of {len(everything)}"
        )

    def __repr__(self) -> str:
        return "\n".join([*self.sentences(), self.environment.caption])

    def plot(self) -> Figure:
        """Draw every trial on identical code, and how often slower twins were found."""
        from course_utils.show.canvas import styled

        return styled(_draw)(self)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2g}%" if fraction < 0.095 else f"{100 * fraction:.0f}%"


# Records


def load(path: Path) -> TimerQuality:
    """Read a record of the benchmark, or raise a RecordError that says what to do."""
    shown = f"{path.parent.name}/{path.name}"
    advice = "Run `python benchmarks/timer_quality.py --reference` to make it anew, or restore the file from git."
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["kind"] == KIND and data["schema_version"] > SCHEMA_VERSION:
            raise RecordError(
                f"{shown} has schema version {data['schema_version']}, and this course reads up to {SCHEMA_VERSION}. "
                "Update the course (git pull)."
            )
        return TimerQuality.from_record(data)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{shown} cannot be read as a trial of timers ({error!r}). {advice}") from error


def reference_root() -> Path:
    """Where the committed records of the benchmark are, one file a machine: no lesson's record lies there."""
    return package_root() / "lessons" / "measuring" / "timer_trials"


def timer_quality() -> TimerQuality:
    """The committed record of the benchmark, the newest first and a GPU's before that."""
    records = [load(path) for path in reference_root().glob("*.json")]
    if not records:
        raise RecordError("there is no trial of the timers: run `python benchmarks/timer_quality.py --reference`")
    return max(records, key=lambda record: (record.environment.device_kind != "cpu", record.recorded_at))


# The figure


def _draw(record: TimerQuality) -> Figure:
    from course_utils.show.canvas import titled_figure

    strips = [(condition, judge) for condition in record.conditions for judge in JUDGES if "apart" not in judge]
    upper_in, lower_in = 0.55 * len(strips), 0.25 * len(record.conditions) * (len(JUDGES) + 1)
    title, caption = "The same code, timed as two: every trial", record.environment.caption
    figure = titled_figure(title, upper_in + lower_in + 2.2, caption)
    figure.get_layout_engine().set(hspace=0.07)
    upper, lower = figure.subplots(2, 1, height_ratios=(upper_in, lower_in))
    _draw_identical(upper, record, strips)
    _draw_detection(lower, record)
    figure.alt = (
        "Measured speed in every trial on identical code, coloured by verdict, and the share of slower twins found. "
        f"{'; '.join(record.sentences())}. {caption}."
    )
    return figure


def _draw_identical(ax: Axes, record: TimerQuality, strips: Sequence[tuple[str, str]]) -> None:
    """One row for each judge and condition: the speed in every A/A trial, in the colour of its verdict."""
    from course_utils.show.canvas import grid, label_right, name_rows, speed_axis

    golden = (math.sqrt(5) - 1) / 2
    speeds, seen = [], set()
    for y, (condition, judge) in enumerate(strips):
        trials = [(1 / ratio, verdict) for ratio, verdict in record.select(judge, condition, 1.0)]
        speeds += [speed for speed, _ in trials]
        seen |= {verdict for _, verdict in trials}
        for verdict, (colour, marker, _) in _VERDICT_STYLE.items():
            wrong = verdict in _WRONG_ON_IDENTICAL_CODE
            ax.plot(
                [speed for speed, own in trials if own == verdict],
                [y + 0.34 * (2 * (i * golden % 1) - 1) for i, (_, own) in enumerate(trials) if own == verdict],
                marker, ms=5.5 if wrong else 4, mew=0, color=colour, alpha=0.85 if wrong else 0.45,
                zorder=4 if wrong else 3,
            )  # fmt: skip
        rate = record.false_verdicts(judge, condition)
        if rate.trials:
            label_right(ax, y, f"{rate.hits} of {rate.trials} wrong\n(at most {_percent(rate.bounds['at most'])})")
    ax.axvline(1.0, color=GREY_33, lw=0.8, zorder=1)
    name_rows(ax, [f"{_METHOD_LABEL[JUDGES[judge][0]]}, {condition}" for condition, judge in strips])
    speed_axis(ax, speeds, "x", apart=0.25)
    grid(ax, "x")
    ax.set_xlabel("measured speed of the second (the truth is 1×)")
    _legend(ax, [style for verdict, style in _VERDICT_STYLE.items() if verdict in seen])


def _draw_detection(ax: Axes, record: TimerQuality) -> None:
    """One row for each condition and judge: the share of trials that called the 3% twin slower, with exact bounds."""
    from course_utils.show.canvas import LEGEND_X, grid, label_right

    ticks = []
    for number, condition in enumerate(record.conditions):
        first = number * (len(JUDGES) + 1)
        ticks.append(first + (len(JUDGES) - 1) / 2)
        for y, judge in enumerate(JUDGES, first):
            rate, colour = record.detection(judge, condition, _TWIN), _JUDGE_COLOUR[judge]
            if rate.trials:
                ax.plot([*rate.bounds.values()], [y, y], color=colour, lw=4, alpha=0.35, solid_capstyle="butt")
                ax.plot([rate.hits / rate.trials], [y], "o", ms=8, mew=0, color=colour, zorder=3, clip_on=False)
            label_right(ax, y, f"{rate.hits} of {rate.trials}")
    ax.set(xlim=(0, 1), ylim=(y + 0.5, -0.5), xlabel="trials that called it slower (bar: exact 95% bounds)")
    ax.axvline(_DETECTION, color=GREY_33, lw=0.8, ls=(0, (4, 3)), zorder=1)
    ax.set_xticks([0, 0.3, 0.6, 0.9], ["0%", "30%", "60%", "90%"])
    ax.set_yticks(ticks, record.conditions)
    ax.tick_params(axis="y", length=0)
    grid(ax, "x")
    title = f"A twin that does {format_percent(_TWIN - 1)} more work: how often it is called slower"
    place = {"xycoords": ("figure fraction", "axes fraction"), "textcoords": "offset points"}
    ax.annotate(title, (LEGEND_X, 1), (0, 30), size=12, weight="bold", annotation_clip=False, **place)
    _legend(ax, [(_JUDGE_COLOUR[judge], "o", judge) for judge in JUDGES])


def _legend(ax: Axes, entries: Sequence[tuple[str, str, str]]) -> None:
    """What the colours mean, in one line above the axes: colour, marker and words of each entry."""
    from matplotlib.lines import Line2D
    from matplotlib.transforms import blended_transform_factory

    handles = [Line2D([], [], ls="", marker=marker, ms=7, mew=0, color=colour) for colour, marker, _ in entries]
    # Under the title: from the figure's left edge, just above the axes.
    place = blended_transform_factory(ax.figure.transFigure, ax.transAxes)
    look = {"frameon": False, "columnspacing": 1.2, "handletextpad": 0.2, "borderaxespad": 0.1}
    words = [words for *_, words in entries]
    ax.legend(
        handles, words, loc="lower left", bbox_to_anchor=(0, 1.0), bbox_transform=place, ncols=len(entries), **look
    )
