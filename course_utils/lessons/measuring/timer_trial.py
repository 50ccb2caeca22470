"""How good are timers as judges? The record of ``benchmarks/timer_quality.py``, summarised and shown.

Known answers are put to :func:`course_utils.compare` and to the usual way (two medians, one after the other): identical
code, twins that do 3% or 5% more of the same work, and exactly twice the work. Nothing here measures: the record is a
file, so what is shown is the same on every machine.
"""

from __future__ import annotations

import html
import json
import math
import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_utils.records import paired
from course_utils.records.kinds.environment import Environment
from course_utils.records.paired import Interval, Verdict
from course_utils.records.store import RecordError, package_root

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCHEMA_VERSION = 1
KIND = "timer_quality"
# What the benchmark asks of a judge.
_FALSE_RATE = 1 / 400
_DETECTION = 0.90
_KNOWN = (1.98, 2.02)
_WIDTH = 0.03
_SECONDS = 3.0
_RERUN = "Run `python benchmarks/timer_quality.py --reference` to make it anew, or restore the file from git."


@dataclass(frozen=True)
class Trial:
    """One question put to one timer.

    Attributes:
        method: ``compare``, ``timer`` (``torch.utils.benchmark.Timer``) or ``do_bench`` (``triton.testing.do_bench``).
        function: what was timed.
        condition: ``idle`` or ``loaded``.
        truth: how much work the case does, relative to the baseline: 1, 1.03, 1.05 or 2.
        index: number of the trial.
        ratio: the case's time over the baseline's, as measured.
        verdict: ``compare``'s verdict; for the others the one by the 1% rule: a ratio further than 1% from 1 decides.
        cautious: the verdict by the kinder rule: beyond 1%, and the middle halves of the two samples do not overlap.
        low: lower end of the 95% interval; with ``high``, ``low99`` and so on None where there is no interval.
        high: upper end of it.
        low99: lower end of the 99% interval, which decides.
        high99: upper end of it.
        noise_low: lower end of the A/A control's 99% interval.
        noise_high: upper end of it.
        quartiles_s: lower and upper quartile of the baseline's times, then of the case's; the two-medians way only.
        pooled: the ratio against the average of two baseline timings in each round; A/A trials of ``compare`` only.
        seconds: what the judgement took.
        rounds: timings of each case.
        block_rounds: rounds that were merged because neighbours were not independent.
        load: load average of the machine, over one minute, after the trial.
    """

    method: str
    function: str
    condition: str
    truth: float
    index: int
    ratio: float
    verdict: str
    seconds: float
    rounds: int
    cautious: str | None = None
    low: float | None = None
    high: float | None = None
    low99: float | None = None
    high99: float | None = None
    noise_low: float | None = None
    noise_high: float | None = None
    quartiles_s: tuple[float, ...] | None = None
    pooled: float | None = None
    block_rounds: int = 1
    load: float | None = None

    @property
    def interval(self) -> Interval | None:
        """The 95% interval of the ratio; None where the method gives none, or had too few rounds."""
        return None if self.low is None or self.high is None else Interval(self.low, self.high, 0.95)


@dataclass(frozen=True)
class Judge:
    """A method together with the rule that turns its numbers into a verdict."""

    label: str
    method: str
    verdict: Callable[[Trial], str | None]


JUDGES = (
    Judge("compare", "compare", lambda trial: trial.verdict),
    Judge("Timer, 1% rule", "timer", lambda trial: trial.verdict),
    Judge("Timer, quartiles apart", "timer", lambda trial: trial.cautious),
    Judge("do_bench, 1% rule", "do_bench", lambda trial: trial.verdict),
    Judge("do_bench, quartiles apart", "do_bench", lambda trial: trial.cautious),
)


