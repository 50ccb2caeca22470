"""Paired comparison of timings: ratios, the exact interval of a median, and a verdict.

Two medians taken one after the other mislead on any machine that is shared, warms up or changes its clock: the drift
between them looks like a difference. Here both sides are timed in every round, next to each other, and the statistic is
the median of the per-round ratios. Its interval comes from order statistics: it assumes that rounds are independent and
nothing about the shape of the noise, so a few terrible outliers cannot move it.

Everything works on logarithms of ratios, so that swapping case and baseline turns a ratio into exactly its inverse.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise

DECISION_CONFIDENCE = 0.99
# Below it, two cases take the same time. A record keeps the one that it was made with. Elsewhere it stands in "From an
# interval to a verdict" of book/how_we_measure.md, and as 1.01 or 0.01 where a condition of lesson.yml compares times.
PRACTICAL = 0.01
# After so many rounds a comparison is looked at, and stops if it is decided. Each of these looks may be wrong in 0.1%
# of all cases; what they leave of the 1% is for the last look, at the end of the time or of the rounds. All together
# hold the 1%, whatever is done after a look (Bonferroni), as long as rounds do not follow each other unnoticed: 12
# are too few to notice. Naive looking, each at 1%, is wrong several times as often.
LOOKS = (12, 24, 48, 96, 192, 384, 768, 1536)
LOOK_SHARE = 0.001
MOST_ROUNDS = 3072
# A decided comparison goes on until its ratio is known to 1% to either side; the more seconds its rounds have taken,
# the less will do.
_PATIENCE = ((0.0, 1.01), (0.4, 1.015), (1.0, math.inf))
# The 99% interval of a median needs 8 values: between the smallest and the largest of n lies 1 - 2 * 0.5**n.
MIN_ROUNDS = 8
# One-sided 5% point of a standard normal: how far the lag-1 autocorrelation of n independent rounds strays, x sqrt(n).
# A stricter point would leave more dependent series unblocked, and their intervals too narrow.
_AUTOCORRELATION_Z = 1.645


class Verdict(StrEnum):
    """What a comparison says about one case, against the baseline."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    UNCLEAR = "UNCLEAR"


@dataclass(frozen=True)
class Interval:
    """A two-sided interval; infinite at both ends, or from 0 on, when there were too few values for the confidence."""

    low: float
    high: float
    confidence: float

    @property
    def bounded(self) -> bool:
        """Whether there were enough values for an interval at all."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends."""
        return self.low, self.high

    def inside(self, low: float, high: float) -> bool:
        """Whether the whole interval lies between ``low`` and ``high``."""
        return low <= self.low and self.high <= high

    def meets(self, low: float, high: float) -> bool:
        """Whether the interval and ``[low, high]`` share a point."""
        return self.low <= high and low <= self.high

    def inverse(self) -> Interval:
        """The interval of 1/x, for a positive quantity x."""
        low, high = (1 / end if end else math.inf for end in (self.high, self.low))
        return Interval(low, high, self.confidence)


@lru_cache(maxsize=4096)
def interval_rank(n: int, confidence: float) -> int:
    """Rank k such that the k-th smallest and k-th largest of ``n`` values enclose the median.

    The number of values below the true median is binomial(n, 1/2), whatever the distribution; k is the largest rank for
    which the two tails together stay within ``1 - confidence``.

    Source:
        Conover, Practical Nonparametric Statistics, 3rd ed. (1999), section 3.2.

    Example:
        >>> interval_rank(8, 0.99), interval_rank(7, 0.99)  # 0: so few values cannot give that confidence
        (1, 0)
    """
    rank, tail = 0, 1
    while tail / 2**n <= (1 - confidence) / 2:
        rank += 1
        tail += math.comb(n, rank)
    return rank


def median_interval(values: Sequence[float], confidence: float = DECISION_CONFIDENCE) -> Interval:
    """Exact (order-statistic) interval of the median of independent values.

    Example:
        >>> median_interval([1, 2, 3, 4, 5, 6, 7, 8], 0.99)
        Interval(low=1, high=8, confidence=0.99)
    """
    rank = interval_rank(len(values), confidence)
    if rank == 0:
        return Interval(-math.inf, math.inf, confidence)
    ordered = sorted(values)
    return Interval(ordered[rank - 1], ordered[-rank], confidence)


