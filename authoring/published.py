"""Published rows: what others measured and published, each with its hardware, date, source and catch.

A lesson.yml lists them under ``published``; parts of claims say what a row means for them, and under which condition on
its numbers. A row's numbers stand as they are printed in its source, so that anybody can look for them there. Where raw
samples are public, the intervals are worked out here, with the course's own statistics.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from authoring import evidence, expressions
from authoring.evidence import EvidenceError, Quantity, ShownNumber
from authoring.verdicts import OTHERWISE
from course_utils.results.paired import DECISION_CONFIDENCE, Interval, median_interval
from course_utils.results.store import package_root

NOT_STATED = "not stated"
# How names of values end, and what a number with that ending is in a unit of `TABLE_UNITS`.
_ENDINGS = {
    **{"s": ("s", 1.0), "ms": ("s", 1e-3), "us": ("s", 1e-6), "min": ("s", 60.0)},
    **{"kib": ("bytes", 2.0**10), "mib": ("bytes", 2.0**20), "gib": ("bytes", 2.0**30)},
    **{"kb": ("bytes", 1e3), "mb": ("bytes", 1e6), "gb": ("bytes", 1e9)},
    **{"gbs": ("B/s", 1e9), "tflops": ("FLOP/s", 1e12), "x": ("ratio", 1.0), "percent": ("percent", 1e-2)},
}
_DATE = re.compile(r"(?:19|20)\d\d(?:-\d\d(?:-\d\d)?)?")
# In an address: whatever is newest, not what was read.
_NEWEST = re.compile(r"/(?:main|master|HEAD|latest|stable|nightly)(?:/|$)")
# Names of an expression that are no values: `values` may not take them.
_NAMES = ("median", "paired", "ratio", "samples")
# What only this project has: a row that quotes it would lend our numbers somebody else's name.
_OWN_NAME = "pytorch-performance-course"
_OWN_FOLDERS = ("course_utils", "own_program", "authoring", "notebooks", "book")


@dataclass(frozen=True)
class Estimate:
    value: float
    interval: Interval

    def in_words(self, unit: str | None = None) -> str:
        words = evidence.in_words(self.value, unit)
        if not self.interval.bounded:
            return words
        if "ratio" in (unit, getattr(self.value, "unit", None)):
            return f"{words} ({evidence.in_words(self.interval, 'ratio')})"
        return f"{words} ({' to '.join(evidence.in_words(end, unit) for end in self.interval.ends)})"

    # With its whole interval, where there is one: what a row is said to say has to be beyond the noise.
    def __lt__(self, other: float) -> bool:
        return (self.interval.high if self.interval.bounded else self.value) < other

    def __gt__(self, other: float) -> bool:
        return (self.interval.low if self.interval.bounded else self.value) > other


def median(values: Sequence[float]) -> Estimate:
    """The median of independent values, with its exact interval.

    Example:
        >>> median([3, 1, 2, 4, 5, 8, 7, 6, 9]).in_words()
        '5 (1 to 9)'
    """
    return Estimate(statistics.median(values), median_interval(values))


def paired(ratios: Sequence[float]) -> Estimate:
    """The median of ratios, one for each model or problem that was run in both ways, with its exact interval."""
    estimate = median(ratios)
    return Estimate(Quantity(estimate.value, "ratio"), _ratios(*estimate.interval.ends))


def ratio(case: Sequence[float], baseline: Sequence[float]) -> Estimate:
    """The ratio of two medians of independent runs.

    Each median has an interval that misses half as often: their outermost quotients hold the ratio (Bonferroni).
    """
    above, below = (median_interval(each, (1 + DECISION_CONFIDENCE) / 2) for each in (case, baseline))
    value = Quantity(statistics.median(case) / statistics.median(baseline), "ratio")
    if not (above.bounded and below.bounded):
        return Estimate(value, _ratios(float("-inf"), float("inf")))
    return Estimate(value, _ratios(above.low / below.high, above.high / below.low))


def _ratios(low: float, high: float) -> Interval:
    return Interval(Quantity(low, "ratio"), Quantity(high, "ratio"), DECISION_CONFIDENCE)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a row's numbers stand: a file of a repository at one commit, or a page."""

    repository: str = ""
    path: str = ""
    commit: str = ""
    address: str = ""
    title: str = ""

    def __post_init__(self) -> None:
        if self.repository:
            if not re.fullmatch(r"[\w.-]+/[\w.-]+", self.repository) or not self.path:
                raise ValueError("a repository is written owner/name, with the path of the file in it")
            if not re.fullmatch(r"[0-9a-f]{7,40}", self.commit):
                raise ValueError("name the commit at which the file was read: 7 to 40 hexadecimal digits")
        elif not re.fullmatch(r"https?://[^\s/]+/\S*", self.address):
            raise ValueError("name a repository with path and commit, or an address that begins with https://")
        elif not self.title:
            raise ValueError("an address has a title: a link is read before it is followed")
        if _OWN_NAME in (*self.repository.split("/"), *self.address.split("/")) or self._is_ours():
            raise ValueError("this is a file of this course: what we measured is a record, not a published row")

    def _is_ours(self) -> bool:
        parts = Path(self.path).parts
        return bool(parts) and parts[0] in _OWN_FOLDERS and (package_root().parent / self.path).exists()

    @property
    def link(self) -> str:
        return self.address or f"https://github.com/{self.repository}/blob/{self.commit}/{self.path}"

    @property
    def who(self) -> str:
        """Whose it is: the repository, or what its title begins with, the author."""
        on_github = re.match(r"https://github\.com/([\w.-]+/[\w.-]+)", self.address)
        return self.repository or (on_github[1] if on_github else self.title.partition(",")[0])

    @property
    def words(self) -> str:
        return self.title or f"{self.repository}, {Path(self.path).name}"

    @property
    def drifts(self) -> str:
        """Why the link may show other numbers than those that were read; empty for a file at its commit."""
        if self.address and self.commit and self.commit[:7] not in self.address:
            return f"the link does not lead to commit {self.commit[:7]}, which was read"
        if _NEWEST.search(self.address):
            return "the link leads to the newest version, which may say something else by now"
        return ""


