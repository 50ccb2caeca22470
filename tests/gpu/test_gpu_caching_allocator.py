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
def test_a_training_reports_its_steps_and_its_memory(label: str) -> None:
    report = cases.train(steps=12, **cases.SETTINGS[label])
    summary = report["summary"]
    assert summary["steps done"] == len(report["step_s"]) == len(report["reserved_mib"]) == 12
    assert summary["retries"] == 0
    assert (summary["given back"] > 0) == (label == "empty_cache() each step")
    assert summary["peak allocated"] <= summary["peak reserved"]
    assert summary["peak reserved"] >= max(report["reserved_mib"]) * cases.MIB
    assert (report["warm_up_s"] > 0) == label.startswith("warm-up")


def test_a_cap_is_kept_and_running_out_is_reported() -> None:
    demand = cases.train(steps=12)["summary"]["peak allocated"]
    summary = cases.train(steps=12, cap_bytes=int(0.8 * demand))["summary"]
    assert summary["unused"] is None
    assert summary["steps done"] < 12
    assert summary["retries"] >= 1
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
