"""Verdicts in words. One direction: the number is never below 1, and the words say the way."""

from __future__ import annotations

import math

from course_utils.results.paired import Interval, Verdict
from course_utils.show.cards import Toned
from course_utils.show.formats import format_times

# What people read: in a cell, and in a sentence.
WORDS = {
    Verdict.FASTER: "faster",
    Verdict.SLOWER: "slower",
    Verdict.SAME: "same",
    Verdict.UNCLEAR: "too close to call",
}
IN_A_SENTENCE = {**WORDS, Verdict.SAME: "the same"}
# How to read the bars.
SURE = "bar: where the true ratio lies, 99% sure"
TOOK_THE_CORE = "took this one's core"
"""What a note on a busy machine says where the measuring thread itself was stopped, again and again."""
# Where identical code strays by more than these factors, what else was measured meanwhile is no finding, however clear
# its verdict: what a busy machine does to one case it does not do to the next. One slow round of eight is enough for a
# factor of two on an idle machine, so it takes more; but less where the thread is known to have lost its core.
_TOO_BUSY, _TOO_BUSY_WITHOUT_A_CORE = 3.0, 1.25


def too_busy_parts(noise_floor: float, busy: str, whose: str, where: str = "") -> list[str | Toned]:
    """That a machine was too busy to tell (at some points of a sweep), and what would help; nothing if it was not."""
    limit = _TOO_BUSY_WITHOUT_A_CORE if TOOK_THE_CORE in busy else _TOO_BUSY
    if not limit < noise_floor < math.inf:
        return []
    # What somebody else recorded, nobody can run again.
    way_out = "" if whose == "recorded" else " Close other programs and run the cell again."
    said = f"{where and ' '}{where}: the same code strayed by a factor of {noise_floor:.1f}.{way_out}"
    return [Toned("This machine was too busy to tell", "unclear"), said]


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
