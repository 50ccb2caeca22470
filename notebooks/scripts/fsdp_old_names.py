"""Run each name of FSDP1 that circulating posts use, and today's form of it, and say what happens.

By hand: torchrun --standalone --nproc-per-node=2 scripts/fsdp_old_names.py
On two machines, on each: torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400
--rdzv-id=1 scripts/fsdp_old_names.py
"""

import argparse
import functools
import os
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp import FullyShardedDataParallel as OldFSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy, transformer_auto_wrap_policy
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_utils.materials.models import GPT, Block
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.reports import memory_by_kind, report

BLOCKS = ModuleWrapPolicy({Block})


# begin: forms
def today(model: nn.Module, mesh: DeviceMesh, blocks: bool = True, **options) -> nn.Module:
    """Choose the modules yourself, from the inside out; no policy needed."""
    if blocks:
        for block in model.blocks:
            fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


# end: forms


def old_and_new(mesh: DeviceMesh, both: DeviceMesh, device: torch.device) -> dict[str, tuple]:
    """Old name -> (the old call, today's form in words, today's call)."""
    here = {"device_id": device}
    strategies, bf16 = ShardingStrategy, torch.bfloat16
    transformer = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    by_size = functools.partial(size_based_auto_wrap_policy, min_num_params=40_000)
    return {
        "FullyShardedDataParallel(model)": (
            lambda m: OldFSDP(m),
            "fully_shard(model)",
            lambda m: today(m, mesh, blocks=False),
        ),
        "device_id=device": (
            lambda m: OldFSDP(m, **here),
            "the mesh's device",
            lambda m: today(m, mesh, blocks=False),
        ),
        "FULL_SHARD, ModuleWrapPolicy": (
            lambda m: OldFSDP(m, sharding_strategy=strategies.FULL_SHARD, auto_wrap_policy=BLOCKS, **here),
            "fully_shard(block) in a loop, then fully_shard(model)",
            lambda m: today(m, mesh),
        ),
        "transformer_auto_wrap_policy": (
            lambda m: OldFSDP(m, auto_wrap_policy=transformer, **here),
            "the same loop",
            lambda m: today(m, mesh),
        ),
        "size_based_auto_wrap_policy": (
            lambda m: OldFSDP(m, auto_wrap_policy=by_size, **here),
            "the same loop, over the modules that you choose",
            lambda m: today(m, mesh),
        ),
        "SHARD_GRAD_OP": (
            lambda m: OldFSDP(m, sharding_strategy=strategies.SHARD_GRAD_OP, auto_wrap_policy=BLOCKS, **here),
            "reshard_after_forward=False",
            lambda m: today(m, mesh, reshard_after_forward=False),
        ),
        "NO_SHARD": (
            lambda m: OldFSDP(m, sharding_strategy=strategies.NO_SHARD, auto_wrap_policy=BLOCKS, **here),
            "DistributedDataParallel",
            lambda m: DistributedDataParallel(m),
        ),
        "HYBRID_SHARD": (
            lambda m: OldFSDP(
                m, sharding_strategy=strategies.HYBRID_SHARD, auto_wrap_policy=BLOCKS, device_mesh=both, **here
            ),
            "a mesh of two dimensions",
            lambda m: today(m, both),
        ),
        "MixedPrecision(param_dtype=bf16)": (
            lambda m: OldFSDP(m, mixed_precision=MixedPrecision(param_dtype=bf16), auto_wrap_policy=BLOCKS, **here),
            "mp_policy=MixedPrecisionPolicy(param_dtype=bf16)",
            lambda m: today(m, mesh, mp_policy=MixedPrecisionPolicy(param_dtype=bf16)),
        ),
        "CPUOffload(offload_params=True)": (
            lambda m: OldFSDP(m, cpu_offload=CPUOffload(offload_params=True), auto_wrap_policy=BLOCKS, **here),
            "offload_policy=CPUOffloadPolicy()",
            lambda m: today(m, mesh, offload_policy=CPUOffloadPolicy()),
        ),
        "use_orig_params=True": (
            lambda m: OldFSDP(m, use_orig_params=True, auto_wrap_policy=BLOCKS, **here),
            "always so: parameters keep names and shapes",
            lambda m: today(m, mesh),
        ),
    }


