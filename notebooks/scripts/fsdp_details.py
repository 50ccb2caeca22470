"""Details of FSDP on real ranks: order of optimizer and wrapping, precision, clipping, accumulation, an old name.

By hand, on one machine: torchrun --standalone --nproc-per-node=2 scripts/fsdp_details.py
"""

import functools
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as OldFSDP
from torch.distributed.fsdp import MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.models import GPT, Block
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.collectives import Collectives
from course_utils.ranks.programs import gradient_of, join_ranks, memory_by_kind, report

WIDTH, LAYERS = 128, 2
BATCH, LENGTH = 4, 32  # pieces of text on each rank, and bytes in a piece
Batch = tuple[torch.Tensor, torch.Tensor]


def shard(model: GPT, mesh: DeviceMesh, policy: MixedPrecisionPolicy | None = None, **options: object) -> nn.Module:
    """Shard each block, and then what is left."""
    options |= {"mesh": mesh, "mp_policy": policy or MixedPrecisionPolicy()}
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    tokens, targets = batch
    return functional.cross_entropy(model(tokens).float().flatten(0, 1), targets.flatten())


def losses_in_order(gpt: Callable[[], GPT], wrap: Callable[[GPT], nn.Module], batch: Batch, optimizer_first: bool):
    """Train on one batch, so that the loss must fall. Returns what can be seen from outside."""
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3) if optimizer_first else None
    model = wrap(model)
    if optimizer is None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    given = [weight for group in optimizer.param_groups for weight in group["params"]]
    own = {id(weight) for weight in model.parameters()}
    return {
        "losses": losses,
        "weights of the model that it steps": sum(id(weight) in own for weight in given),
        "weights of the model": len(own),
        "weights with a state": len(optimizer.state),
        "bytes of other weights": sum(weight.untyped_storage().nbytes() for weight in given if id(weight) not in own),
    }


def precision(gpt: Callable[[], GPT], mesh: DeviceMesh, batch: Batch, policy: MixedPrecisionPolicy):
    """Which dtype the weights have where, and how many bytes travel."""
    model = shard(gpt(), mesh, policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dtypes = {}

    def note(block: nn.Module, inputs: object) -> None:
        dtypes["weights in the forward pass"] = str(block.qkv.weight.dtype)

    model.blocks[0].register_forward_pre_hook(note)
    with Collectives() as collectives:
        loss_of(model, batch).backward()
        optimizer.step()
    weight = model.blocks[0].qkv.weight

    dtypes |= {
        "weights at rest": str(weight.dtype),
        "gradients at rest": str(weight.grad.dtype),
        "optimizer state": str(optimizer.state[weight]["exp_avg"].dtype),
    }
    return {place: dtype.removeprefix("torch.") for place, dtype in dtypes.items()} | {
        "all-gather": collectives.of("allgather"),
        "reduce-scatter": collectives.of("reduce_scatter"),
    }


def error(model: nn.Module, right: nn.Module) -> float | None:
    """Of a sharded model's gradients: norm of the difference over norm; None if there are no gradients."""
    if any(weight.grad is None for weight in model.parameters()):
        return None
    whole = torch.cat([weight.grad.full_tensor().flatten() for weight in model.parameters()])
    expected = gradient_of(right)
    return ((whole - expected).double().norm() / expected.double().norm()).item()


def clipping(gpt: Callable[[], GPT], mesh: DeviceMesh, batch: Batch, everything: Batch, limit: float):
    """Clip as in one process, and look at what comes back."""
    alone = gpt()
    loss_of(alone, everything).backward()
    norm_alone = nn.utils.clip_grad_norm_(alone.parameters(), limit)

    model = shard(gpt(), mesh)
    loss_of(model, batch).backward()
    by_hand = torch.stack([weight.grad.to_local().norm() for weight in model.parameters()]).norm()
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)

    return {
        "one process": norm_alone.item(),
        "FSDP": norm.full_tensor().item(),
        "placement of the norm": str(norm.placements[0]),
        "by hand on this rank's shards": by_hand.item(),
        "error of the clipped gradients": error(model, alone),
    }