def two_median_verdicts(
    baseline: Sequence[float], case: Sequence[float], practical: float = paired.PRACTICAL
) -> tuple[Verdict, Verdict]:
    """What a practitioner concludes from two medians with their quartiles.

    Args:
        baseline: lower quartile, median and upper quartile of the baseline's times.
        case: the same of the case's.
        practical: relative difference below which nobody cares.

    Returns:
        The verdict of the ratio alone, and the one that also asks for middle halves that do not overlap.

    Example:
        >>> two_median_verdicts((1.0, 1.1, 1.2), (1.1, 1.2, 1.3))
        (<Verdict.SLOWER: 'SLOWER'>, <Verdict.UNCLEAR: 'UNCLEAR'>)
    """
    ratio = case[1] / baseline[1]
    if ratio > 1 + practical:
        return Verdict.SLOWER, Verdict.SLOWER if case[0] > baseline[2] else Verdict.UNCLEAR
    if ratio < 1 / (1 + practical):
        return Verdict.FASTER, Verdict.FASTER if case[2] < baseline[0] else Verdict.UNCLEAR
    return Verdict.SAME, Verdict.SAME


def rate_bounds(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact one-sided bounds of a rate (Clopper and Pearson): each holds with ``confidence`` by itself.

    Args:
        hits: how often it happened.
        trials: out of how many.
        confidence: of each bound.

    Returns:
        Lower and upper bound.

    Source:
        Clopper and Pearson, The use of confidence or fiducial limits illustrated in the case of the binomial,
        Biometrika 26 (1934).

    Example:
        >>> [round(bound, 4) for bound in rate_bounds(0, 400)]
        [0.0, 0.0075]
    """
    if not 0 <= hits <= trials or trials == 0:
        raise ValueError(f"{hits} hits in {trials} trials is not a rate")

    def at_most(k: int, p: float) -> float:
        logs = (
            math.lgamma(trials + 1) - math.lgamma(i + 1) - math.lgamma(trials - i + 1)
            + i * math.log(p) + (trials - i) * math.log1p(-p)
            for i in range(k + 1)
        )  # fmt: skip
        return math.fsum(math.exp(value) for value in logs)

    def crossing(k: int, level: float) -> float:
        """The rate at which at most ``k`` hits have the probability ``level``; it falls as the rate grows."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(k, middle) > level else (low, middle)
        return (low + high) / 2

    lower = crossing(hits - 1, confidence) if hits else 0.0
    upper = crossing(hits, 1 - confidence) if hits < trials else 1.0
    return lower, upper


@dataclass(frozen=True, repr=False)
class TimerQuality:
    """The record of one run of the benchmark. It shows itself as tables, and draws itself with ``.plot()``.

    Attributes:
        environment: machine and software.
        settings: numbers of trials, budget, threads and so on.
        workloads: what each function does, and the true ratios of its twins.
        trials: every trial, in the order in which they ran.
        recorded_at: ISO 8601 time of the last trial, UTC.
        seconds: how long all trials took.
        complete: whether all planned trials are in.
    """

    environment: Environment
    settings: Mapping[str, Any]
    workloads: Mapping[str, Mapping[str, Any]]
    trials: tuple[Trial, ...]
    recorded_at: str
    seconds: float
    complete: bool

    def to_record(self) -> dict[str, Any]:
        """The record as plain JSON types: trials as one row each under common column names, to keep the file small."""
        names = [field.name for field in fields(Trial)]
        return {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "environment": self.environment.to_record(),
            "settings": dict(self.settings),
            "workloads": {name: dict(workload) for name, workload in self.workloads.items()},
            "columns": names,
            "trials": [[_compact(value) for value in asdict(trial).values()] for trial in self.trials],
            "recorded_at": self.recorded_at,
            "seconds": round(self.seconds, 1),
            "complete": self.complete,
        }

    @classmethod
    def from_record(cls, data: Mapping[str, Any]) -> TimerQuality:
        """The benchmark's result from :meth:`to_record`'s dictionary. Unknown columns are ignored."""
        known = {field.name for field in fields(Trial)}
        rows = (dict(zip(data["columns"], row, strict=True)) for row in data["trials"])
        trials = [
            Trial(
                **{
                    key: tuple(value) if isinstance(value, list) else value
                    for key, value in row.items()
                    if key in known
                }
            )
            for row in rows
        ]
        return cls(
            environment=Environment.from_record(data["environment"]),
            settings=data["settings"],
            workloads=data["workloads"],
            trials=tuple(trials),
            recorded_at=data["recorded_at"],
            seconds=data["seconds"],
            complete=data["complete"],
        )

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions that were tried, in the order of the settings."""
        return tuple(self.settings["conditions"])

    @property
    def judges(self) -> tuple[Judge, ...]:
        """The judges that have trials here: ``do_bench`` needs a GPU."""
        methods = {trial.method for trial in self.trials}
        return tuple(judge for judge in JUDGES if judge.method in methods)

    def select(self, *, method: str, condition: str, truth: float, function: str | None = None) -> list[Trial]:
        """Trials of one kind."""
        return [
            trial
            for trial in self.trials
            if (trial.method, trial.condition, trial.truth) == (method, condition, truth)
            and function in (None, trial.function)
        ]

    def true_ratio(self, function: str, truth: float) -> float:
        """The ratio of a twin's time that its amount of work implies, with the fixed cost of a call in it."""
        return self.workloads[function]["true_ratios"].get(f"{truth:.2f}", truth)

    def summary(self) -> dict[str, Any]:
        """All numbers that the benchmark is for.

        Returns:
            ``judges``: by label and condition, false verdicts on identical code, detection of slower twins, error on
            a known 2.00x and seconds. ``pooling``: by condition and function, what identical code measures against one
            baseline timing and against the average of two. ``goals``: what was asked, and whether it was reached (None:
            too few trials to tell).
        """
        result: dict[str, Any] = {
            "judges": {
                judge.label: {condition: self._judged(judge, condition) for condition in self.conditions}
                for judge in self.judges
            },
            "pooling": {condition: self._pooling(condition) for condition in self.conditions},
        }
        result["goals"] = _goals(result["judges"].get("compare", {}))
        return result

    def _judged(self, judge: Judge, condition: str) -> dict[str, Any]:
        def trials(truth: float, function: str | None = None) -> list[Trial]:
            return self.select(method=judge.method, condition=condition, truth=truth, function=function)

        def false_verdicts(chosen: Sequence[Trial]) -> dict[str, Any]:
            return _rate(judge.verdict(trial) in (Verdict.FASTER, Verdict.SLOWER) for trial in chosen)

        seconds = [t.seconds for t in self.trials if (t.method, t.condition) == (judge.method, condition)]
        return {
            "identical": {
                **false_verdicts(trials(1.0)),
                "by_function": {name: false_verdicts(trials(1.0, name)) for name in self.workloads},
            },
            "slower_twins": {
                f"{truth:.2f}": {
                    **_rate(judge.verdict(trial) == Verdict.SLOWER for trial in trials(truth)),
                    "called_faster": sum(judge.verdict(trial) == Verdict.FASTER for trial in trials(truth)),
                    "by_function": {
                        name: _rate(judge.verdict(trial) == Verdict.SLOWER for trial in trials(truth, name))
                        for name in self.workloads
                    },
                }
                for truth in (1.03, 1.05)
            },
            "known": self._known(trials(2.0)),
            "seconds": {"median": statistics.median(seconds), "max": max(seconds)} if seconds else {},
        }

    def _known(self, trials: Sequence[Trial]) -> dict[str, Any]:
        """Error and width on a known 2.00x."""
        if not trials:
            return {"trials": 0}
        errors = [trial.ratio / self.true_ratio(trial.function, 2.0) - 1 for trial in trials]
        intervals = [trial.interval for trial in trials]
        widths = [interval.relative_width for interval in intervals if interval is not None]
        meets = [interval is not None and interval.meets(*_KNOWN) for interval in intervals]
        narrow = [interval is not None and interval.relative_width <= _WIDTH for interval in intervals]
        return {
            "trials": len(trials),
            "bias": statistics.median(errors),
            "largest_error": max(map(abs, errors)),
            "ratio_inside": sum(_KNOWN[0] <= trial.ratio <= _KNOWN[1] for trial in trials),
            "interval_meets": sum(meets),
            "interval_narrow": sum(narrow),
            "interval_meets_and_narrow": sum(map(all, zip(meets, narrow, strict=True))),
            "width_median": statistics.median(widths) if widths else None,
            "width_max": max(widths) if widths else None,
        }

    def _pooling(self, condition: str) -> dict[str, Any]:
        """Identical code against one baseline timing, and against the average of two: medians over the trials."""
        rows = {}
        for name in (None, *self.workloads):
            trials = [
                trial
                for trial in self.select(method="compare", condition=condition, truth=1.0, function=name)
                if trial.pooled is not None
            ]
            if trials:
                rows[name or "all"] = {
                    "trials": len(trials),
                    "one": _median_with_interval([trial.ratio for trial in trials]),
                    "pooled": _median_with_interval([trial.pooled for trial in trials]),
                }
        return rows

    def __repr__(self) -> str:
        blocks = ["\n".join(_text_table(*table)) for table in self._tables()]
        lines = [line for text in self._lines() for line in textwrap.wrap(text, 110, subsequent_indent="  ")]
        return "\n\n".join([*blocks, "\n".join(lines)])

    def _repr_html_(self) -> str:
        parts = [_html_table(*table) for table in self._tables()]
        return "\n".join([*parts, *(f"<p>{html.escape(line)}</p>" for line in self._lines())])

    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Caption, header and rows of each table."""
        judged = self.summary()["judges"]
        labels = [judge.label for judge in self.judges]
        rows = []
        for condition in self.conditions:
            seen = [judged[label][condition] for label in labels]
            rows.append([f"{condition}: identical code, false verdicts", *(_false_words(one) for one in seen)])
            for truth in ("1.03", "1.05"):
                rows.append(
                    [
                        f"{condition}: {truth}x twin, called SLOWER",
                        *(_count(one["slower_twins"][truth]) for one in seen),
                    ]
                )
            rows.append([f"{condition}: known 2.00x, largest error", *(_error_words(one["known"]) for one in seen)])
            rows.append([f"{condition}: its 95% interval, median width", *(_width_words(one["known"]) for one in seen)])
            rows.append([f"{condition}: seconds, median", *(_seconds_words(one["seconds"]) for one in seen)])
        return [("Timers as judges of known answers", ["", *labels], rows)]

    def _lines(self) -> list[str]:
        threads, burners = self.settings["threads"], self.settings["burners"]
        lines = [
            "One torch thread." if threads == 1 else f"{threads} torch threads.",
            f"Loaded: {burners} other process{'' if burners == 1 else 'es'} kept busy.",
            "Brackets: the rate is at most this, or at least this, with 95% confidence (Clopper-Pearson, one-sided).",
        ]
        if not self.complete:
            lines.append("Not all planned trials are in: run the benchmark again, and it goes on where it stopped.")
        return [" ".join(lines), self.environment.caption]

    def plot(self) -> Figure:
        """Draw every trial on identical code, and how often slower twins were found.

        Returns:
            The figure. It shows itself in a notebook; ``.savefig(path)`` writes it.
        """
        return _draw(self)


def load(path: Path) -> TimerQuality:
    """Read a record of the benchmark.

    Args:
        path: a file that ``benchmarks/timer_quality.py`` wrote.

    Returns:
        The record.

    Raises:
        RecordError: if it is missing, damaged, or of a newer schema.
    """
    shown = f"{path.parent.name}/{path.name}"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecordError(f"there is no {shown}. Run `python benchmarks/timer_quality.py` to make it.") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RecordError(f"{shown} cannot be read: {error}. {_RERUN}") from error
    if not isinstance(data, dict) or data.get("kind") != KIND or not isinstance(data.get("schema_version"), int):
        raise RecordError(f"{shown} is not a record of benchmarks/timer_quality.py. {_RERUN}")
    if data["schema_version"] > SCHEMA_VERSION:
        raise RecordError(
            f"{shown} has schema version {data['schema_version']}, and this course reads up to {SCHEMA_VERSION}. "
            "Update the course (git pull)."
        )
    try:
        return TimerQuality.from_record(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{shown} is damaged ({error!r}). {_RERUN}") from error


def summary(record: Path | Mapping[str, Any] | TimerQuality) -> dict[str, Any]:
    """The numbers of a record, from a file, its JSON or the loaded record: see :meth:`TimerQuality.summary`."""
    if isinstance(record, Path):
        record = load(record)
    return (record if isinstance(record, TimerQuality) else TimerQuality.from_record(record)).summary()


def reference_root() -> Path:
    """Where the committed records of the benchmark are, one file a machine: no lesson's record lies there."""
    return package_root() / "lessons" / "measuring" / "timer_trials"


def timer_quality(machine: str | None = None, root: Path | None = None) -> TimerQuality:
    """The committed record of the benchmark: how good ``compare`` and the usual ways are as judges.

    Args:
        machine: a machine's short name, for example ``nvidia-h200``. By default the newest record, a GPU's first.
        root: the folder with one file a machine; by default the package's own.

    Returns:
        The record. It shows itself as a table; ``.plot()`` draws every trial.

    Raises:
        RecordError: if there is no such record, or if it is damaged or too new.
    """
    root = root or reference_root()
    known = sorted(path.stem for path in root.glob("*.json"))
    if machine is not None and machine not in known:
        raise RecordError(
            f"the timers were not judged on a machine {machine!r}; they were on: {', '.join(known) or 'none'}. "
            "There, run `python benchmarks/timer_quality.py --reference`."
        )
    if not known:
        raise RecordError("no timer was judged yet: run `python benchmarks/timer_quality.py --reference`.")
    if machine is not None:
        return load(root / f"{machine}.json")
    records = [load(root / f"{name}.json") for name in known]
    return max(records, key=lambda record: (record.environment.device_kind != "cpu", record.recorded_at))


def _compact(value: Any) -> Any:
    """Six significant digits: far below any timer's noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return [_compact(item) for item in value] if isinstance(value, tuple | list) else value


def _rate(happened: Iterable[bool]) -> dict[str, Any]:
    outcomes = list(happened)
    if not outcomes:
        return {"hits": 0, "trials": 0, "rate": None, "lower": None, "upper": None}
    lower, upper = rate_bounds(sum(outcomes), len(outcomes))
    return {
        "hits": sum(outcomes),
        "trials": len(outcomes),
        "rate": sum(outcomes) / len(outcomes),
        "lower": lower,
        "upper": upper,
    }


def _median_with_interval(ratios: Sequence[float]) -> dict[str, float | None]:
    interval = paired.median_interval(ratios, 0.95)
    return {
        "median": statistics.median(ratios),
        "low": interval.low if interval.bounded else None,
        "high": interval.high if interval.bounded else None,
    }


def _goals(compare: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was asked of ``compare``; ``reached`` is None where there are too few trials to tell."""
    goals = []

    def goal(words: str, found: str, reached: bool | None) -> None:
        goals.append({"goal": words, "found": found, "reached": reached})

    for condition, seen in compare.items():
        rate = seen["identical"]
        if rate["trials"]:
            enough = rate["trials"] * _FALSE_RATE >= 1
            ok = rate["rate"] <= _FALSE_RATE
            found = _false_words(seen)
            goal(
                f"{condition}: at most 1 false verdict in 400 on identical code",
                found,
                ok if enough or not ok else None,
            )
    for condition, truth in (("idle", "1.03"), ("loaded", "1.05")):
        rate = compare.get(condition, {}).get("slower_twins", {}).get(truth, {"trials": 0})
        if rate["trials"]:
            goal(f"{condition}: {truth}x twin called SLOWER in at least 90%", _count(rate), rate["rate"] >= _DETECTION)
    for condition, seen in compare.items():
        known = seen["known"]
        if known["trials"]:
            good, n = known["interval_meets_and_narrow"], known["trials"]
            goal(
                f"{condition}: known 2.00x, 95% interval meets [1.98, 2.02] and is at most 3% wide",
                f"{good} of {n}",
                good == n,
            )
        if seen["seconds"]:
            worst = seen["seconds"]["max"]
            goal(f"{condition}: a comparison takes at most 3 s", f"longest {worst:.1f} s", worst <= _SECONDS)
    return goals


def _false_words(seen: Mapping[str, Any]) -> str:
    rate = seen["identical"]
    if not rate["trials"]:
        return "–"
    return f"{rate['hits']} of {rate['trials']} (at most {_percent(rate['upper'])})"


def _count(rate: Mapping[str, Any]) -> str:
    if not rate["trials"]:
        return "–"
    return f"{rate['hits']} of {rate['trials']} (at least {_percent(rate['lower'])})"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2g}%" if fraction < 0.095 else f"{100 * fraction:.0f}%"