def methods(loss_of: Callable[[nn.Module], torch.Tensor]) -> dict[str, tuple]:
    """Old name of a method -> (the old call, today's form in words, today's call); the model has gradients."""

    def no_sync(model: nn.Module) -> None:
        with model.no_sync():
            loss_of(model).backward()

    def requires_no_sync(model: nn.Module) -> None:
        model.set_requires_gradient_sync(False)
        loss_of(model).backward()

    def summon(model: nn.Module) -> float:
        with OldFSDP.summon_full_params(model):
            return sum(weight.sum().item() for weight in model.parameters())

    def put_together(model: nn.Module) -> float:
        return sum(weight.full_tensor().sum().item() for weight in model.parameters())

    def sharded_state(model: nn.Module) -> object:
        with OldFSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            return model.state_dict()

    return {
        "model.clip_grad_norm_(0.5)": (
            lambda m: m.clip_grad_norm_(0.5).item(),
            "nn.utils.clip_grad_norm_(model.parameters(), 0.5)",
            lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.5).full_tensor().item(),
        ),
        "model.no_sync()": (no_sync, "model.set_requires_gradient_sync(False)", requires_no_sync),
        "FSDP.summon_full_params(model)": (summon, "weight.full_tensor()", put_together),
        "FSDP.state_dict_type(model, ...)": (
            sharded_state,
            "model.state_dict(), of DTensors",
            lambda m: m.state_dict(),
        ),
    }


class Gathered(TorchDispatchMode):
    """Adds up the bytes of the weights that are gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.total_bytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.namespace == "c10d" and "allgather" in operation.__name__:
            self.total_bytes += sum(output.nbytes for output in tree_leaves(args[0]))
        return operation(*args, **(kwargs or {}))


def attempt(call: Callable[[], dict]) -> dict:
    """Call, and note what it gives, or the first line of what it raises, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = {"says": "runs"} | call()
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            found = {"says": f"{type(error).__name__}: {lines[0]}"[:180]}
    first = [" ".join(str(warning.message).split()) for warning in caught if warning.category is FutureWarning]
    found["warns"] = first[0][:180] if first else ""
    return found


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    cuda = torch.cuda.device_count() >= local_ranks
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(device.type, (ranks,))
    both = init_device_mesh(device.type, (1, ranks), mesh_dim_names=("replicate", "shard"))
    everything = next(text_batches(library_text(2**16).data, 2 * ranks, 32, 1, device=device))
    tokens, targets = (tensor.chunk(ranks)[rank] for tensor in everything)

    def gpt() -> GPT:
        torch.manual_seed(0)
        return GPT(context=32, width=64, layers=2, heads=2).to(device)

    def loss_of(model: nn.Module) -> torch.Tensor:
        return functional.cross_entropy(model(tokens).float().flatten(0, 1), targets.flatten())

    def two_steps(wrap: Callable[[nn.Module], nn.Module]) -> dict:
        model = wrap(gpt())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            with Gathered() as gathered:
                loss = loss_of(model)
                loss.backward()
            optimizer.step()
        weights = memory_by_kind(model, optimizer)["weights"]
        return {"loss": loss.item(), "weights_bytes": weights, "gathered_bytes": gathered.total_bytes}

    calls = {
        old_name: {
            "old": attempt(functools.partial(two_steps, old)),
            "today": words,
            "new": attempt(functools.partial(two_steps, new)),
        }
        for old_name, (old, words, new) in old_and_new(mesh, both, device).items()
    }

    def trained(wrap: Callable[[nn.Module], nn.Module], then: Callable[[nn.Module], object]) -> Callable[[], dict]:
        def call() -> dict:
            model = wrap(gpt())
            loss_of(model).backward()
            result = then(model)
            return {"result": result if isinstance(result, float) else None}

        return call

    for name, (old_then, words, new_then) in methods(loss_of).items():
        calls[name] = {
            "old": attempt(trained(lambda m: OldFSDP(m, auto_wrap_policy=BLOCKS, device_id=device), old_then)),
            "today": words,
            "new": attempt(trained(lambda m: today(m, mesh), new_then)),
        }
    report(parameters_bytes=sum(weight.nbytes for weight in gpt().parameters()), calls=calls)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
