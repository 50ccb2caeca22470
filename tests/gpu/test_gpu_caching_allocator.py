"""What lesson 11 says about a real GPU: which variable counts, and what its program reports under a cap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from course_utils.memory.allocator import ENVIRONMENT_VARIABLES
from course_utils.memory.snapshots import Snapshot, read_snapshot

PROGRAM = Path(__file__).resolve().parents[2] / "notebooks" / "scripts" / "variable_lengths.py"
_IN_FORCE = (
    "import torch; torch.zeros(1, device='cuda'); settings = torch.cuda.memory._snapshot()['allocator_settings']; "
    "print(settings['PYTORCH_CUDA_ALLOC_CONF'], settings['expandable_segments'])"
)


def without_options() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ENVIRONMENT_VARIABLES}


def asked(**variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _IN_FORCE],
        env=without_options() | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def run(folder: Path, *arguments: str, options: str = "") -> tuple[dict[str, Any], Snapshot]:
    path = folder / "snapshot.pickle"
    command = [sys.executable, str(PROGRAM), "--steps", "12", *arguments, "--snapshot", str(path)]
    environment = without_options() | {"PYTORCH_ALLOC_CONF": options}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1]), read_snapshot(path)


def test_the_older_name_wins() -> None:
    ran = asked(PYTORCH_ALLOC_CONF="expandable_segments:True", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64")
    assert ran.stdout.split() == ["max_split_size_mb:64", "False"], ran.stderr[-2000:]


@pytest.mark.parametrize("order", ["as they come", "buckets", "warm-up", "late warm-up"])
def test_the_program_reports_what_the_simulation_finds(tmp_path: Path, order: str) -> None:
    report, snapshot = run(tmp_path, "--order", order)
    summary = report["summary"]
    replay = snapshot.replay(ties=report["ties"])
    assert replay.agrees, replay
    assert summary["steps done"] == len(report["step_s"]) == len(report["reserved_bytes"]) == 12
    assert not report["out_of_memory"]
    assert summary["given back"] == summary["retries"] == 0
    assert (report["warm_up_s"] > 0) == order.endswith("warm-up")
    assert replay.run.peak_reserved_bytes == summary["peak reserved"] == max(report["reserved_bytes"])
    assert replay.run.peak_allocated_bytes == summary["peak allocated"]
    assert replay.run.device_allocs[-1] == summary["taken"]


def test_a_cap_is_kept_and_running_out_is_reported(tmp_path: Path) -> None:
    free, _ = run(tmp_path)
    demand = free["summary"]["peak allocated"]
    report, snapshot = run(tmp_path, "--cap-bytes", str(int(0.8 * demand)))
    assert report["out_of_memory"]
    assert report["summary"]["unused"] is None
    assert report["summary"]["steps done"] < 12
    assert report["summary"]["peak reserved"] <= report["cap_bytes"]
    assert report["summary"]["retries"] >= 1
    assert snapshot.replay(cap_bytes=report["cap_bytes"], ties=report["ties"]).agrees