def accumulate(model: nn.Module, micro_batches: list[Batch], sync: str) -> None:
    """Add up gradients over several small batches; reduce them each time, in the last one, or (a mistake) never."""
    for number, micro_batch in enumerate(micro_batches, start=1):
        last = number == len(micro_batches)
        model.set_requires_gradient_sync(sync == "each time" or (sync == "last time" and last))
        (loss_of(model, micro_batch) / len(micro_batches)).backward()


def accumulation(gpt: Callable[[], GPT], mesh: DeviceMesh, batch: Batch, everything: Batch, sync: str):
    """How often the ranks talk, what they hold meanwhile, and whether the gradients are right."""
    alone = gpt()
    loss_of(alone, everything).backward()
    model = shard(gpt(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    micro_batches = list(zip(*(tensor.split(1) for tensor in batch), strict=True))

    tracker = FSDPMemTracker(model, optimizer)
    with tracker:
        model.set_requires_gradient_sync(sync == "each time")
        loss_of(model, micro_batches[0]).backward()
    held = {"SHARDED_GRAD": 0, "UNSHARDED_GRAD": 0}
    for place in tracker.get_tracker_snapshot("current").values():
        for kind, size_bytes in place.items():
            if getattr(kind, "name", "") in held:
                held[kind.name] += size_bytes
    optimizer.zero_grad()

    model = shard(gpt(), mesh)
    with Collectives() as collectives:
        accumulate(model, micro_batches, sync)
    return {
        "all-gathers": collectives.of("allgather")["calls"],
        "reduce-scatters": collectives.of("reduce_scatter")["calls"],
        "gradient bytes after the first": sum(held.values()),
        "weights with a gradient": sum(weight.grad is not None for weight in model.parameters()),
        "error of the gradients": error(model, alone),
    }


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
                loss = loss_of(model, batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        gathered = sum(kind["bytes"] for collective, kind in collectives.traffic().items() if "allgather" in collective)
        kept = memory_by_kind(model, optimizer)["weights"]
        found[name] = {"weights_bytes": kept, "gathered_bytes": gathered, "loss": loss.item()}
    return found


def main() -> None:
    rank, ranks, device = join_ranks()
    mesh = init_device_mesh(device.type, (ranks,))

    def gpt() -> GPT:
        torch.manual_seed(0)
        return GPT(context=LENGTH, width=WIDTH, layers=LAYERS, heads=2).to(device)

    everything = next(text_batches(library_text(2**16), BATCH * ranks, LENGTH, 1, device=device))
    batch = tuple(tensor.chunk(ranks)[rank] for tensor in everything)

    fsdp = functools.partial(shard, mesh=mesh)
    order = {
        "FSDP, optimizer first": losses_in_order(gpt, fsdp, batch, True),
        "FSDP, optimizer last": losses_in_order(gpt, fsdp, batch, False),
        "DDP, optimizer first": losses_in_order(gpt, DistributedDataParallel, batch, True),
    }
    policies = {
        "no policy": MixedPrecisionPolicy(),
        "bf16": MixedPrecisionPolicy(torch.bfloat16),
        "bf16, reduce in fp32": MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32),
    }
    syncs = ("each time", "last time", "never")
    report(
        parameters_bytes=sum(weight.nbytes for weight in gpt().parameters()),
        SHARD_GRAD_OP=old_name(gpt, mesh, batch, device),
        order=order,
        precision={name: precision(gpt, mesh, batch, policy) for name, policy in policies.items()},
        clipping=clipping(gpt, mesh, batch, everything, limit=0.5),
        accumulation={sync: accumulation(gpt, mesh, batch, everything, sync) for sync in syncs},
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