def _error_words(known: Mapping[str, Any]) -> str:
    return _percent(known["largest_error"]) if known["trials"] else "–"


def _width_words(known: Mapping[str, Any]) -> str:
    return _percent(known["width_median"]) if known["trials"] and known["width_median"] is not None else "no interval"


def _seconds_words(seconds: Mapping[str, float]) -> str:
    return f"{seconds['median']:.2f} s" if seconds else "–"


def _text_table(caption: str, header: list[str], rows: list[list[str]]) -> list[str]:
    # Headers of several words take two lines: five judges then fit into a terminal.
    heads = [textwrap.wrap(cell, 14) or [""] for cell in header]
    height = max(map(len, heads))
    heads = [[""] * (height - len(parts)) + parts for parts in heads]
    lines = [[parts[i] for parts in heads] for i in range(height)]
    widths = [max(len(row[i]) for row in (*lines, *rows)) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        return "  ".join([first.strip().ljust(widths[0]), *rest]).rstrip()

    return [caption, *map(line, lines), "  ".join("-" * width for width in widths), *map(line, rows)]


def _html_table(caption: str, header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
    body = "\n".join(
        f'<tr><th scope="row">{html.escape(first)}</th>' + "".join(f"<td>{html.escape(c)}</td>" for c in rest) + "</tr>"
        for first, *rest in rows
    )
    return (
        f"<table>\n<caption>{html.escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table>"
    )


# Okabe and Ito's palette, as in the course's other figures; the marker's shape says the same as the colour.
_VERDICT_STYLE = {
    Verdict.FASTER: ("#009E73", "v", "wrong: FASTER"),
    Verdict.SLOWER: ("#D55E00", "^", "wrong: SLOWER"),
    Verdict.SAME: ("#0072B2", "s", "right: SAME"),
    Verdict.UNCLEAR: ("#777777", "o", "UNCLEAR"),
}
_JUDGE_COLOUR = {
    "compare": "#0072B2",
    "Timer, 1% rule": "#D55E00",
    "Timer, quartiles apart": "#E69F00",
    "do_bench, 1% rule": "#CC79A7",
    "do_bench, quartiles apart": "#8C5A7C",
}
_METHOD_LABEL = {"compare": "compare", "timer": "Timer", "do_bench": "do_bench"}


def _draw(record: TimerQuality) -> Figure:
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from course_utils.show.canvas import WIDTH_IN, ResultFigure

    numbers = record.summary()["judges"]
    by_ratio = [judge for judge in record.judges if not judge.label.endswith("apart")]
    strips = [(condition, judge) for condition in record.conditions for judge in by_ratio]
    groups = [(condition, truth) for condition in record.conditions for truth in ("1.03", "1.05")]
    rows = [(*group, judge) for group in groups for judge in record.judges]
    strip_in, row_in, gap_in = 0.62, 0.25, 0.16
    between_in = 1.28 if len(record.judges) <= 4 else 1.5  # the legend needs a second line
    upper_in = strip_in * len(strips)
    lower_in = row_in * len(rows) + gap_in * (len(groups) - 1)
    height = 0.78 + upper_in + between_in + lower_in + 0.95
    style = {
        "font.size": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#888888",
        "figure.dpi": 110,
        "savefig.dpi": 110,
        "text.color": "#222222",
        "axes.labelcolor": "#222222",
    }
    with matplotlib.style.context(["default", style]):
        figure = ResultFigure(figsize=(WIDTH_IN, height))
        FigureCanvasAgg(figure)
        left, right = 1.5, 1.72

        def panel(bottom: float, tall: float) -> Axes:
            width = WIDTH_IN - left - right
            return figure.add_axes((left / WIDTH_IN, bottom / height, width / WIDTH_IN, tall / height))

        def words(x: float, y: float, text: str, **options: Any) -> None:
            figure.text(x / WIDTH_IN, y / height, text, **options)

        lower = panel(0.95, lower_in)
        upper = panel(0.95 + lower_in + between_in, upper_in)
        title = {"va": "top", "weight": "bold", "size": 13}
        words(0.12, height - 0.12, "The same code, timed as two: every trial", **title)
        middle = 0.95 + lower_in + between_in - 0.66
        words(0.12, middle, "A twin that does a little more work: how often it is called SLOWER", **title)
        _draw_identical(upper, record, strips, numbers)
        _draw_detection(lower, groups, record.judges, numbers, gap_in / row_in)
        words(0.12, 0.12, record.environment.caption, va="bottom", size=9.5, color="#555555")
        figure.alt = _alt(record, numbers)
    return figure


def _draw_identical(ax: Axes, record: TimerQuality, strips: Sequence[tuple[str, Judge]], numbers: Any) -> None:
    """One row for each judge and condition: the ratio of every A/A trial, in the colour of its verdict."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ends = [0.97, 1.03]
    shown: dict[Verdict, None] = {}
    golden = (math.sqrt(5) - 1) / 2
    for y, (condition, judge) in enumerate(strips):
        trials = record.select(method=judge.method, condition=condition, truth=1.0)
        ends += [trial.ratio for trial in trials]
        for verdict, (colour, marker, _) in _VERDICT_STYLE.items():
            chosen = [(i, trial) for i, trial in enumerate(trials) if judge.verdict(trial) == verdict]
            if chosen:
                shown[verdict] = None
            wrong = verdict in (Verdict.FASTER, Verdict.SLOWER)
            ax.plot(
                [trial.ratio for _, trial in chosen],
                [y + 0.34 * (2 * ((i * golden) % 1) - 1) for i, _ in chosen],
                marker, ms=5.5 if wrong else 4, mew=0, color=colour, alpha=0.85 if wrong else 0.45,
                zorder=4 if wrong else 3,
            )  # fmt: skip
        rate = numbers[judge.label][condition]["identical"]
        if rate["trials"]:
            text = f"{rate['hits']} of {rate['trials']} wrong\n(at most {_percent(rate['upper'])})"
            ax.annotate(text, (1.0, y), (8, 0), ("axes fraction", "data"), "offset points", va="center", size=10)
    ax.axvline(1.0, color="#333333", lw=0.8, zorder=1)
    low, high = min(ends), max(ends)
    margin = (high / low) ** 0.04
    ax.set_xscale("log")
    ax.set_xlim(low / margin, high * margin)
    ax.set_ylim(len(strips) - 0.5, -0.5)
    steps = (0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10)
    ax.xaxis.set_major_locator(FixedLocator(_spread([step for step in steps if low <= step <= high], low, high)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel("measured ratio (the truth is 1)")
    ax.set_yticks(range(len(strips)), [f"{_METHOD_LABEL[judge.method]}\n{condition}" for condition, judge in strips])
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color="#E6E6E6", lw=0.7)
    ax.set_axisbelow(True)
    _legend(ax, [_VERDICT_STYLE[verdict] for verdict in _VERDICT_STYLE if verdict in shown])


def _legend(ax: Axes, entries: Sequence[tuple[str, str, str]]) -> None:
    """What the colours mean, in one line above the axes: colour, marker and words of each entry."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], ls="", marker=marker, ms=7, mew=0, color=colour) for colour, marker, _ in entries]
    ax.legend(
        handles,
        [words for *_, words in entries],
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        ncols=3 if len(entries) > 4 else max(1, len(entries)),
        frameon=False,
        fontsize=10,
        columnspacing=1.2,
        handletextpad=0.2,
        borderaxespad=0.1,
    )


def _spread(ticks: Sequence[float], low: float, high: float) -> list[float]:
    """The ticks that stand apart on a logarithmic axis; 1 is always among them."""
    kept = [1.0]
    for tick in sorted(ticks, key=lambda tick: -abs(math.log(tick))):
        if all(abs(math.log(tick / other)) > 0.11 * math.log(high / low) for other in kept):
            kept.append(tick)
    return sorted(kept)


def _draw_detection(
    ax: Axes, groups: Sequence[tuple[str, str]], judges: Sequence[Judge], numbers: Any, gap: float
) -> None:
    """One row for each twin, condition and judge: the share of trials that called it SLOWER, with exact bounds."""
    ticks, labels = [], []
    y = 0.0
    for condition, truth in groups:
        ticks.append(y + (len(judges) - 1) / 2)
        labels.append(f"{truth}x\n{condition}")
        for judge in judges:
            rate = numbers[judge.label][condition]["slower_twins"][truth]
            colour = _JUDGE_COLOUR[judge.label]
            if rate["trials"]:
                ax.plot([rate["lower"], rate["upper"]], [y, y], color=colour, lw=4, alpha=0.35, solid_capstyle="butt")
                ax.plot([rate["rate"]], [y], "o", ms=8, mew=0, color=colour, zorder=3, clip_on=False)
            text = f"{rate['hits']} of {rate['trials']}"
            ax.annotate(text, (1.0, y), (12, 0), ("axes fraction", "data"), "offset points", va="center", size=10)
            y += 1
        y += gap
    ax.set_ylim(y - gap - 0.5, -0.5)
    ax.set_xlim(0, 1)
    ax.axvline(_DETECTION, color="#333333", lw=0.8, ls=(0, (4, 3)), zorder=1)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 0.9, 1], ["0%", "25%", "50%", "75%", "90%", "100%"])
    ax.set_xlabel("trials that called it SLOWER (bar: exact 95% bounds)")
    ax.set_yticks(ticks, labels)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color="#E6E6E6", lw=0.7)
    ax.set_axisbelow(True)
    _legend(ax, [(_JUDGE_COLOUR[judge.label], "o", judge.label) for judge in judges])


def _alt(record: TimerQuality, numbers: Any) -> str:
    parts = []
    for condition in record.conditions:
        for judge in record.judges:
            seen = numbers[judge.label][condition]
            parts.append(
                f"{judge.label}, {condition}: false verdicts {_false_words(seen)}, 1.03x twin found in "
                f"{_count(seen['slower_twins']['1.03'])}, 1.05x in {_count(seen['slower_twins']['1.05'])}"
            )
    return (
        "Measured ratio of every trial on identical code, coloured by verdict, and the share of slower twins found. "
        f"{'; '.join(parts)}. {record.environment.caption}."
    )
