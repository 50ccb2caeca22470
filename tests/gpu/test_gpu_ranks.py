"""run_ranks on GPUs: NCCL where there is a GPU for each rank, and the CPU where there is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from course_utils.ranks.launch import run_ranks

TRAIN = Path(__file__).parents[1] / "rank_programs" / "train.py"


def test_each_rank_has_a_gpu_of_its_own_and_talks_through_nccl() -> None:
    ranks = min(2, torch.cuda.device_count())
    run = run_ranks(TRAIN, ranks=ranks)
    assert run.backend == "nccl"
    assert run.parameters["backend"] == "nccl"
    assert len({report["weight"] for report in run}) == 1
    assert run.comparison("scaling").rounds == 8


def test_more_ranks_than_gpus_run_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = torch.cuda.device_count() + 1
    run = run_ranks(TRAIN, ranks=ranks)
    assert run.backend == "gloo"
    assert f"0 of {ranks} on cpu" in capsys.readouterr().out
    with pytest.raises(ValueError, match="NCCL needs a GPU for each rank"):
        run_ranks(TRAIN, ranks=ranks, backend="nccl")
