"""Start a sharded model and look inside: init on meta, whole state dicts, when each block is gathered, and mistakes.

By hand, on one machine: torchrun --standalone --nproc-per-node=2 scripts/fsdp_start.py
"""

import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.programs import join_ranks, report

SHAPE = {"context": 64, "width": 128, "layers": 4, "heads": 2}
# DTensor warns on each CPU mesh that random numbers are not its own there: what that means is reported below.
warnings.filterwarnings("ignore", message="DTensor random operators")


def shard(model: GPT, mesh: DeviceMesh, **options: Any) -> nn.Module:
    """Shard each block, and then what is left."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Forward and backward pass."""
    tokens, targets = batch
    loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    loss.backward()
    return loss.item()


# Init on meta


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


def looked_at(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], ranks: int) -> dict[str, Any]:
    """The spread of two weights, whether ranks drew the same numbers, and the loss before and after ten steps."""
    qkv, embedding = model.blocks[0].qkv.weight, model.token_embedding.weight
    whole = [weight.full_tensor() if hasattr(weight, "full_tensor") else weight for weight in (qkv, embedding)]
    pieces = whole[0].chunk(ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    losses = []
    for _ in range(11):
        optimizer.zero_grad()
        losses.append(step(model, batch))
        optimizer.step()
    return {
        "std of qkv": whole[0].std().item(),
        "std of the embedding": whole[1].std().item(),
        "all shards equal": all(torch.equal(piece, pieces[0]) for piece in pieces),
        "first loss": losses[0],
        "loss after 10 steps": losses[-1],
    }


# State dicts


def whole_state_dicts(gpt: Callable[[], GPT], mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    """From one whole state dict on rank 0 into shards, and back."""
    given = gpt().state_dict() if rank == 0 else {}
    torch.manual_seed(1)
    model = shard(GPT(**SHAPE).to(mesh.device_type), mesh)
    set_model_state_dict(model, given, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    back = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    expected = gpt().state_dict()
    same = all(torch.equal(back[name], expected[name].cpu()) for name in back)
    return {"entries": len(back), "same": same if back else None, "entries of the dict that was given": len(given)}


# When each block is gathered


def schedule(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> list[str]:
    """What a step does with the blocks, in the order in which the CPU asks for it: from a profile of its ranges."""
    step(model, batch)
    for number, block in enumerate(model.blocks):
        forward = block.forward

        def noted(x: torch.Tensor, forward: Callable = forward, number: int = number) -> torch.Tensor:
            with record_function(f"compute (blocks.{number})"):
                return forward(x)

        block.forward = noted
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step(model, batch)
    short = {"FSDP::all_gather": "G", "compute": "F", "FSDP::pre_backward": "B", "FSDP::post_backward_reduce": "R"}
    done = []
    for event in sorted(seen.events(), key=lambda event: event.time_range.start):
        what, _, where = event.name.partition(" (blocks.")
        if what in short and where:
            done.append(short[what] + where.removesuffix(")"))
    return done


def schedules(gpt: Callable[[], GPT], mesh: DeviceMesh, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, dict]:
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


# Mistakes, and what they say


def said(call: Callable[[], object]) -> str:
    """The first line of what a call raises, or that it runs."""
    try:
        call()
    except Exception as error:  # whatever it is: its words are what is asked for
        return f"{type(error).__name__}: {str(error).splitlines()[0][:220]}"
    return "runs"


def mistakes(gpt: Callable[[], GPT], mesh: DeviceMesh, batch: tuple[torch.Tensor, torch.Tensor]) -> Mapping[str, str]:
    """Each on a model of its own, on all ranks alike: a mistake of one rank alone would leave the others waiting."""
    tokens, _ = batch
    device = mesh.device_type

    def features(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        return model.norm(model.token_embedding(tokens))

    def registered() -> None:
        model = shard(gpt(), mesh)
        type(model).features = features
        register_fsdp_forward_method(model, "features")
        model.features(tokens)

    def partly() -> nn.Module:
        model = gpt()
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        step(model, batch)
        return model

    def tied_apart() -> None:
        pair = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(device)
        pair[1].weight = pair[0].weight
        for layer in (*pair, pair):
            fully_shard(layer, mesh=mesh)
        pair(torch.zeros(2, 8, device=device))

    def still_on_meta() -> None:
        with torch.device("meta"):
            model = GPT(**SHAPE)
        shard(model, mesh)(tokens)

    return {
        "model.forward(x) instead of model(x)": said(lambda: shard(gpt(), mesh).forward(tokens)),
        "another method of the model": said(lambda: features(shard(gpt(), mesh), tokens)),
        "the same, registered": said(registered),
        "a submodule called by itself": said(lambda: shard(gpt(), mesh).token_embedding(tokens)),
        "clipping, root not wrapped": said(lambda: nn.utils.clip_grad_norm_(partly().parameters(), 1.0)),
        "load_state_dict of whole tensors": said(lambda: shard(gpt(), mesh).load_state_dict(gpt().state_dict())),
        "two groups share a weight": said(tied_apart),
        "no to_empty after meta": said(still_on_meta),
        "the list of blocks": said(lambda: fully_shard(gpt().blocks, mesh=mesh)),
    }


def hybrid(gpt: Callable[[], GPT], batch: tuple[torch.Tensor, torch.Tensor], device: torch.device, ranks: int):
    """HSDP: the shards of a row of ranks, replicated over the rows."""
    mesh = init_device_mesh(device.type, (ranks, 1), mesh_dim_names=("replicate", "shard"))
    model = shard(gpt(), mesh)
    loss = step(model, batch)
    weight = model.blocks[0].qkv.weight
    return {
        "loss": loss,
        "placements": str(weight.placements),
        "rows here": len(weight.to_local()),
        "rows": len(weight),
    }


def main() -> None:
    rank, ranks, device = join_ranks()
    mesh = init_device_mesh(device.type, (ranks,))

    def gpt() -> GPT:
        torch.manual_seed(0)
        return GPT(**SHAPE).to(device)

    batch = next(text_batches(library_text(2**16), 4, SHAPE["context"], 1, device=device))
    init = {
        "one process": looked_at(gpt(), batch, ranks),
        "meta, one seed for all ranks": looked_at(on_meta(mesh, device, seed=0), batch, ranks),
        "meta, a seed for each rank": looked_at(on_meta(mesh, device, seed=rank), batch, ranks),
        "meta, no init": looked_at(on_meta(mesh, device, seed=None), batch, ranks),
    }
    report(init=init, state_dicts=whole_state_dicts(gpt, mesh, rank))
    report(schedules=schedules(gpt, mesh, batch), mistakes=mistakes(gpt, mesh, batch))
    report(hybrid=hybrid(gpt, batch, device, ranks), loss=step(gpt(), batch))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
