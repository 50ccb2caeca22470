"""Numbers with units, as people read them."""

from __future__ import annotations

import math

import pytest

from course_utils.records.paired import Interval
from course_utils.show.formats import (
    format_bytes,
    format_interval,
    format_percent,
    format_rate,
    format_ratio,
    format_seconds,
)

# ---- quantities


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 s"),
        (3.2e-10, "0.320 ns"),
        (1.234e-8, "12.3 ns"),
        (9.996e-7, "1.00 µs"),
        (1.234e-5, "12.3 µs"),
        (0.5, "500 ms"),
        (0.99951, "1.00 s"),
        (75.25, "75.2 s"),
        (1234.0, "1234 s"),
        (None, "–"),
        (math.inf, "–"),
    ],
)
def test_seconds(seconds, shown):
    assert format_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1023.9 * 1024, "1.00 MiB"),
        (1000 * 2**20, "1000 MiB"),
        (3 * 2**29, "1.50 GiB"),
        (None, "–"),
    ],
)
def test_bytes_are_binary(count, shown):
    assert format_bytes(count) == shown


def test_rates_are_decimal():
    assert format_rate(2e9, "B/s") == "2.00 GB/s"
    assert format_rate(989e12, "FLOP/s") == "989 TFLOP/s"
    assert format_rate(1.2e6, "items/s") == "1.20 M items/s"
    assert format_rate(None, "B/s") == "–"


def test_ratios_near_one_keep_their_difference():
    assert format_ratio(1.0042) == "1.004"
    assert format_ratio(0.998) == "0.998"
    assert format_ratio(1.83) == "1.83"
    assert format_interval(Interval(0.996, 1.0312, 0.95)) == "0.996 to 1.031"
    assert format_interval(Interval(0.0, math.inf, 0.95)) == "–"
    assert format_percent(0.01) == "1%"


# ---- verdicts in words
