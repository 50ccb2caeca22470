"""Look inside FSDP on real ranks: when blocks are gathered, init on meta, the optimizer's place, precision, gradients.

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
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as OldFSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from course_utils.materials.models import GPT, Block
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.collectives import Collectives
from course_utils.ranks.programs import gradient_of, join_ranks, loss_of, memory_by_kind, report

SHAPE = {"context": 32, "width": 128, "layers": 2, "heads": 2}
BATCH = 4  # pieces of text on each rank
Batch = tuple[torch.Tensor, torch.Tensor]
# On a CPU, DTensor warns that random numbers may not be its own: what that means is reported.
warnings.filterwarnings("ignore", message="DTensor random operators")


def shard(model: GPT, mesh: DeviceMesh, **options: Any) -> nn.Module:
    """Shard each block, and then what is left."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def init_weights(model: GPT) -> None:
    """What ``GPT.__init__`` draws: each layer's own init, then 0.02 for the embeddings."""
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    for embedding in (model.token_embedding, model.position_embedding):
        nn.init.normal_(embedding.weight, std=0.02)


def on_meta(mesh: DeviceMesh, device: torch.device, seed: int | None) -> nn.Module:
    """A model whose weights exist as shards only, with numbers in them if there is a seed."""
    with torch.device("meta"):
        model = GPT(**SHAPE)
    shard(model, mesh)
    model.to_empty(device=device)
    if seed is not None:
        torch.manual_seed(seed)
        init_weights(model)
    return model


def looked_at(model: nn.Module, batch: Batch, ranks: int) -> dict[str, Any]:
    """The spread of two weights, whether ranks drew the same numbers, and the loss before and after ten steps."""
    qkv, embedding = model.blocks[0].qkv.weight, model.token_embedding.weight
    whole = [weight.full_tensor() if hasattr(weight, "full_tensor") else weight for weight in (qkv, embedding)]
    pieces = whole[0].chunk(ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    losses = []
    for _ in range(11):
        optimizer.zero_grad()
        loss = loss_of(model, *batch)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return {
        "std of qkv": whole[0].std().item(),
        "std of the embedding": whole[1].std().item(),
        "all shards equal": all(torch.equal(piece, pieces[0]) for piece in pieces),
        "first loss": losses[0],
        "loss after 10 steps": losses[-1],
    }


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


def schedules(gpt: Callable[[], GPT], mesh: DeviceMesh, batch: Batch) -> dict[str, dict]:
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
    rows = {}
    for name, model in found.items():
        done = schedule(model, batch)
        last = done.index(f"F{len(blocks) - 1}") + 1
        rows[name] = {"forward": " ".join(done[:last]), "backward": " ".join(done[last:])}
    return rows


def hybrid(gpt: Callable[[], GPT], batch: Batch, device: torch.device, ranks: int):
    """HSDP: the shards of a row of ranks, replicated over the rows."""
    mesh = init_device_mesh(device.type, (ranks, 1), mesh_dim_names=("replicate", "shard"))
    model = shard(gpt(), mesh)
    loss = loss_of(model, *batch)
    loss.backward()
    weight = model.blocks[0].qkv.weight
    return {
        "loss": loss.item(),
        "placements": str(weight.placements),
        "rows here": len(weight.to_local()),
        "rows": len(weight),
    }


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
        loss = loss_of(model, *batch)
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
    model = shard(gpt(), mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dtypes = {}

    def note(block: nn.Module, inputs: object) -> None:
        dtypes["weights in the forward pass"] = str(block.qkv.weight.dtype)

    model.blocks[0].register_forward_pre_hook(note)
    with Collectives() as collectives:
        loss_of(model, *batch).backward()
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
    loss_of(alone, *everything).backward()
    norm_alone = nn.utils.clip_grad_norm_(alone.parameters(), limit)

    model = shard(gpt(), mesh)
    loss_of(model, *batch).backward()
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
        (loss_of(model, *micro_batch) / len(micro_batches)).backward()


def gradient_bytes(model: nn.Module) -> int:
    """Of a rank's shards, and of the whole gradients that wait to be reduced: those belong to the whole weights."""
    shards = memory_by_kind(model)["gradients"]
    groups = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for group in groups:
        group.unshard()
    whole = memory_by_kind(model)["gradients"]
    for group in groups:
        group.reshard()
    return shards + whole


def accumulation(gpt: Callable[[], GPT], mesh: DeviceMesh, batch: Batch, everything: Batch, sync: str):
    """How often the ranks talk, what they hold meanwhile, and whether the gradients are right."""
    alone = gpt()
    loss_of(alone, *everything).backward()
    model = shard(gpt(), mesh)
    micro_batches = list(zip(*(tensor.split(1) for tensor in batch), strict=True))

    model.set_requires_gradient_sync(sync == "each time")
    loss_of(model, *micro_batches[0]).backward()
    held = gradient_bytes(model)

    model = shard(gpt(), mesh)
    with Collectives() as collectives:
        accumulate(model, micro_batches, sync)
    return {
        "all-gathers": collectives.of("allgather")["calls"],
        "reduce-scatters": collectives.of("reduce_scatter")["calls"],
        "gradient bytes after the first": held,
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
                loss = loss_of(model, *batch)
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

    def gpt(**shape: int) -> GPT:
        torch.manual_seed(0)
        return GPT(**SHAPE | shape).to(device)

    everything = next(text_batches(library_text(2**16), BATCH * ranks, SHAPE["context"], 1, device=device))
    batch = tuple(tensor.chunk(ranks)[rank] for tensor in everything)

    init = {
        "one process": looked_at(gpt(), everything, ranks),
        "meta, one seed for all ranks": looked_at(on_meta(mesh, device, seed=0), everything, ranks),
        "meta, a seed for each rank": looked_at(on_meta(mesh, device, seed=rank), everything, ranks),
        "meta, no init": looked_at(on_meta(mesh, device, seed=None), everything, ranks),
    }
    report(init=init, schedules=schedules(functools.partial(gpt, layers=4), mesh, batch))
    report(hybrid=hybrid(gpt, everything, device, ranks), loss=loss_of(gpt(), *everything).item())
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
