"""What `ddp` says of GPUs: the programs on NCCL, DataParallel with one GPU and with two, memory of the buckets."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.models import GPT
from course_utils.ranks.launch import run_ranks

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
needs_nccl = pytest.mark.skipif(not dist.is_available() or not dist.is_nccl_available(), reason="needs NCCL")


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
    run = run_ranks("scripts/ddp_train.py", ranks=1, args=["--compare", "--samples", 48])
    assert run.backend == "nccl"
    assert run[0]["device"] == "cuda"
    assert run[0]["gradient_error"]["float32"] < 1e-5
    assert run[0]["gradient_error"]["float64"] < 1e-12
    assert run[0]["resume_error"]["all of it"] == 0


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
