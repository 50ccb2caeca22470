"""What only a GPU can show of `mixed_precision`: what a large vocabulary needs."""

from __future__ import annotations

from course_utils import compare
from course_utils.lessons.mixed_precision import cases


def test_three_tensors_of_the_logits_size_stand_at_the_peak_in_each_precision() -> None:
    steps = cases.ladder(256, 2, 1, 1024, vocabulary=cases.VOCABULARY)
    compared = compare(steps, check=cases.close, budget_s=0.5)
    logits = 4 * cases.VOCABULARY * 1024
    assert all(3 <= case.measurement.peak_allocated_bytes / logits < 3.6 for case in compared), compared
