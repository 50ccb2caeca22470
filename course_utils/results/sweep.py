"""The same comparison over a range of one parameter."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from course_utils.results.comparison import Case, Comparison
from course_utils.results.environment import Environment
from course_utils.results.measurement import OWN_WORK, Measurement, seconds_text, waiting_line
from course_utils.results.paired import Verdict
from course_utils.results.result import Fact, Result, by_name
from course_utils.results.verdicts import IN_A_SENTENCE, SURE, too_busy_parts
from course_utils.show.cards import Card, Toned, ends_of, plain, speed_axis
from course_utils.show.formats import (
    format_noise,
    format_percent,
    format_seconds,
    format_size,
    format_times,
    is_number,
    listed,
    plain_number,
)
from course_utils.show.tables import Column, Sheet, split

# What a parameter's name may end with, or be: a unit of its values. Amounts of memory are shown in the unit that fits.
_BYTES = {"B": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_WITH_UNIT = re.compile(rf"(?:(.+?),? )?({'|'.join(_BYTES)}|ns|µs|ms|s)")


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
    per: str = field(default="", compare=False)  # what an item is called, where the card tells times per item

    def __getitem__(self, value: Any) -> Comparison:
        """The comparison at one value, which may be given as it is shown: ``copy[16384]``, ``copy["16 MiB"]``."""
        points = {point.value: point.comparison for point in self.points}
        names = {_named(each, self.over, brief=True): each for each in points}
        value = names.get(value, value) if isinstance(value, str) else value
        return by_name(points, value, f"point {self.over}={value!r} in this sweep")

    def __iter__(self) -> Iterator[SweepPoint]:
        return iter(self.points)

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of the parameter that was varied."""
        return tuple(point.value for point in self.points)

    def showing(self, cases: Sequence[str] | None = None, at: Sequence[Any] | None = None, *, per: str = "") -> Self:
        """The sweep with a choice of its cases and points, which its card tells of; its folded numbers are of all.

        Args:
            cases: labels, in the order to show them: the one that was asked about first. By default all.
            at: values of the parameter, as they are or as they are shown; by default all. They keep their order.
            per: what an item is called, to show the time per item: ``token`` for ``items=`` tokens a call.

        Raises:
            KeyError: if there is no such case or value; the message names those that there are.
            ValueError: if the items of a call are not known, or not the same for all cases of a point.

        Example:
            >>> from course_utils import recorded
            >>> workloads = recorded("torch_compile/workloads")
            >>> workloads.showing(at=["training step"]).values
            ('training step',)
        """
        chosen = self.points if at is None else [self[value] for value in at]
        points = tuple(
            SweepPoint(point.value, point.comparison.showing(cases, per=per))
            for point in self.points
            if at is None or any(point.comparison is each for each in chosen)
        )
        return dataclasses.replace(self, points=points, whole=self.whole or self, per=per)

    def card(self) -> Card:
        """Where which case is faster: a row for each case and point, its bar the interval of its speed."""
        if not self.points:
            return Card("No point was measured.", **self.stamp())
        whole, first = self.whole or self, self.points[0].comparison
        stopped = f"Interrupted after {_named(whole.values[-1], self.over)}." if self.interrupted else ""
        cases = [(point.value, point.comparison[label]) for label in first.labels[1:] for point in self.points]
        # The recorded run may have other points and cases: only what both have is drawn behind.
        behind = {(p.value, case.label): case.bar for p in self.behind or () for case in p.comparison.others}
        timed = [
            (f"{m.label} ({_named(point.value, self.over)})", m)
            for point in self.points
            for m in point.comparison.cases
        ]
        is_bound = any(m.launch_bound for _, m in timed)
        # A number and its unit stay on one line.
        names = {value: re.sub(r"(?<=\d) ", "\u00a0", _named(value, self.over)) for value in self.values}
        rows = tuple(
            case.row(
                f"{case.label}, {names[value]}" if len(first.labels) > 2 else names[value],
                behind.get((value, case.label)),
                is_bound,
            )
            for value, case in cases
        )
        decided = [story for label in first.labels[1:] if (story := self._story(label))]
        against = ["Against ", Toned(first.baseline), ", "]
        sentence = [*against, *[part for story in decided for part in ("; ", *story)][1:], "."] if decided else []
        unclear, too_busy = self._unclear, self._too_busy
        noise = format_noise(max(point.comparison.noise_floor for point in self.points))
        busy = next(filter(None, [self.busy, *(point.comparison.busy for point in self.points)]), "")
        warning = busy if too_busy else "".join(map(plain, unclear if self.says or sentence else ()))
        notes = dict.fromkeys(note for point in self.points for note in point.comparison.notes)
        return Card(
            too_busy or self.says or sentence or unclear,
            rows,
            speed_axis(ends_of(rows), first.practical, is_bound),
            heads=(f"against {first.baseline}", f"time per {self.per or 'call'}"),
            second=OWN_WORK if is_bound else "",
            warning=" ".join(filter(None, (warning, stopped))),
            notes=(*waiting_line(timed), *self.notes, *notes),
            numbers=whole._numbers(),
            **self.stamp(
                f"{noise} at worst", "" if too_busy else busy.rstrip("."), SURE, grey=any(row.behind for row in rows)
            ),
        )

    def _numbers(self) -> Sheet:
        """A row for each point and case."""
        first, rows = self.points[0].comparison, [(p.value, case) for p in self.points for case in p.comparison]

        def column(header: str, cell: Callable[[Case], str], numeric: bool = True) -> Column:
            return Column(header, tuple(cell(case) for _, case in rows), numeric)

        def noise(case: Case) -> str:
            is_known = case.comparison.noise.bounded and case.is_baseline
            return format_noise(case.comparison.noise_floor).removeprefix("noise ") if is_known else ""

        core = [
            column("verdict", lambda case: case.verdict.lower(), numeric=False),
            column("time per call", lambda case: format_seconds(case.median_s)),
            column("relative", lambda case: "" if case.is_baseline else format_times(case.ratio, tight=True)),
            column("99% interval", lambda case: "" if case.is_baseline else case.interval_words),
            column("noise (A/A)", noise),
        ]
        more = [
            column("rate", lambda case: _rate(case.measurement)),
            column("share of ceiling", lambda case: case.comparison.share_of_ceiling(case.measurement)),
            column(OWN_WORK, lambda case: seconds_text(case.measurement.queued_ahead_s)),
        ]
        key = Column("case", tuple(f"{case.label}, {_named(value, self.over)}" for value, case in rows), numeric=False)
        caption = f"Median time per call over {self._axis}, against {first.baseline}"
        return Sheet(tuple(split(caption, "Rates", key, core, more)), (), (first.how, self.where))

    @property
    def _too_busy(self) -> list[str | Toned]:
        """That the machine was too busy to tell, and at which points; empty if it was not."""
        at = [i for i, point in enumerate(self.points) if point.comparison.too_busy]
        worst = max((self.points[i].comparison for i in at), key=lambda each: each.noise_floor, default=None)
        where = _where(self.values, at, self.over) if at and len(at) < len(self.points) else ""
        return too_busy_parts(worst.noise_floor, worst.busy, self.whose, where) if worst else []

    @property
    def _unclear(self) -> list[str | Toned]:
        """All that is unclear, in one line, and what would help."""
        named = []
        for label in self.points[0].comparison.labels[1:]:
            at = [i for i, p in enumerate(self.points) if p.comparison[label].verdict is Verdict.UNCLEAR]
            named += [f"{label} {self._where(at, brief=bool(named))}"] if at else []
        if not named:
            return []
        way_out = f": {'; '.join(named)}. A larger budget_s should tell, or stop other programs."
        return [Toned("Too close to call", "unclear"), way_out]

    def _story(self, label: str) -> list[str | Toned]:
        """How the verdict on one case changes over the range, what is faster first; what is unclear is left out.

        For example ``batched is faster from batch 64 on (up to 3.1 times as fast), slower up to 8 (up to 2.4 times as
        long)``.
        """
        cases = [point.comparison[label] for point in self.points]
        parts: list[str | Toned] = []
        for verdict in (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME):
            at = [i for i, case in enumerate(cases) if case.verdict is verdict]
            if not at:
                continue
            # What varies is named once.
            where = self._where(at, brief=bool(parts))
            parts += [", " if parts else " is ", Toned(IN_A_SENTENCE[verdict], cases[at[0]].tone)]
            if verdict is Verdict.SAME:
                parts.append(f" (within {format_percent(cases[0].comparison.practical)})")
            parts.append(f" {where}")
            if verdict in (Verdict.FASTER, Verdict.SLOWER):
                most = max((cases[i].ratio for i in at), key=lambda ratio: abs(math.log(ratio)))
                parts.append(f" ({'up to ' if len(at) > 1 else ''}{format_times(most)})")
        return [Toned(label), *parts] if parts else []

    def facts(self) -> Iterator[Fact]:
        """Those of the comparison at every point."""
        for point in self.points:
            for fact in point.comparison.facts():
                in_bytes = _what_and_unit(self.over)[1] in _BYTES
                row = f"{_named(point.value, self.over)}: {fact.label}" if in_bytes else ""
                yield dataclasses.replace(fact, label=f"{self.over} {point.value}: {fact.label}", row=row)

    def _where(self, at: Sequence[int], brief: bool = False) -> str:
        """Some of the points among all that were measured, in words; ``brief`` leaves out what varies."""
        values = (self.whole or self).values
        return _where(values, [values.index(self.values[i]) for i in at], self.over, brief)

    @property
    def _axis(self) -> str:
        """What the parameter is called where its values stand by themselves; amounts of memory bring their units."""
        what, unit = _what_and_unit(self.over)
        return what or "size" if unit in _BYTES else self.over

    @classmethod
    def to_file(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The sweep has the environment once, not at each point, and so what did the work, unless one differs."""
        for comparison in (point["comparison"] for point in values["points"]):
            del comparison["environment"]
            if comparison["worked_by"] in ("", values["worked_by"]):
                del comparison["worked_by"]
        return values

    @classmethod
    def from_file(cls, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Each point's comparison has the sweep's environment, and what did its work."""
        here = {key: record[key] for key in ("environment", "worked_by") if key in record}
        points = [{**point, "comparison": {**here, **point["comparison"]}} for point in record["points"]]
        return {**record, "points": points}


def _rate(measurement: Measurement) -> str:
    return measurement.rate_text("bytes") or measurement.rate_text("flops")


def _what_and_unit(over: str) -> tuple[str, str]:
    """A parameter and the unit of its values: ``buffer`` and ``KiB`` of ``buffer, KiB``; empty what there is not."""
    match = _WITH_UNIT.fullmatch(over)
    return (match[1] or "", match[2]) if match else (over, "")


def _named(value: Any, over: str, brief: bool = False) -> str:
    """One point: ``batch 64``, ``16 MiB`` of 16384 ``KiB``, ``1 000 elements``, a name alone; in brief ``64``."""
    if not is_number(value):
        return str(value)
    what, unit = _what_and_unit(over)
    number = format_size(value * _BYTES[unit]) if unit in _BYTES else f"{plain_number(value)} {unit}".strip()
    if brief or not what:
        return number
    # Things that are counted stand behind their number.
    is_behind = not unit and (what[0].isupper() or what.endswith("s"))
    return f"{number} {what}" if is_behind else f"{what} {number}"


def _where(values: Sequence[Any], at: Sequence[int], over: str, brief: bool = False) -> str:
    """Some points of a sweep: ``from batch 64 on``, ``at 64 KiB``, ``for chain and block``."""
    if len(at) == len(values):
        return "throughout"
    if not all(map(is_number, values)):
        return f"for {listed(str(values[i]) for i in at)}"
    runs = []
    for _, run in itertools.groupby(enumerate(at), key=lambda pair: pair[1] - pair[0]):
        first, *_, last = [i for _, i in run] * 2
        named = _named(values[first], over, brief or bool(runs))  # what varies is named once
        if first == last:
            runs.append(f"at {named}")
        elif first == 0:
            runs.append(f"up to {_named(values[last], over, brief or bool(runs))}")
        elif last == len(values) - 1:
            runs.append(f"from {named} on")
        else:
            runs.append(f"from {named} to {_named(values[last], over, brief=True)}")
    return listed(runs)