def log_ratios(case: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Per-round logarithm of the case's time over the reference's time.

    One timing against one timing. Averaging two timings of the baseline in each round would look like a gain, but
    timing noise is skewed to the right: the average of two draws has a higher median than one draw, and a case
    identical to the baseline then comes out faster. One draw on each side makes the noise symmetric.

    Raises:
        ValueError: if the series differ in length, or hold a time that is not positive.
    """
    if min(*case, *reference) <= 0:
        raise ValueError("a timing of zero or less cannot be compared: give each timing more calls")
    return [math.log(c / r) for c, r in zip(case, reference, strict=True)]


def lag1_autocorrelation(values: Sequence[float]) -> float:
    """Autocorrelation between neighbouring rounds, on ranks so that outliers do not decide it."""
    ordered = sorted(values)
    # Twice the ranks. Equal values share the middle of theirs, so that turning all signs around changes nothing.
    ranks = [bisect_left(ordered, value) + bisect_right(ordered, value) for value in values]
    mean = statistics.fmean(ranks)
    centred = [rank - mean for rank in ranks]
    total = math.fsum(c * c for c in centred)
    return math.fsum(a * b for a, b in pairwise(centred)) / total if total else 0.0


def _follow_each_other(values: Sequence[float]) -> bool:
    return lag1_autocorrelation(values) > _AUTOCORRELATION_Z / math.sqrt(len(values))


def least_values(confidence: float) -> int:
    """How many values give the median an interval of some confidence: between the smallest and the largest of them.

    Example:
        >>> least_values(0.99), least_values(0.999)
        (8, 11)
    """
    return math.ceil(math.log2(2 / (1 - confidence)))


def block(values: Sequence[float], least: int = MIN_ROUNDS) -> tuple[list[float], int]:
    """Merge neighbouring rounds until they no longer follow each other.

    Slow drifts (a clock that steps down, a neighbour that wakes up) make rounds dependent, and an interval that assumes
    independence is then too narrow. Medians of blocks of 2, 4, 8... rounds are taken until the lag-1 autocorrelation is
    no longer significantly positive (5%, one-sided), or until fewer than ``least`` would be left.

    Returns:
        The blocks' medians and the number of rounds in a block.
    """
    size = 1
    blocks = list(values)
    while len(blocks) // 2 >= least and _follow_each_other(blocks):
        size *= 2
        blocks = [statistics.median(values[i : i + size]) for i in range(0, len(values) - size + 1, size)]
    return blocks, size


def ratio_interval(logs: Sequence[float], confidence: float = DECISION_CONFIDENCE) -> Interval:
    """Interval of the median ratio, from log ratios in the order in which the rounds ran.

    It is (0, inf) when there are too few rounds. When rounds follow each other so much that not even the blocks of
    :func:`block` are independent, the ratio itself drifted: then it is what the blocks reached, and as far again to
    either side.
    """
    least = least_values(confidence)
    blocks = block(logs, least)[0]
    interval = median_interval(blocks, confidence)
    if len(blocks) >= least and _follow_each_other(blocks):
        low, high = min(blocks), max(blocks)
        return Interval(math.exp(2 * low - high), math.exp(2 * high - low), confidence)
    if not interval.bounded:
        return Interval(0.0, math.inf, confidence)
    return Interval(math.exp(interval.low), math.exp(interval.high), confidence)


def noise_floor(noise: Interval) -> float:
    """How far an A/A control strayed: 1.004 means that differences up to 0.4% could be noise."""
    return max(noise.high, 1 / noise.low if noise.low > 0 else math.inf, 1.0)


def decide(ratio: float, interval: Interval, noise: Interval, practical: float = PRACTICAL) -> Verdict:
    """Turn an interval into a verdict.

    - SAME when the whole interval lies within ``practical`` of 1. It wins over a direction: a difference of 0.3% may be
      real, and still nobody should change code for it.
    - SLOWER or FASTER when the ratio is further than ``practical`` from 1 and the whole interval lies beyond what the
      A/A control (the baseline timed against itself, in the same rounds) reached in either direction.
    - UNCLEAR otherwise.

    Args:
        ratio: median of the case's time over the baseline's.
        interval: interval of that ratio, at the confidence for decisions.
        noise: that of the A/A control's ratio.
        practical: the relative difference below which nobody cares.

    Example:
        >>> decide(1.05, Interval(1.04, 1.06, 0.99), noise=Interval(0.998, 1.002, 0.99))
        <Verdict.SLOWER: 'SLOWER'>
    """
    if not (interval.bounded and noise.bounded):
        return Verdict.UNCLEAR
    if interval.inside(1 / (1 + practical), 1 + practical):
        return Verdict.SAME
    floor = noise_floor(noise)
    if interval.low > floor and ratio > 1 + practical:
        return Verdict.SLOWER
    if interval.high < 1 / floor and ratio < 1 / (1 + practical):
        return Verdict.FASTER
    return Verdict.UNCLEAR


def look_confidence(rounds: int, last: bool) -> float:
    """Confidence of the intervals that decide after so many rounds; ``last`` if no look follows.

    Example:
        >>> look_confidence(24, last=False), round(look_confidence(30, last=True), 3)  # 30: two looks came before
        (0.999, 0.992)
    """
    spent = LOOK_SHARE * sum(look < rounds for look in LOOKS)
    return 1 - (1 - DECISION_CONFIDENCE - spent if last else LOOK_SHARE)


@dataclass(frozen=True)
class Judgement:
    """What the rounds say about one case."""

    ratio: float  # median of the case's time over the baseline's
    interval: Interval
    verdict: Verdict

    def is_enough(self, spent_s: float) -> bool:
        """Whether more rounds would tell nobody more, after those of so many seconds."""
        return self.verdict is not Verdict.UNCLEAR and is_precise(self.interval, spent_s)


def is_precise(interval: Interval, spent_s: float) -> bool:
    """Whether an interval is narrow enough to stop, after rounds of so many seconds."""
    factor = max(factor for seconds, factor in _PATIENCE if spent_s >= seconds)
    return interval.high <= factor**2 * interval.low


def judge(
    case: Sequence[float],
    baseline: Sequence[float],
    control: Sequence[float],
    confidence: float = DECISION_CONFIDENCE,
    practical: float = PRACTICAL,
) -> Judgement:
    """Judge a case by the seconds of each round: its own, the baseline's and the A/A control's."""
    logs = log_ratios(case, baseline)
    interval = ratio_interval(logs, confidence)
    noise = ratio_interval(log_ratios(control, baseline), confidence)
    ratio = math.exp(statistics.median(logs))
    return Judgement(ratio, interval, decide(ratio, interval, noise, practical))
