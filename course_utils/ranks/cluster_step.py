"""One training step of a GPT on one rank of a cluster that is not there: the program that `simulate_cluster` starts.

Run as ``python -m course_utils.ranks.cluster_step``: one line of JSON in (a list of points), one line of JSON out for
each point. It has a process of its own: a process group is global, and some calls of PyTorch's simulation
tools end the interpreter.

The process group is a fake one, in which every collective returns at once, and tensors are fake: they have shapes and
storages with sizes, and no data. Everything else is PyTorch's own code: DistributedDataParallel,
ZeroRedundancyOptimizer, fully_shard, autograd, AdamW.

What is not as in a real process, and why:
    One step is enough: the optimizer's state is made beforehand, from gradients that are 0.
    DDP: ``init_sync=False``, since the check of shapes across ranks reads memory that fake tensors lack; a hook in
    place of the all-reduce, since the fake one returns no tensor. Before its second step DDP would read memory again,
    to put its buckets into another order; their sum stays.
    FSDP: the optimizer gets the local shards in place of DTensors: the same memory, ten times faster.

Source (torch 2.13.0; the same in 2.11.0):
    torch/testing/_internal/distributed/fake_pg.py; torch/_subclasses/fake_tensor.py;
    torch/csrc/distributed/c10d/reducer.cpp, ``initialize_buckets``, ``mark_variable_ready_dense``, ``rebuild_buckets``;
    torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, ``reduce_scatter_tensor_coalesced``;
    torch/distributed/optim/zero_redundancy_optimizer.py, ``_partition_parameters``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.materials.models import GPT
from course_utils.ranks.memory import RankMemory

_SHAPE = ("width", "layers", "heads", "vocabulary", "context")


class _FirstChunk(list):
    """The chunks of a parameter, of which only the first is made: rank 0 asks for no other."""


def _only_first_chunk() -> None:
    """Spare FSDP a view for each of 1024 ranks and each parameter, of which rank 0 uses one."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    def chunks(tensor: torch.Tensor, num_chunks: int, dim: int) -> list[torch.Tensor]:
        size = tensor.size(dim)
        return _FirstChunk([tensor.narrow(dim, 0, min(size, -(-size // num_chunks)))])

    if hasattr(_fsdp_param, "_chunk_with_empty"):  # private: without it, all is as before, and slower
        _fsdp_param._chunk_with_empty = chunks


@contextlib.contextmanager
def _fake_group(rank: int, ranks: int) -> Iterator[Any]:
    """A process group in which this is one of many ranks, and its mesh."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        dist.destroy_process_group()


class _Gloo(TorchDispatchMode):
    """Gloo's reduce-scatter is an all-reduce of a copy of its input; NCCL's needs no copy."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        copy = args[1].clone() if func is torch.ops.c10d._reduce_scatter_base_.default else None
        result = func(*args, **(kwargs or {}))
        del copy
        return result


def _model(point: dict[str, Any]) -> torch.nn.Module:
    model = GPT(**{key: point[key] for key in _SHAPE})
    if point["checkpointing"]:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        for i, block in enumerate(model.blocks):
            model.blocks[i] = checkpoint_wrapper(block, preserve_rng_state=False)
    return model


def _adamw(point: dict[str, Any]) -> dict[str, bool]:
    return {"foreach": point["optimizer"] == "foreach", "fused": point["optimizer"] == "fused"}


def _make_state(parameters: Iterable[torch.nn.Parameter], optimizer: Any) -> None:
    """Let the optimizer make its state, as the first step of a training does."""
    parameters = list(parameters)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter in parameters:
        parameter.grad = None


def _sharded_step(point: dict[str, Any], memory: RankMemory, mesh: Any) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = _model(point)
    half = point["precision"] == "bf16"
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
    options = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": point["strategy"] != "zero2"}
    if point["strategy"] != "fsdp_root":
        for block in model.blocks:
            fully_shard(block, **options)
    fully_shard(model, **options)
    parameters = list(model.parameters())
    shards = [torch.nn.Parameter(parameter.to_local().detach()) for parameter in parameters]
    optimizer = torch.optim.AdamW(shards, **_adamw(point))
    _make_state(shards, optimizer)
    with memory.step(model, optimizer):
        memory.phase("forward")
        optimizer.zero_grad()
        tokens = torch.zeros(point["batch"], point["length"], dtype=torch.int64)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        memory.phase("backward")
        loss.backward()
        memory.phase("optimizer step")
        for shard, parameter in zip(shards, parameters, strict=True):
            shard.grad = parameter.grad.to_local()
        optimizer.step()


def _replicated_step(point: dict[str, Any], memory: RankMemory) -> int:
    """A step under DDP. Returns the rank that holds most of the optimizer's state; if it is another, begin again."""
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(
        _model(point), init_sync=False, gradient_as_bucket_view=point["gradient_as_bucket_view"]
    )

    def reduced(_, bucket):  # without annotations: DDP refuses those that are texts
        memory.communicated(bucket.buffer())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, reduced)
    if point["strategy"] == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **_adamw(point))
        held = [
            sum(p.numel() for group in groups for p in group["params"]) for groups in optimizer._partition_parameters()
        ]
        if held[dist.get_rank()] < max(held):
            return held.index(max(held))
    else:
        optimizer = torch.optim.AdamW(model.parameters(), **_adamw(point))
    _make_state(model.parameters(), optimizer)
    half = point["precision"] == "bf16"
    with memory.step(model, optimizer):
        memory.phase("forward")
        optimizer.zero_grad()
        tokens = torch.zeros(point["batch"], point["length"], dtype=torch.int64)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        memory.phase("backward")
        loss.backward()
        memory.phase("optimizer step")
        optimizer.step()
    return dist.get_rank()


def simulate(point: dict[str, Any]) -> dict[str, Any]:
    """Memory of the rank that holds most, in one step.

    Args:
        point: the model's shape, ``strategy``, ``ranks``, ``batch``, ``length``, ``precision``, ``checkpointing``,
            ``optimizer``, ``gradient_as_bucket_view`` and ``backend``.

    Returns:
        The fields of a ``StepMemory``.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    rank: int | None = None
    while True:
        memory = RankMemory()
        # The mesh holds real tensors: it is made before anything is fake.
        backend = _Gloo() if point["backend"] == "gloo" else contextlib.nullcontext()
        with _fake_group(rank or 0, point["ranks"]) as mesh, FakeTensorMode(), memory, backend:
            if point["strategy"] in ("ddp", "zero1"):
                fullest = _replicated_step(point, memory)
            else:
                _sharded_step(point, memory, mesh)
                fullest = 0  # the first shard is the largest
        if memory.found is not None:
            return dataclasses.asdict(memory.found)
        rank = fullest


def _end_with_the_parent() -> None:
    """Stop at once when nobody is there any more to read the results."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    """Simulate the points that stand on standard input, and print a line for each."""
    points = json.loads(sys.stdin.readline())
    _end_with_the_parent()
    warnings.simplefilter("ignore")
    # What PyTorch prints is not to get between the lines of JSON.
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    _only_first_chunk()
    print(json.dumps("ready"), file=answers, flush=True)
    for point in points:
        started = time.perf_counter()
        found = simulate(point)
        print(json.dumps({**found, "seconds": time.perf_counter() - started}), file=answers, flush=True)
    answers.close()
    # Not the ordinary way out: tearing the interpreter down takes longer than some points.
    os._exit(0)


if __name__ == "__main__":
    main()
