"""Cases timed side by side, round by round, with verdicts."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from course_utils.records import paired
from course_utils.records.kinds.ceilings import Ceiling
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.paired import Interval, Verdict
from course_utils.records.result import Result, built, compact, fields_of, tuples


@dataclass(frozen=True)
class Case:
    """One case of a comparison, seen against its baseline.

    Attributes:
        measurement: the case's raw samples.
        comparison: the comparison that it belongs to.
    """

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

    def interval_at(self, confidence: float) -> Interval:
        """Interval of :attr:`ratio` at a confidence between 0 and 1."""
        return paired.ratio_interval(self.log_ratios, confidence)

    @property
    def interval(self) -> Interval:
        """The 95% interval of :attr:`ratio`: the one to show."""
        return self.interval_at(paired.SHOWN_CONFIDENCE)

    @property
    def decision_interval(self) -> Interval:
        """The 99% interval of :attr:`ratio`: the one that the verdict rests on."""
        return self.interval_at(paired.DECISION_CONFIDENCE)

    @property
    def verdict(self) -> Verdict:
        """FASTER, SLOWER, SAME or UNCLEAR; see :func:`paired.decide`. The baseline is SAME as itself."""
        if self.is_baseline:
            return Verdict.SAME
        return paired.decide(self.ratio, self.decision_interval, self.comparison.noise, self.comparison.practical)

    @property
    def block_rounds(self) -> int:
        """Rounds merged into one because neighbours were not independent; 1 is none."""
        return paired.block(self.log_ratios)[1]

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
        from course_utils.show import verdict_sentence

        return verdict_sentence(self)

    def __repr__(self) -> str:
        return f"{self.label}: {self.words}"


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Cases timed side by side, round by round.

    Attributes:
        cases: raw samples of each case; the first is the baseline.
        control: the baseline's second timing in each round: the A/A control.
        environment: machine and software.
        name: the record's name, ``lesson/experiment``.
        parameters: problem sizes and settings.
        cache: ``warm`` or ``cold``: what the caches held before a call.
        clock: how ``elapsed_s`` was read, in words.
        agreement: how it was checked that the cases compute the same thing, in words.
        practical: relative difference below which nobody cares.
        planned_rounds: rounds that the pilot asked for.
        spent_s: seconds that the whole comparison took.
        interrupted: whether it was stopped before all planned rounds were done.
        ceiling: the machine's limit that rates are shown against, if any.
        notes: what a reader must know, in words.
    """

    kind: ClassVar[str] = "comparison"

    cases: tuple[Measurement, ...]
    control: Measurement
    environment: Environment
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    cache: str = "warm"
    clock: str = "host clock"
    agreement: str = "not checked"
    practical: float = paired.PRACTICAL
    planned_rounds: int = 0
    spent_s: float = 0.0
    interrupted: bool = False
    ceiling: Ceiling | None = None
    notes: tuple[str, ...] = ()

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
        return Case(self.cases[0], self).decision_interval

    def __getitem__(self, label: str) -> Case:
        for case in self.cases:
            if case.label == label:
                return Case(case, self)
        raise KeyError(f"no case {label!r} in this comparison; there are: {', '.join(self.labels)}")

    def __iter__(self) -> Iterator[Case]:
        return (Case(case, self) for case in self.cases)

    def to_record(self) -> dict[str, Any]:
        """The comparison as plain JSON types, raw samples included."""
        record = fields_of(self)
        record["cases"] = [case.to_record() for case in self.cases]
        record["control"] = self.control.to_record()
        record["environment"] = self.environment.to_record()
        record["ceiling"] = None if self.ceiling is None else dataclasses.asdict(self.ceiling)
        return compact(record)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The comparison from :meth:`to_record`'s dictionary."""
        values = tuples(record, ("notes",))
        values["cases"] = tuple(Measurement.from_record(case) for case in record["cases"])
        values["control"] = Measurement.from_record(record["control"])
        values["environment"] = Environment.from_record(record["environment"])
        if record.get("ceiling") is not None:
            values["ceiling"] = Ceiling.from_record(record["ceiling"])
        result = built(cls, values)
        if len(set(result.labels)) < max(2, len(result.cases)):
            raise ValueError("a comparison has two cases or more, of different names")
        if {case.rounds for case in result.cases} != {result.rounds}:
            raise ValueError("the cases have different numbers of rounds")
        return result
