"""What `caching_allocator` says about a real GPU: which variable counts, and what its training reports under a cap."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from course_utils.lessons.caching_allocator import cases
from course_utils.memory.allocator import ENVIRONMENT_VARIABLES

_IN_FORCE = (
    "import torch; torch.zeros(1, device='cuda'); settings = torch.cuda.memory._snapshot()['allocator_settings']; "
    "print(settings['PYTORCH_CUDA_ALLOC_CONF'], settings['expandable_segments'])"
)


def asked(**variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT_VARIABLES}
    return subprocess.run(
        [sys.executable, "-c", _IN_FORCE],
        env=clean | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_older_name_wins() -> None:
    ran = asked(PYTORCH_ALLOC_CONF="expandable_segments:True", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64")
    assert ran.stdout.split() == ["max_split_size_mb:64", "False"], ran.stderr[-2000:]


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
