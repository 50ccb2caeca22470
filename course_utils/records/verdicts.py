"""Verdicts in words: what was found, how sure it is, and for an unclear one why and what to do."""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING

from course_utils.records import paired
from course_utils.records.paired import Verdict
from course_utils.show.formats import format_interval, format_percent, format_ratio, is_number

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


def sweep_summary(sweep: Sweep, label: str) -> str:
    """How the verdict on one case changes over a sweep: ``batched: SLOWER at batch 1 to 16, FASTER at 64 to 4096``.

    Values that are names have no order: ``compiled: FASTER for chain, block; SAME for MLP``.
    """
    verdicts = [(point.comparison[label].verdict, str(point.value)) for point in sweep.points]
    if not all(map(is_number, sweep.values)):
        names: dict[Verdict, list[str]] = {}
        for verdict, value in verdicts:
            names.setdefault(verdict, []).append(value)
        return f"{label}: " + "; ".join(f"{verdict} for {', '.join(values)}" for verdict, values in names.items())
    parts = []
    for verdict, run in itertools.groupby(verdicts, key=operator.itemgetter(0)):
        first, *_, last = [value for _, value in run] * 2
        where = first if first == last else f"{first} to {last}"
        parts.append(f"{verdict} at {'' if parts else sweep.over + ' '}{where}")
    return f"{label}: {', '.join(parts)}"