@dataclass(frozen=True, kw_only=True)
class Row:
    id: str
    compared: str
    hardware: str
    versions: str
    date: str
    n: str
    uncontrolled: str
    source: Source
    seen: str
    values: Mapping[str, float] = field(default_factory=dict)
    shows: tuple[ShownNumber, ...] = ()
    samples: str = ""
    lesson: str = ""

    def __post_init__(self) -> None:
        for name in ("id", "compared", "hardware", "versions", "n", "uncontrolled"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} is empty: say what the source says, or {NOT_STATED!r}")
        if not _DATE.fullmatch(self.date):
            raise ValueError(f"date {self.date!r}: write YYYY-MM-DD, YYYY-MM or YYYY, as a text in quotes")
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", self.seen):
            raise ValueError(f"seen {self.seen!r}: the day on which the source was opened and its numbers compared")
        if not (self.values or self.samples):
            raise ValueError("a row without values: write the numbers as the source prints them")
        if taken := sorted({*self.values} & {*_NAMES}):
            raise ValueError(f"{taken[0]!r} is a function of expressions: give the value another name")

    @property
    def device(self) -> str:
        """The hardware, in words where the source does not name it."""
        return "hardware not stated" if self.hardware == NOT_STATED else self.hardware

    @cached_property
    def names(self) -> dict[str, Any]:
        """What an expression over the row may use: its values with their units, its samples, three functions."""
        values = {name: _with_unit(name, value) for name, value in self.values.items()}
        functions = {"median": median, "paired": paired, "ratio": ratio}
        return {**values, **functions, "samples": self._samples()}

    def _samples(self) -> dict[str, list[float]]:
        if not self.samples:
            return {}
        path = package_root() / "lessons" / self.lesson / self.samples
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return content["samples"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EvidenceError(f"{self.id}: {self.samples} cannot be read ({error}): restore it from git") from error

    def evaluate(self, expression: str) -> Any:
        """What an expression over the row's values and samples gives.

        Raises:
            EvidenceError: if it cannot be worked out. It names the row.
        """
        try:
            return expressions.evaluate(expression, **self.names).value
        except EvidenceError as error:
            raise EvidenceError(f"{self.lesson}/lesson.yml, published {self.id}: {error}") from error

    @property
    def numbers(self) -> tuple[tuple[str, str], ...]:
        """Labels and words of what readers see."""
        if not self.shows:
            return tuple((name, evidence.in_words(self.names[name])) for name in self.values)
        return tuple((each.label, evidence.in_words(self.evaluate(each.show), each.unit)) for each in self.shows)


def _with_unit(name: str, value: float) -> float:
    unit, factor = _ENDINGS.get(name.rpartition("_")[2], (None, 1.0))
    return value if unit is None else Quantity(value * factor, unit)


@dataclass(frozen=True, kw_only=True)
class RowSays:
    """What a row means for a part of a claim, and the condition on its numbers that has to hold for that."""

    row: Row
    verdict: str  # confirmed, refuted or depends
    condition: str

    @property
    def holds(self) -> bool:
        """Whether the row's numbers bear it out."""
        holds = self.row.evaluate(self.condition)
        if not isinstance(holds, bool):
            raise EvidenceError(f"published {self.row.id}: {self.condition!r} is {holds!r}, and not true or false.")
        return holds


def word_of(says: Sequence[RowSays]) -> str:
    """The verdict that rows give together: `published`, `published otherwise` or `depends (published)`."""
    words = {("confirmed",): "published", ("refuted",): OTHERWISE["published"]}
    return words.get(tuple({each.verdict for each in says}), "depends (published)")
