"""How good are timers as judges? The record of ``benchmarks/timer_quality.py``, summarised and shown.

Known answers were put to :func:`course_utils.compare` and to the usual way (two medians, one after the other):
identical code, twins that do 3% or 5% more of the same work, and exactly twice the work. Nothing here measures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from course_utils.records.kinds.environment import Environment
from course_utils.records.paired import Verdict
from course_utils.records.store import package_root
from course_utils.show.colours import AMBER, BLUE, GREEN, GREY_33, GREY_77, ORANGE
from course_utils.show.formats import format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


class Trial(NamedTuple):
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


@dataclass(frozen=True)
class TimerQuality:
    """The record of one run of the benchmark. It counts how often each judge was right, and draws itself."""

    environment: Environment
    conditions: tuple[str, ...]
    trials: tuple[Trial, ...]
    recorded_at: str
    complete: bool

    def select(self, judge: str, condition: str, truth: float) -> list[tuple[float, str]]:
        method, rule = JUDGES[judge]
        kind = (method, condition, truth)
        chosen = [trial for trial in self.trials if (trial.method, trial.condition, trial.truth) == kind]
        return [(trial.ratio, getattr(trial, rule)) for trial in chosen]

    def rate(self, judge: str, condition: str, truth: float, verdicts: Sequence[str]) -> Rate:
        trials = self.select(judge, condition, truth)
        return Rate(sum(verdict in verdicts for _, verdict in trials), len(trials))

    def false_verdicts(self, judge: str, condition: str) -> Rate:
        return self.rate(judge, condition, 1.0, _WRONG_ON_IDENTICAL_CODE)

    def detection(self, judge: str, condition: str, truth: float) -> Rate:
        return self.rate(judge, condition, truth, (Verdict.SLOWER,))

    def plot(self) -> Figure:
        from course_utils.show.canvas import styled

        return styled(_draw)(self)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2g}%" if fraction < 0.095 else f"{100 * fraction:.0f}%"


# Records


def load(path: Path) -> TimerQuality:
    """Read a record of the benchmark."""
    data = json.loads(path.read_text(encoding="utf-8"))
    trials = tuple(Trial(**dict(zip(data["columns"], row, strict=True))) for row in data["trials"])
    conditions = tuple(data["settings"]["conditions"])
    environment = Environment.from_record(data["environment"])
    return TimerQuality(environment, conditions, trials, data["recorded_at"], data["complete"])


def timer_quality() -> TimerQuality:
    """The committed record of the benchmark: the newest, and a GPU's before that."""
    folder = package_root() / "lessons" / "measuring" / "timer_trials"
    records = [load(path) for path in folder.glob("*.json")]
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
    seen = "Measured speed in every trial on identical code, coloured by verdict, and the share of slower twins found"
    figure.alt = f"{seen}. {caption}."
    return figure


def _draw_identical(ax: Axes, record: TimerQuality, strips: Sequence[tuple[str, str]]) -> None:
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
