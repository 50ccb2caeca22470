"""One training step of a Llama on one rank of a cluster that is not there: the program that `simulate_steps` starts.

Run as ``python -m course_utils.ranks.cluster_step``: a list of steps as JSON in, what is said of each out. It has a
process of its own: a process group is global, and some calls of PyTorch's simulation tools end the interpreter.

The process group is a fake one, in which every collective returns at once, and tensors are fake: they have shapes and
storages with sizes, and no data. Everything else is PyTorch's own code: fully_shard, autograd, AdamW.

A model's blocks are alike, so a deep one is not built. Each phase of the step (its first and last block, forward and
backward, and the optimizer's step) takes a little more with each block, by as much with the fifth as with the fiftieth:
two small depths are simulated, and a line through them leads to the model's own. A test compares it with whole models.

What is not as in a real process, and why:
    One step is enough: the optimizer's state is made beforehand.
    The optimizer gets the local shards in place of DTensors: the same memory, ten times faster.

Source (torch 2.13.0; the same in 2.11.0):
    torch/testing/_internal/distributed/fake_pg.py; torch/_subclasses/fake_tensor.py;
    torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, ``reduce_scatter_tensor_coalesced``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.materials.models import Llama
from course_utils.ranks.cluster import CLUSTER_PARTS, ClusterMemory, ClusterStep, LlamaShape
from course_utils.ranks.memory import PhaseMemory, RankMemory, StepMemory

# Depths whose line is followed, and how many blocks at either end have phases of their own.
_FEW, _MORE, _ENDS = 3, 4, 1


def _first_chunk(tensor: torch.Tensor, num_chunks: int, dim: int) -> list[torch.Tensor]:
    """The chunks of a parameter, of which only the first is made: rank 0 asks for no other of 1024."""
    size = tensor.size(dim)
    return [tensor.narrow(dim, 0, min(size, -(-size // num_chunks)))]


class _Gloo(TorchDispatchMode):
    """Gloo's reduce-scatter is an all-reduce of a copy of its input; NCCL's needs no copy."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        copy = args[1].clone() if func is torch.ops.c10d._reduce_scatter_base_.default else None
        result = func(*args, **(kwargs or {}))
        del copy
        return result


def _model(asked: ClusterStep) -> Llama:
    model = Llama(**asdict(asked.model))
    if asked.checkpointing:
        for i, block in enumerate(model.blocks):
            model.blocks[i] = checkpoint_wrapper(block, preserve_rng_state=False)
    return model


def _make_state(optimizer: Any) -> None:
    """Make the state that AdamW makes in the first step of a training."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}


def _name_phases(model: torch.nn.Module, memory: RankMemory) -> None:
    """Give the first and the last block phases of their own, forward and backward."""
    blocks = model.blocks
    for number, block in enumerate(blocks):
        end = "first" if number < _ENDS else "last" if number >= len(blocks) - _ENDS else "middle"

        def forward(*_: Any, end: str = end) -> None:
            memory.phase(f"forward, {end}")

        def backward(*args: Any, end: str = end) -> None:
            args[-1].register_hook(lambda _: memory.phase(f"backward, {end}"))

        block.register_forward_pre_hook(forward)
        block.register_forward_hook(backward)


def _step(asked: ClusterStep, memory: RankMemory, mesh: Any) -> None:
    model = _model(asked)
    _name_phases(model, memory)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    parameters = list(model.parameters())
    shards = [torch.nn.Parameter(parameter.to_local().detach()) for parameter in parameters]
    optimizer = torch.optim.AdamW(shards, **{asked.optimizer: True})
    _make_state(optimizer)
    with memory.step(model, optimizer):
        memory.phase("forward")
        optimizer.zero_grad()
        tokens = torch.zeros(asked.batch, asked.length or asked.model.context, dtype=torch.int64)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        memory.phase("backward")
        loss.backward()
        memory.phase("optimizer step")
        for shard, parameter in zip(shards, parameters, strict=True):
            shard.grad = parameter.grad.to_local()
        optimizer.step()


def simulate(asked: ClusterStep) -> ClusterMemory:
    """Memory of the rank that holds most, in one step."""
    layers = asked.model.layers
    if layers <= _MORE:
        step = simulate_whole(asked)
    else:
        few, more = (
            simulate_whole(replace(asked, model=replace(asked.model, layers=depth))) for depth in (_FEW, _MORE)
        )
        step = _extended(few, more, layers - _FEW)
    return ClusterMemory(step.largest, step.peak_bytes, step.at_peak, step.peak_phase.split(",")[0])


def _extended(few: StepMemory, more: StepMemory, blocks: int) -> StepMemory:
    """The line through two depths that differ by one block, so many blocks on."""

    def line(start: dict[str, int], then: dict[str, int]) -> dict[str, int]:
        return {part: start[part] + blocks * (then[part] - start[part]) for part in CLUSTER_PARTS}

    return StepMemory(
        {
            name: PhaseMemory(
                line(phase.largest, more.phases[name].largest), line(phase.at_peak, more.phases[name].at_peak)
            )
            for name, phase in few.phases.items()
        }
    )


def simulate_whole(asked: ClusterStep) -> StepMemory:
    """The step on rank 0, whose shard is the largest, with all blocks."""
    memory = RankMemory()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=asked.ranks)
    try:
        # The mesh holds real tensors: it is made before anything is fake.
        mesh = init_device_mesh("cpu", (asked.ranks,))
        backend = _Gloo() if asked.backend == "gloo" else contextlib.nullcontext()
        with FakeTensorMode(), memory, backend:
            _step(asked, memory, mesh)
    finally:
        dist.destroy_process_group()
    assert memory.last_step is not None
    return memory.last_step


def main() -> None:
    """Simulate each step that is asked for, and print what is said of them."""
    warnings.simplefilter("ignore")
    # What PyTorch prints is not to get into the JSON.
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    _fsdp_param._chunk_with_empty = _first_chunk
    steps = [ClusterStep(**{**step, "model": LlamaShape(**step["model"])}) for step in json.load(sys.stdin)]
    print(json.dumps([asdict(simulate(step)) for step in steps]), file=answers, flush=True)
    # Not the ordinary way out: tearing the interpreter down takes longer than some steps.
    os._exit(0)


if __name__ == "__main__":
    main()
