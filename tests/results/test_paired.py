"""The statistics of paired comparison, against scipy, against enumeration and against simulated timings."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import scipy.stats

from course_utils.results import paired
from course_utils.results.paired import Interval, Verdict

MIRRORED = {
    Verdict.FASTER: Verdict.SLOWER,
    Verdict.SLOWER: Verdict.FASTER,
    Verdict.SAME: Verdict.SAME,
    Verdict.UNCLEAR: Verdict.UNCLEAR,
}


# --- rank and interval


@pytest.mark.parametrize("confidence", [0.5, 0.99])
def test_rank_is_the_widest_cut_that_the_binomial_allows(confidence):
    for n in [*range(120), 400, 1000]:
        rank = paired.interval_rank(n, confidence)
        tail = (1 - confidence) / 2
        # Rank k fails to cover when fewer than k values fall on one side of the median.
        assert rank == 0 or scipy.stats.binom.cdf(rank - 1, n, 0.5) <= tail * (1 + 1e-9)
        if rank < n // 2:
            assert scipy.stats.binom.cdf(rank, n, 0.5) > tail * (1 - 1e-9)


@pytest.mark.parametrize("n", [8, 41])
def test_interval_is_the_one_of_scipy(n):
    values = np.random.default_rng(n).lognormal(size=n)
    theirs = scipy.stats.quantile_test(values, q=0, p=0.5).confidence_interval(0.99)
    assert paired.median_interval(values.tolist(), 0.99).ends == (theirs.low, theirs.high)


def test_the_99_percent_interval_needs_8_values():
    assert not paired.median_interval([1.0] * 7, 0.99).bounded
    assert paired.median_interval([1.0] * 8, 0.99).bounded
    assert paired.ratio_interval([0.1] * 7) == paired.ratio_interval([]) == Interval(0.0, math.inf, 0.99)


# --- ratios


def test_series_that_cannot_be_compared_are_refused():
    for case, reference in (([1.0, 2.0], [1.0]), ([0.0], [1.0])):
        with pytest.raises(ValueError, match=r"shorter|more calls"):
            paired.log_ratios(case, reference)


# --- dependence between rounds


def autoregressive(generator: random.Random, n: int, follow: float) -> list[float]:
    """Noise in which each round remembers the last one."""
    value = generator.gauss(0, 1) / math.sqrt(1 - follow * follow)
    series = []
    for _ in range(n):
        value = follow * value + generator.gauss(0, 1)
        series.append(value)
    return series


def test_autocorrelation_is_that_of_the_ranks():
    values = autoregressive(random.Random(3), 200, 0.6)
    ranks = scipy.stats.rankdata(values)
    centred = ranks - ranks.mean()
    expected = (centred[:-1] @ centred[1:]) / (centred @ centred)
    assert paired.lag1_autocorrelation(values) == pytest.approx(expected)
    assert paired.lag1_autocorrelation([5.0] * 20) == 0


def test_a_trend_is_blocked_until_8_blocks_are_left():
    for rounds in (32, 35):  # the last three make no block
        assert paired.block([float(i) for i in range(rounds)]) == ([1.5 + 4 * i for i in range(8)], 4)


def test_independent_rounds_are_seldom_taken_for_dependent_ones():
    generator = random.Random(5)
    series = ([generator.gauss(0, 1) for _ in range(64)] for _ in range(1000))
    assert 20 <= sum(paired.block(each)[1] > 1 for each in series) <= 60  # 5% or less, one-sided


def test_a_ratio_that_drifts_has_an_interval_of_what_its_blocks_reached_and_as_far_again():
    logs = [0.7 + 0.001 * i for i in range(32)]
    blocks, _ = paired.block(logs)
    interval = paired.ratio_interval(logs)
    assert math.log(interval.low) == pytest.approx(2 * blocks[0] - blocks[-1])
    assert math.log(interval.high) == pytest.approx(2 * blocks[-1] - blocks[0])
    assert paired.decide(2.0, interval, QUIET) == "SLOWER"
    assert paired.decide(1.0, paired.ratio_interval([0.01 * i for i in range(-8, 24)]), QUIET) == "UNCLEAR"


# --- verdicts

QUIET = Interval(0.998, 1.002, 0.99)
UNBOUNDED = Interval(0.0, math.inf, 0.99)


@pytest.mark.parametrize(
    ("ratio", "low", "high", "noise", "verdict"),
    [
        (1.050, 1.040, 1.060, QUIET, "SLOWER"),
        (0.950, 0.940, 0.960, QUIET, "FASTER"),
        (1.000, 0.995, 1.005, QUIET, "SAME"),
        (1.005, 1.003, 1.007, QUIET, "SAME"),  # real, and still nothing to change code for
        (1.000, 0.980, 1.020, QUIET, "UNCLEAR"),
        (1.009, 1.004, 1.014, QUIET, "UNCLEAR"),  # beyond the noise, but within what matters
        (1.011, 1.004, 1.018, QUIET, "SLOWER"),
        # The A/A gate, in both directions and from both sides.
        (1.050, 1.040, 1.060, Interval(0.99, 1.045, 0.99), "UNCLEAR"),
        (1.050, 1.040, 1.060, Interval(0.955, 1.001, 0.99), "UNCLEAR"),
        (1.050, 1.040, 1.060, Interval(0.99, 1.039, 0.99), "SLOWER"),
        # A gate that lies wholly on one side must not let through what lies between it and 1.
        (1.050, 0.990, 1.060, Interval(0.98, 0.99, 0.99), "UNCLEAR"),
        # No interval, no verdict.
        (1.500, 0.000, math.inf, QUIET, "UNCLEAR"),
        (1.500, 1.400, 1.600, UNBOUNDED, "UNCLEAR"),
        (1.000, 0.995, 1.005, UNBOUNDED, "UNCLEAR"),
    ],
)
def test_verdicts(ratio, low, high, noise, verdict):
    interval = Interval(low, high, 0.99)
    assert paired.decide(ratio, interval, noise) == verdict
    mirrored = paired.decide(1 / ratio, interval.inverse(), noise)
    assert mirrored == MIRRORED[Verdict(verdict)]


def test_identical_code_with_wild_noise_gets_no_direction():
    """Skewed, drifting noise with outliers of 5x: what a shared machine does."""
    generator = random.Random(17)
    false = 0
    for _ in range(400):
        # Each side drifts by itself: a drift that all share cancels.
        drifts = [[math.exp(x / 50) for x in autoregressive(generator, 60, 0.8)] for _ in range(3)]
        sides = [
            [d * (1 + generator.expovariate(20)) * (5 if generator.random() < 0.03 else 1) for d in drift]
            for drift in drifts
        ]
        false += paired.judge(*sides).verdict in (Verdict.FASTER, Verdict.SLOWER)
    assert false <= 2  # at most 1 in 200


# --- looks


def test_the_looks_together_spend_no_more_than_one_percent():
    for rounds in (5, 12, 30, 100, 1000, paired.MOST_ROUNDS):
        before = [look for look in paired.LOOKS if look < rounds]
        spent = sum(1 - paired.look_confidence(look, last=False) for look in before)
        assert spent + 1 - paired.look_confidence(rounds, last=True) == pytest.approx(0.01)
        confidence = paired.look_confidence(rounds, last=True)
        least = paired.least_values(confidence)
        assert paired.interval_rank(least, confidence) == 1 > paired.interval_rank(least - 1, confidence)
    # Each look can decide: there are enough rounds for an interval at its confidence.
    assert all(paired.interval_rank(look, paired.look_confidence(look, last=False)) > 0 for look in paired.LOOKS)


def test_a_decided_ratio_is_made_precise_but_not_for_ever():
    slower = [[2.0, 2.1] * 8, [1.0] * 16, [1.0] * 16]
    judged = paired.judge(*slower)
    assert judged.verdict == "SLOWER"
    assert [judged.is_enough(seconds) for seconds in (0.1, 0.6, 5.0)] == [False, False, True]
    assert not paired.judge([1.0, 1.1] * 8, *slower[1:]).is_enough(100.0)


def test_the_longer_a_comparison_took_the_less_precise_a_ratio_will_do():
    for width, enough_s in ((1.02, 0.0), (1.03, 0.4), (1.5, 1.0)):
        interval = Interval(2.0, 2.0 * width, 0.99)
        assert paired.is_precise(interval, enough_s)
        assert enough_s == 0 or not paired.is_precise(interval, enough_s - 0.01)
