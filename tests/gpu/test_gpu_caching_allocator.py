"""What `caching_allocator`'s training reports on a real GPU, under a cap as well."""

from __future__ import annotations

import pytest
import torch

from course_utils.lessons.caching_allocator import cases


@pytest.mark.parametrize("label", cases.ON_A_GPU)
def test_a_training_reports_its_steps_and_its_memory_and_a_cap_is_kept(label: str) -> None:
    lengths = cases.DRAWS[2][:12]
    free = cases.train(64, 512, lengths, **cases.ON_A_GPU[label])
    assert (len(free["step_s"]), free["retries"]) == (12, 0)
    assert 0 < free["peak allocated"] <= free["peak reserved"]
    capped = cases.train(64, 512, lengths, int(0.8 * free["peak allocated"]), **cases.ON_A_GPU[label])
    assert len(capped["step_s"]) < 12
    assert capped["retries"] >= 1
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
