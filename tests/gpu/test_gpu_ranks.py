"""run_ranks and the programs of `ddp` and `fsdp` on GPUs: NCCL where there is a GPU for each rank, else the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from course_utils.ranks.launch import run_ranks

TRAIN = Path(__file__).parents[1] / "rank_programs" / "train.py"
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
RANKS = [1, pytest.param(2, marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"))]
pytestmark = pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="needs NCCL")


@pytest.fixture(autouse=True)
def in_the_notebooks_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(NOTEBOOKS)


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


def test_training_on_one_gpu_finds_the_gradients_of_the_plain_model() -> None:
    run = run_ranks("scripts/ddp_train.py", ranks=1, args=["--compare", "--samples", 48])
    assert run.backend == "nccl"
    assert run[0]["device"] == "cuda"
    assert run[0]["gradient_error"]["float32"] < 1e-5
    assert run[0]["gradient_error"]["float64"] < 1e-12
    assert run[0]["loss_error"] < 1e-3


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", RANKS)
def test_strategies_keep_their_shares_and_agree(ranks: int) -> None:
    args = ["--width", 256]
    run = run_ranks("scripts/fsdp_train.py", ranks=ranks, args=args, timeout_s=240, show_output=False)
    assert run.backend == "nccl"
    whole = 4 * run[0]["parameters"]
    for strategy, kept in run[0]["memory"].items():
        share = ranks if strategy.startswith("FSDP") else 1
        assert kept["weights"] == pytest.approx(whole / share, rel=0.02), strategy
        assert kept["gradients"] == pytest.approx(whole / share, rel=0.02), strategy
    for strategy, losses in run[0]["losses"].items():
        assert losses == pytest.approx(run[0]["losses"]["one process"], rel=1e-3), strategy
    for strategy, step in run[0]["steps"].items():
        # The allocator rounds up, and cuBLAS, NCCL and the input text take memory that no tensor of the step has.
        assert run[0]["cuda_peak_bytes"][strategy] > 0.9 * step["peak_bytes"], strategy
    assert run[0]["traffic"]["ZeRO-1"]["broadcast"]["of them weights"] == whole
    if ranks > 1:  # one rank has nobody to gather from
        # torch 2.13, _fsdp_state.py: by default, the root stays gathered after its forward pass.
        assert run[0]["traffic"]["FSDP root only"]["allgather"]["calls"] == 1
        assert run[0]["traffic"]["FSDP"]["allgather"]["calls"] == 9
