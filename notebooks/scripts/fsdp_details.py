"""Look inside FSDP on real ranks: when blocks are gathered, the optimizer's place, and FSDP1's SHARD_GRAD_OP.

By hand, on one machine: torchrun --standalone --nproc-per-node=2 scripts/fsdp_details.py
"""

import functools
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as OldFSDP
from torch.distributed.fsdp import ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from course_utils.materials.models import GPT, Block
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.collectives import Collectives
from course_utils.ranks.programs import join_ranks, loss_of, memory_by_kind, report

SHAPE = {"context": 32, "width": 128, "layers": 2, "heads": 2}
BATCH = 4  # pieces of text on each rank
Batch = tuple[torch.Tensor, torch.Tensor]


def shard(model: GPT, mesh: DeviceMesh, **options: Any) -> nn.Module:
    """Shard each block, and then what is left."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def schedule(model: nn.Module, batch: Batch) -> list[str]:
    """What a step does with the blocks, in the order in which the CPU asks for it: from a profile of its ranges."""
    loss_of(model, *batch).backward()
    for number, block in enumerate(model.blocks):
        forward = block.forward

        def noted(x: torch.Tensor, forward: Callable = forward, number: int = number) -> torch.Tensor:
            with record_function(f"compute (blocks.{number})"):
                return forward(x)

        block.forward = noted
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        loss_of(model, *batch).backward()
    short = {"FSDP::all_gather": "G", "compute": "F", "FSDP::pre_backward": "B", "FSDP::post_backward_reduce": "R"}
    done = []
    for event in sorted(seen.events(), key=lambda event: event.time_range.start):
        what, _, where = event.name.partition(" (blocks.")
        if what in short and where:
            done.append(short[what] + where.removesuffix(")"))
    return done


def schedules(gpt: Callable[[], GPT], mesh: DeviceMesh, batch: Batch) -> list[dict[str, str]]:
    """One schedule for each way to ask: G gathers a block, F and B run it, R reduces and scatters its gradients."""
    found = {"as it is": shard(gpt(), mesh)}
    ahead = found["forward prefetch"] = shard(gpt(), mesh)
    blocks = list(ahead.blocks)
    for block, following in itertools.pairwise(blocks):
        block.set_modules_to_forward_prefetch([following])
    two = found["two ahead in backward"] = shard(gpt(), mesh)
    blocks = list(two.blocks)
    for place, block in enumerate(blocks):
        block.set_modules_to_backward_prefetch(blocks[max(0, place - 2) : place][::-1])
    found["no reshard"] = shard(gpt(), mesh, reshard_after_forward=False)
    rows = []
    for name, model in found.items():
        done = schedule(model, batch)
        last = done.index(f"F{len(blocks) - 1}") + 1
        rows.append({"asked": name, "forward": " ".join(done[:last]), "backward": " ".join(done[last:])})
    return rows


def in_order(
    case: str, gpt: Callable[[], GPT], wrap: Callable[[GPT], nn.Module], batch: Batch, optimizer_first: bool
) -> dict[str, Any]:
    """Train on one batch, so that the loss must fall. Returns what can be seen from outside."""
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3) if optimizer_first else None
    model = wrap(model)
    if optimizer is None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = loss_of(model, *batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    own = {id(weight) for weight in model.parameters()}
    stepped = sum(id(weight) in own for group in optimizer.param_groups for weight in group["params"])
    words = f"{stepped} of {len(own)}"
    return {"case": case, "loss moves": len(set(losses)) > 1, "weights it steps": words, "last loss": losses[-1]}


def old_name(gpt: Callable[[], GPT], mesh: DeviceMesh, batch: Batch, device: torch.device) -> dict[str, dict]:
    """FSDP1's SHARD_GRAD_OP and today's form of it: the weights that a rank keeps, and those that it gathers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the class is deprecated
        by_blocks = {"auto_wrap_policy": ModuleWrapPolicy({Block}), "device_id": device}
        old = OldFSDP(gpt(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, **by_blocks)
    found = {}
    for name, model in {"old": old, "new": shard(gpt(), mesh, reshard_after_forward=False)}.items():
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(2):
            with Collectives() as collectives:
                loss = loss_of(model, *batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        gathered = sum(kind["bytes"] for collective, kind in collectives.traffic.items() if "allgather" in collective)
        kept = memory_by_kind(model, optimizer)["weights"]
        found[name] = {"weights_bytes": kept, "gathered_bytes": gathered, "loss": loss.item()}
    return found


def main() -> None:
    rank, ranks, device = join_ranks()
    mesh = init_device_mesh(device.type, (ranks,))

    def gpt(**shape: int) -> GPT:
        torch.manual_seed(0)
        return GPT(**SHAPE | shape).to(device)

    everything = next(text_batches(library_text(2**16), BATCH * ranks, SHAPE["context"], 1, device=device))
    batch = tuple(tensor.chunk(ranks)[rank] for tensor in everything)
    fsdp = functools.partial(shard, mesh=mesh)
    report(
        schedules=schedules(functools.partial(gpt, layers=4), mesh, batch),
        order=[
            in_order("FSDP, optimizer first", gpt, fsdp, batch, True),
            in_order("FSDP, optimizer last", gpt, fsdp, batch, False),
            in_order("DDP, optimizer first", gpt, DistributedDataParallel, batch, True),
        ],
        parameters_bytes=sum(weight.nbytes for weight in gpt().parameters()),
        SHARD_GRAD_OP=old_name(gpt, mesh, batch, device),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
