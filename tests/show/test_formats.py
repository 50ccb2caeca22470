"""Numbers with units, as people read them."""

from __future__ import annotations

import pytest

from course_utils.results.paired import Interval
from course_utils.show.formats import (
    axis_unit,
    format_bytes,
    format_count,
    format_interval,
    format_percent,
    format_rate,
    format_ratio,
    format_seconds,
)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_seconds(3.2e-10), "0.320 ns"),
        (format_seconds(9.996e-7), "1.00 µs"),
        (format_seconds(1234.0), "1234 s"),
        (format_bytes(1023.9 * 1024), "1.00 MiB"),
        (format_bytes(1000 * 2**20), "1000 MiB"),
        (format_bytes(None), "–"),
        (format_rate(2e9, "B/s"), "2.00 GB/s"),
        (format_count(124_439_808), "124 million"),
        (axis_unit("s", 0.002), (0.001, "ms")),
        # Ratios near one keep their difference.
        (format_ratio(1.0042), "1.004"),
        (format_ratio(1.83), "1.83"),
        (format_interval(Interval(0.996, 1.0312, 0.95)), "0.996 to 1.031"),
        (format_percent(0.0042), "0.42%"),
    ],
)
def test_quantities_have_three_digits_and_a_unit(shown, expected):
    assert shown == expected
