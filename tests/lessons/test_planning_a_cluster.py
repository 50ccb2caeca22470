"""`planning_a_cluster`: the numbers of others, the peak that the cell to paste says, and what the page says is sent."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from authoring.lesson_files import load_lessons
from course_utils.lessons.planning_a_cluster import cases
from course_utils.materials.models import GPT
from course_utils.ranks.collectives import Collectives
from course_utils.ranks.programs import loss_of
from tests.lessons.pasted import pasted


def test_numbers_of_others_are_those_of_the_rows() -> None:
    rows = {row.id: row for lesson in load_lessons() for row in lesson.published}
    eager, compiled = rows["torchtitan_h100_7b_eager"], rows["torchtitan_h100_fsdp2_checkpointing"]
    bytes_ = {
        "all recomputed": eager["full_active_percent"] * eager["gpu_gib"],
        "nothing recomputed": compiled["none_gib"],
    }
    assert pytest.approx({name: each / 2**30 for name, each in bytes_.items()}) == cases.MEASURED_GIB


WIDTH = 16384


def build(mesh: Any, tokens: int, foreach: bool) -> tuple[Any, ...]:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(17)))
    for part in (*model[:16], model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach, fused=not foreach)

    def step() -> None:
        model(torch.empty(tokens, WIDTH)).exp().exp().exp().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


@pytest.mark.parametrize(("tokens", "foreach", "in_step"), [(8, True, True), (8, False, False), (400_000, True, False)])
def test_the_cell_to_paste_says_the_moment_and_the_parts(capsys: Any, tokens: int, foreach: bool, in_step: bool):
    show_peak = pasted("planning_a_cluster", "def show_peak")["show_peak"]
    show_peak(partial(build, tokens=tokens, foreach=foreach), 2)
    lines = (line.split(":") for line in capsys.readouterr().out.splitlines())
    size = {name.strip(): float(value.split()[0]) for name, value in lines if "Gi" in value}
    assert (size["OptState"] == pytest.approx(3 * size["Sharded Param"], rel=0.01)) is in_step
    weights = 17 * WIDTH**2 / 2**30
    if in_step:  # 16 bytes a parameter on two ranks, and foreach's temporary: 4
        assert size["Total"] == pytest.approx(20 * weights / 2, rel=0.001)
    assert (size["Activation"] + size["Temp"] > size["Total"] / 2) is (tokens > 8)


_COLLECTIVES = {"all-gather": ("allgather", 1), "reduce-scatter": ("reduce_scatter", 1), "all-reduce": ("allreduce", 2)}


@pytest.mark.parametrize(
    ("strategy", "formula"),
    [("ddp", 8 * 7 / 8), ("no_reshard", 6 * 7 / 8), ("fsdp", 8 * 7 / 8), ("hsdp", 8 / 2 + 8 * 3 / 4 / 2)],
)
def test_what_pytorch_asks_for_is_what_the_page_says(strategy: str, formula: float) -> None:
    """Bytes that each of 8 ranks sends for a parameter, in groups of 2 under HSDP."""

    def reduced(_, bucket):  # the fake all-reduce returns no tensor; without annotations, which DDP refuses
        dist.all_reduce(bucket.buffer())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    shards = {"ddp": 1, "hsdp": 2}.get(strategy, 8)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        model: Any = GPT(width=128, layers=4)
        parameters = sum(weight.numel() for weight in model.parameters())
        if strategy == "ddp":
            model = DistributedDataParallel(model, gradient_as_bucket_view=True)
            model.register_comm_hook(None, reduced)
        else:
            mesh = dist.init_device_mesh("cpu", (8 // shards, shards), mesh_dim_names=("replicate", "shard"))
            policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
            options = {"mp_policy": policy, "reshard_after_forward": strategy != "no_reshard"}
            for module in (*model.blocks, model):
                fully_shard(module, mesh=mesh if strategy == "hsdp" else mesh["shard"], **options)
        tokens = torch.zeros(2, 32, dtype=torch.int64)
        loss_of(model, tokens, tokens).backward()  # DDP makes its buckets in the first step
        with Collectives() as collectives:
            loss_of(model, tokens, tokens).backward()
    finally:
        dist.destroy_process_group()
    sent = 0.0
    for kind, (name, times) in _COLLECTIVES.items():
        members = 8 // shards if kind == "all-reduce" else shards
        sent += times * (members - 1) / members * collectives.traffic.get(name, {"bytes": 0})["bytes"]
    assert sent / parameters == pytest.approx(formula, rel=1e-9)
