"""Verdicts in words: what was found, how sure it is, and for an unclear one why and what to do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from course_utils.records import paired
from course_utils.records.paired import Verdict
from course_utils.show.formats import (
    format_interval,
    format_percent,
    format_ratio,
    format_times,
    is_number,
    listed,
    plain_number,
)

if TYPE_CHECKING:
    from course_utils.records.kinds.comparison import Case
    from course_utils.records.kinds.sweep import Sweep


def verdict_words(case: Case) -> str:
    """The verdict in a few words, for a table cell: ``FASTER: 1.83 times as fast``."""
    words = {
        Verdict.FASTER: f"{format_ratio(case.speedup)} times as fast",
        Verdict.SLOWER: f"{format_ratio(case.ratio)} times as long",
        Verdict.SAME: f"within {format_percent(case.comparison.practical)}",
        Verdict.UNCLEAR: "see below",
    }
    return "baseline" if case.is_baseline else f"{case.verdict}: {words[case.verdict]}"


def _unclear(case: Case) -> str:
    """Why no verdict could be reached, and what would help. Follows the branches of :func:`paired.decide`."""
    comparison, interval = case.comparison, case.interval
    if not (interval.bounded and comparison.noise.bounded):
        if comparison.rounds >= paired.MIN_ROUNDS:
            return (
                "UNCLEAR: neighbouring rounds resemble each other, so the machine drifts: stop other programs, or "
                "raise budget_s"
            )
        way_out = "let it run to the end" if comparison.interrupted else "raise budget_s"
        return f"UNCLEAR: needs {paired.MIN_ROUNDS} rounds, has {comparison.rounds}: {way_out}"
    shown = f"99% interval {format_interval(interval)}"
    if interval.low <= 1 <= interval.high:
        return (
            f"UNCLEAR: takes {format_ratio(interval.low)} to {format_ratio(interval.high)} times as long as the "
            f"baseline (99% interval), so it may be faster or slower: raise budget_s, or stop other programs"
        )
    direction = "slower" if interval.low > 1 else "faster"
    floor = comparison.noise_floor
    if interval.low <= floor and interval.high >= 1 / floor:
        return (
            f"UNCLEAR: looks {direction} ({shown}), but the baseline timed against itself strayed by "
            f"{format_percent(floor - 1)}: stop other programs, or raise budget_s"
        )
    return (
        f"UNCLEAR: {direction}, but perhaps by less than the {format_percent(comparison.practical)} that matters "
        f"({shown}): raise budget_s to narrow it"
    )


def verdict_sentence(case: Case) -> str:
    """The verdict with its 95% interval: ``FASTER: 1.83 times as fast (95% interval 1.80 to 1.86)``."""
    if case.is_baseline:
        return "baseline: the others are compared with it"
    verdict, words = case.verdict, verdict_words(case)
    if verdict is Verdict.UNCLEAR:
        return _unclear(case)
    if verdict is Verdict.FASTER:
        return f"{words} (95% interval {format_interval(case.interval.inverse())})"
    if verdict is Verdict.SLOWER:
        return f"{words.replace(': ', ': takes ')} (95% interval {format_interval(case.interval)})"
    return f"{words} (takes {format_interval(case.interval)} times as long, 95% interval)"


def headline(case: Case) -> str:
    """The verdict as a title that names both sides: ``pinned is FASTER: 1.83 times as fast as pageable``."""
    verdict, baseline = case.verdict, case.comparison.baseline
    if verdict is Verdict.UNCLEAR:
        return f"UNCLEAR whether {case.label} is faster or slower than {baseline}"
    if verdict is Verdict.SAME:
        return f"{case.label} takes the SAME time as {baseline}, within {format_percent(case.comparison.practical)}"
    takes = "takes " if verdict is Verdict.SLOWER else ""
    return f"{case.label} is {verdict_words(case).replace(': ', f': {takes}')} as {baseline}"


def verdict_in_a_text(case: Case, direction: str | None = None) -> str:
    """The verdict inside a sentence that names the cases itself: ``1.62 times as fast (95% interval 1.60 to 1.65)``."""
    if case.is_baseline:
        return "the baseline"
    decided = case.verdict in (Verdict.FASTER, Verdict.SLOWER)
    direction = direction or ("times as fast" if case.verdict is Verdict.FASTER else "times as long")
    is_speed = direction == "times as fast"
    shown = case.interval.inverse() if is_speed else case.interval
    if decided:
        times = format_ratio(case.speedup if is_speed else case.ratio)
        return f"{times} {direction} (95% interval {format_interval(shown)})"
    if case.verdict is Verdict.SAME:
        practical = format_percent(case.comparison.practical)
        return f"the same within {practical} (95% interval {format_interval(shown)} {direction})"
    if not case.interval.bounded:
        few = case.comparison.rounds < paired.MIN_ROUNDS
        return f"unclear (no interval: {'too few rounds' if few else 'the machine drifted'})"
    shown = case.interval.inverse() if is_speed else case.interval
    return f"unclear (99% interval {format_interval(shown)} {direction})"


def sweep_summary(sweep: Sweep, label: str, brief: bool = False) -> str:
    """How the verdict on one case changes over a sweep, what is faster first.

    For example ``batched is faster from batch 64 on (up to 3.1 times as fast), slower up to 8 (up to 2.4 times as
    long)``; ``brief`` leaves out how much.
    """
    cases = [point.comparison[label] for point in sweep.points]
    parts = []
    for verdict in Verdict:
        at = [i for i, case in enumerate(cases) if case.verdict is verdict]
        if not at:
            continue
        most = max((cases[i].ratio for i in at), key=lambda ratio: abs(math.log(ratio)))
        times = "" if brief else f" ({'up to ' if len(at) > 1 else ''}{format_times(most)})"
        # What varies is named once.
        where = _where(sweep.values, at, "" if parts else sweep.over)
        parts.append(
            {
                Verdict.FASTER: f"faster {where}{times}",
                Verdict.SLOWER: f"slower {where}{times}",
                Verdict.SAME: f"the same (within {format_percent(cases[0].comparison.practical)}) {where}",
                Verdict.UNCLEAR: f"too close to call {where}",
            }[verdict]
        )
    return f"{label} is {', '.join(parts)}"


def _where(values: Sequence[Any], at: Sequence[int], over: str) -> str:
    """Some points of a sweep in words: ``from batch 64 on``, ``at 64 KiB``, ``for chain and block``."""
    if len(at) == len(values):
        return "throughout"
    if not all(map(is_number, values)):
        return f"for {listed(str(values[i]) for i in at)}"
    # A unit, and things that are counted, stand behind their number: 64 KiB, 1000 elements; but: batch 64.
    is_behind = over[:1].isupper() or over.endswith("s")
    before, behind = ("", f" {over}") if is_behind else (f"{over} " if over else "", "")
    runs = []
    for _, run in itertools.groupby(enumerate(at), key=lambda pair: pair[1] - pair[0]):
        first, *_, last = [i for _, i in run] * 2
        start, end = (plain_number(values[i]) for i in (first, last))
        if first == last:
            runs.append(f"at {before}{start}{behind}")
        elif first == 0:
            runs.append(f"up to {before}{end}{behind}")
        elif last == len(values) - 1:
            runs.append(f"from {before}{start}{behind} on")
        else:
            runs.append(f"from {before}{start} to {end}{behind}")
        before = behind = ""
    return listed(runs)
