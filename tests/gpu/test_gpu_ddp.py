"""What lesson 17 says of GPUs: the programs on NCCL, DataParallel with one GPU and with two, memory of the buckets."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_utils.lessons.ddp.drawings import overlap_lanes
from course_utils.materials.models import GPT
from course_utils.ranks.launch import run_ranks

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
needs_nccl = pytest.mark.skipif(not dist.is_available() or not dist.is_nccl_available(), reason="needs NCCL")
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(autouse=True)
def where_the_notebook_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(NOTEBOOKS)


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0))
    yield
    dist.destroy_process_group()


@needs_nccl
def test_training_on_one_gpu_finds_the_gradients_of_the_plain_model() -> None:
    run = run_ranks("scripts/ddp_train.py", ranks=1, args=["--steps", 3])
    assert run.backend == "nccl"
    assert run[0]["device"] == "cuda"
    assert run[0]["gradient_error"]["float32"] < 1e-5
    assert run[0]["gradient_error"]["float64"] < 1e-12
    assert set(run[0]["loss_curves"]) == {"DDP", "one process", "DataParallel"}


@needs_nccl
def test_ddp_with_nobody_to_talk_to_is_timed_against_the_plain_model() -> None:
    run = run_ranks("scripts/ddp_scaling.py", ranks=1, args=["--rounds", 8])
    assert run[0]["device"] == "cuda"
    assert [case.label for case in run.comparison("steps")] == ["one process", "DDP, 1 rank"]


@needs_nccl
def test_a_trace_on_gpus_has_a_backward_lane() -> None:
    ranks = torch.cuda.device_count()
    run = run_ranks("scripts/ddp_communication.py", ranks=ranks, args=["--rounds", 2])
    for lanes in run[0]["lanes"].values():
        (start, end), *more = lanes["backward"]
        assert (start, more) == (0.0, [])
        assert end > 0
        assert ranks == 1 or lanes["all-reduce"]
    assert "dotted line" in overlap_lanes(run).alt


@needs_nccl
@needs_two_gpus
def test_a_single_bucket_travels_after_the_backward_pass() -> None:
    run = run_ranks("scripts/ddp_communication.py", ranks=2, args=["--rounds", 2, "--width", 512])
    [[_, end]] = run[0]["lanes"]["bucket_cap_mb=25"]["backward"]
    sent = run[0]["lanes"]["bucket_cap_mb=25"]["all-reduce"]
    # Copies out of the bucket would be a part of the backward lane that begins after the all-reduce.
    assert sent[-1][0] >= 0.95 * end
    assert len(run[0]["lanes"]["default"]["all-reduce"]) > 1


def test_data_parallel_with_one_gpu_only_forwards() -> None:
    model = nn.Linear(8, 8).cuda()
    wrapped = nn.DataParallel(model, device_ids=[0])
    x = torch.randn(4, 8, device="cuda")
    torch.testing.assert_close(wrapped(x), model(x), rtol=0, atol=0)


@needs_nccl
def test_gradients_as_views_save_the_memory_of_the_gradients(group_of_one: None) -> None:
    base, held = GPT(width=256).cuda(), {}
    gradients = sum(parameter.nbytes for parameter in base.parameters())
    tokens = torch.zeros(1, 8, dtype=torch.int64, device="cuda")
    base(tokens).square().mean().backward()  # allocates what the libraries keep for themselves
    base.zero_grad(set_to_none=True)
    for view in (False, True):
        before = torch.cuda.memory_allocated()
        model = DistributedDataParallel(copy.deepcopy(base), gradient_as_bucket_view=view)
        for _ in range(3):
            model(tokens).square().mean().backward()
        held[view] = torch.cuda.memory_allocated() - before
        del model
        torch.cuda.synchronize()
    assert 0.9 * gradients < held[False] - held[True] < 1.1 * gradients


@needs_nccl
@needs_two_gpus
def test_data_parallel_and_ddp_are_timed_on_the_same_global_batch() -> None:
    ranks = torch.cuda.device_count()
    run = run_ranks("scripts/ddp_scaling.py", ranks=ranks, args=["--rounds", 8, "--global-batch", 8 * ranks])
    labels = [case.label for case in run.comparison("steps")]
    assert labels[:2] == ["one process", "DataParallel"]
    assert labels[-1] == f"DDP, {ranks} ranks"
