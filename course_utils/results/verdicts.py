"""Verdicts in words. One direction: the number is never below 1, and the words say the way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from course_utils.results import paired
from course_utils.results.paired import Interval, Verdict
from course_utils.show.cards import Toned
from course_utils.show.formats import (
    format_interval,
    format_noise,
    format_percent,
    format_seconds,
    format_times,
    listed,
)

if TYPE_CHECKING:
    from course_utils.results.comparison import Case, Comparison

# What people read.
WORDS = {
    Verdict.FASTER: "faster",
    Verdict.SLOWER: "slower",
    Verdict.SAME: "same",
    Verdict.UNCLEAR: "too close to call",
}
# How to read the bars.
SURE = "bar: where the true ratio lies, 99% sure"
# In an unclear line, more cases than this are only counted.
_NAMED = 2
# Longer than this nobody waits for a comparison.
_LONGEST_BUDGET_S = 60
TOOK_THE_CORE = "took this one's core"
"""What a note on a busy machine says where the measuring thread itself was stopped, again and again."""
# Where identical code strays by more than these factors, what else was measured meanwhile is no finding, however clear
# its verdict: what a busy machine does to one case it does not do to the next. One slow round of eight is enough for a
# factor of two on an idle machine, so it takes more; but less where the thread is known to have lost its core.
_TOO_BUSY, _TOO_BUSY_WITHOUT_A_CORE = 3.0, 1.25


def verdict_words(case: Case) -> str:
    """The verdict in a few words, for a cell: ``1.83× as fast``, ``same``, ``too close to call``."""
    if case.is_baseline:
        return "baseline"
    decided = case.verdict in (Verdict.FASTER, Verdict.SLOWER)
    return format_times(case.ratio, tight=True) if decided else WORDS[case.verdict]


def verdict_parts(case: Case, against: bool = True) -> list[str | Toned]:
    """The verdict as a sentence that names both sides, or the case alone: ``pinned is 1.83 times as fast``."""
    tone, verdict = case.tone, case.verdict
    if case.is_baseline:
        return [Toned(case.label), " is the baseline"]
    base = [" as ", Toned(case.comparison.baseline)] if against else []
    if verdict is Verdict.UNCLEAR:
        return [Toned(case.label), " is ", Toned(WORDS[verdict], tone)]
    if verdict is Verdict.SAME:
        within = f" (within {format_percent(case.comparison.practical)})"
        return [Toned(case.label), " takes ", Toned("the same time", tone), *base, within]
    verb = " is " if verdict is Verdict.FASTER else " takes "
    return [Toned(case.label), verb, Toned(format_times(case.ratio), tone), *base]


def too_busy_parts(noise_floor: float, busy: str, whose: str, where: str = "") -> list[str | Toned]:
    """That a machine was too busy to tell (at some points of a sweep), and what would help; nothing if it was not."""
    limit = _TOO_BUSY_WITHOUT_A_CORE if TOOK_THE_CORE in busy else _TOO_BUSY
    if not limit < noise_floor < math.inf:
        return []
    # What somebody else recorded, nobody can run again.
    way_out = "" if whose == "recorded" else " Close other programs and run the cell again."
    said = f"{where and ' '}{where}: the same code strayed by a factor of {noise_floor:.1f}.{way_out}"
    return [Toned("This machine was too busy to tell", "unclear"), said]


def comparison_parts(comparison: Comparison) -> list[str | Toned]:
    """What a comparison found, in one sentence: the largest gain, or else the largest loss; then what the others do."""
    if comparison.too_busy:
        return comparison.too_busy
    order = (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME)
    clear = [case for case in comparison.others if case.verdict in order]
    if not clear:
        return unclear_parts(comparison)
    clear.sort(key=lambda case: (order.index(case.verdict), -abs(math.log(case.ratio))))
    first, *rest = clear
    parts, others = verdict_parts(first), len(comparison.others) - 1
    counts = Counter(case.verdict for case in rest)
    words = {**WORDS, Verdict.SAME: "the same"}
    if len(rest) == 1:
        parts += ["; ", *verdict_parts(rest[0], against=False)]
    elif len(rest) == others and len(counts) == 1:
        parts.append(f". The other {others} are all {words[rest[0].verdict]}")
    elif rest:
        # What is unclear has a line of its own.
        said = listed(
            f"{counts[key]} {'is' if counts[key] == 1 else 'are'} {words[key]}" for key in order if counts[key]
        )
        parts.append(f". Of the other {others}, {said}")
    return [*parts, "."]


def interval_words(case: Case) -> str:
    """The interval of a case in the direction of its verdict: ``1.80 to 1.86``; empty if there is none."""
    if not case.interval.bounded:
        return ""
    return format_interval(case.interval.inverse() if case.ratio < 1 else case.interval)


def unclear_parts(comparison: Comparison) -> list[str | Toned]:
    """What could not be decided, in one line, and what would help; nothing if all is decided."""
    unclear = [case for case in comparison.others if case.verdict is Verdict.UNCLEAR]
    if not unclear:
        return []
    if not comparison.noise.bounded:
        help_ = "let it run to the end" if comparison.interrupted else "raise budget_s"
        why = f": a verdict takes {paired.MIN_ROUNDS} rounds, and there are {comparison.rounds}: {help_}."
        return [Toned("Too close to call", "unclear"), why]
    ranges = [f"{case.label} is {between(case.interval)}" for case in unclear[:_NAMED]]
    if len(unclear) > _NAMED:
        more = len(unclear) - _NAMED
        ranges.append(f"and {more} more case{'s' if more > 1 else ''}")
    floor = comparison.noise_floor
    drowned = any(case.interval.meets(1 / floor, floor) and not case.interval.meets(1, 1) for case in unclear)
    noise = f" (identical code differs as well: {format_noise(floor)})" if drowned else ""
    said = f": {'; '.join(ranges)}{noise}. {_way_out(comparison, unclear)}"
    return [Toned("Too close to call", "unclear"), said]


def _way_out(comparison: Comparison, unclear: Sequence[Case]) -> str:
    """What would settle it: more time, if it would be enough, or a quieter machine."""
    spent = comparison.spent_s or sum(
        sum(timed.elapsed_s) * timed.calls for timed in (*comparison.cases, comparison.control)
    )
    needed = spent * max(_more_rounds(case) for case in unclear)
    busy = f"{comparison.busy} Stop them" if comparison.busy else ""
    if needed > _LONGEST_BUDGET_S or comparison.rounds >= paired.MOST_ROUNDS:
        stop = busy or "Stop other programs and run it again"
        return f"{stop}; if that does not help, the difference is too small for this machine."
    budget = _rounded_up(max(needed, 2 * spent))
    more_time = f"un it again with budget_s={budget:g} (it took {format_seconds(spent)})"
    return f"{busy}, or r{more_time}." if busy else f"R{more_time}, or stop other programs first."


def _more_rounds(case: Case) -> float:
    """How many times as many rounds would decide, if all intervals shrink with the square root of rounds."""
    half, noise = math.log(case.interval.high / case.interval.low) / 2, math.log(case.comparison.noise_floor)
    away, practical = abs(math.log(case.ratio)), math.log1p(case.comparison.practical)
    for_same = (half / (practical - away)) ** 2 if away < practical else math.inf
    for_direction = ((half + noise) / away) ** 2 if away > practical else math.inf
    return min(for_same, for_direction)


def _rounded_up(seconds: float) -> float:
    scale = 10 ** math.floor(math.log10(seconds))
    return next(step * scale for step in (1, 2, 5, 10) if step * scale >= seconds)


def between(interval: Interval) -> str:
    """An interval of a ratio of times in words: ``between 4% faster and 3% slower``."""
    low, high = sorted((interval.low, interval.high), key=lambda ratio: abs(math.log(ratio)))
    one_way = (low < 1) == (high < 1)
    large = max(abs(math.log(interval.low)), abs(math.log(interval.high))) >= math.log(2)

    def words(ratio: float) -> str:
        if large:
            return format_times(ratio)
        percent = 100 * (max(ratio, 1 / ratio) - 1)
        return f"{percent:.{int(percent < 2)}f}% {'faster' if ratio < 1 else 'slower'}"

    if words(low) == words(high):
        return words(high)
    first = words(low).split(" ")[0] if one_way else words(interval.low)
    return f"between {first} and {words(high if one_way else interval.high)}"
