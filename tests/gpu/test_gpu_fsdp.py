"""What `fsdp`'s programs do with NCCL: the same bookkeeping as on a CPU, seen by CUDA's own allocator as well."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from course_utils.ranks.launch import run_ranks

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
RANKS = [1, pytest.param(2, marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"))]


@pytest.fixture(autouse=True)
def in_the_notebooks_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(NOTEBOOKS)


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
