"""What calls do and say: each name of FSDP1 that posts use and today's form of it, mistakes, whole state dicts.

By hand: torchrun --standalone --nproc-per-node=2 tests/rank_programs/fsdp_calls.py
"""

import functools
import io
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.fsdp import FullyShardedDataParallel as OldFSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy, transformer_auto_wrap_policy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.models import GPT, Block
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.collectives import Collectives
from course_utils.ranks.programs import join_ranks, loss_of, memory_by_kind, report

SHAPE = {"context": 32, "width": 64, "layers": 2, "heads": 2}
BLOCKS = ModuleWrapPolicy({Block})
Wrap = Callable[[nn.Module], nn.Module]


def today(model: nn.Module, mesh: DeviceMesh, blocks: bool = True, **options) -> nn.Module:
    """Choose the modules yourself, from the inside out; no policy needed."""
    if blocks:
        for block in model.blocks:
            fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def old_and_new(mesh: DeviceMesh, both: DeviceMesh, device: torch.device) -> dict[str, tuple]:
    """Old name -> (the old call, today's form in words, today's call)."""

    def old(**options: Any) -> Wrap:
        return functools.partial(OldFSDP, device_id=device, **options)

    def old_blocks(strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD, **options: Any) -> Wrap:
        return old(sharding_strategy=strategy, auto_wrap_policy=BLOCKS, **options)

    def new(mesh: DeviceMesh = mesh, **options: Any) -> Wrap:
        return functools.partial(today, mesh=mesh, **options)

    strategies = ShardingStrategy
    half, half_today = MixedPrecision(param_dtype=torch.bfloat16), MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    transformer = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    by_size = functools.partial(size_based_auto_wrap_policy, min_num_params=40_000)
    offload, offload_today = CPUOffload(offload_params=True), CPUOffloadPolicy()
    loop = "fully_shard(block) in a loop, then fully_shard(model)"
    chosen = "the same loop, over the modules that you choose"
    reshard, names = "reshard_after_forward=False", "always so: parameters keep names and shapes"
    in_bf16, on_cpu = "mp_policy=MixedPrecisionPolicy(param_dtype=bf16)", "offload_policy=CPUOffloadPolicy()"
    return {
        "FullyShardedDataParallel(model)": (OldFSDP, "fully_shard(model)", new(blocks=False)),
        "device_id=device": (old(), "the mesh's device", new(blocks=False)),
        "FULL_SHARD, ModuleWrapPolicy": (old_blocks(strategies.FULL_SHARD), loop, new()),
        "transformer_auto_wrap_policy": (old(auto_wrap_policy=transformer), "the same loop", new()),
        "size_based_auto_wrap_policy": (old(auto_wrap_policy=by_size), chosen, new()),
        "SHARD_GRAD_OP": (old_blocks(strategies.SHARD_GRAD_OP), reshard, new(reshard_after_forward=False)),
        "NO_SHARD": (old_blocks(strategies.NO_SHARD), "DistributedDataParallel", DistributedDataParallel),
        "HYBRID_SHARD": (old_blocks(strategies.HYBRID_SHARD, device_mesh=both), "a mesh of two dimensions", new(both)),
        "MixedPrecision(param_dtype=bf16)": (old_blocks(mixed_precision=half), in_bf16, new(mp_policy=half_today)),
        "CPUOffload(offload_params=True)": (old_blocks(cpu_offload=offload), on_cpu, new(offload_policy=offload_today)),
        "use_orig_params=True": (old_blocks(use_orig_params=True), names, new()),
    }


def methods(loss: Callable[[nn.Module], torch.Tensor]) -> dict[str, tuple]:
    """Old name of a method -> (the old call, today's form in words, today's call); the model has gradients."""

    def no_sync(model: nn.Module) -> None:
        with model.no_sync():
            loss(model).backward()

    def requires_no_sync(model: nn.Module) -> None:
        model.set_requires_gradient_sync(False)
        loss(model).backward()

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
        "FSDP.state_dict_type(model, ...)": (sharded_state, "model.state_dict(), of DTensors", nn.Module.state_dict),
    }


def attempt(call: Callable[..., dict], *args: Any) -> dict:
    """Call, and note what it gives, or the first line of what it raises, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome = {"says": "runs"} | call(*args)
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            outcome = {"says": f"{type(error).__name__}: {lines[0]}"[:180]}
    first = [" ".join(str(warning.message).split()) for warning in caught if warning.category is FutureWarning]
    outcome["warns"] = first[0][:180] if first else ""
    return outcome


def said(call: Callable[[], object]) -> str:
    """The first line of what a call raises, or that it runs."""
    try:
        call()
    except Exception as error:  # whatever it is: its words are what is asked for
        return f"{type(error).__name__}: {str(error).splitlines()[0][:220]}"
    return "runs"


def mistakes(
    gpt: Callable[[], GPT], mesh: DeviceMesh, tokens: torch.Tensor, loss: Callable[[nn.Module], torch.Tensor]
) -> dict[str, str]:
    """Each on a model of its own, on all ranks alike: a mistake of one rank alone would leave the others waiting."""
    device = mesh.device_type

    def features(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        return model.norm(model.token_embedding(tokens))

    def registered() -> None:
        model = today(gpt(), mesh)
        type(model).features = features
        register_fsdp_forward_method(model, "features")
        model.features(tokens)

    def partly() -> nn.Module:
        model = gpt()
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        loss(model).backward()
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
        today(model, mesh)(tokens)

    return {
        "model.forward(x) instead of model(x)": said(lambda: today(gpt(), mesh).forward(tokens)),
        "another method of the model": said(lambda: features(today(gpt(), mesh), tokens)),
        "the same, registered": said(registered),
        "a submodule called by itself": said(lambda: today(gpt(), mesh).token_embedding(tokens)),
        "clipping, root not wrapped": said(lambda: nn.utils.clip_grad_norm_(partly().parameters(), 1.0)),
        "load_state_dict of whole tensors": said(lambda: today(gpt(), mesh).load_state_dict(gpt().state_dict())),
        "two groups share a weight": said(tied_apart),
        "no to_empty after meta": said(still_on_meta),
        "the list of blocks": said(lambda: fully_shard(gpt().blocks, mesh=mesh)),
    }


class TwoWays(nn.Module):
    """One of two layers of the same size, as an expert is chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor, way: int) -> torch.Tensor:
        return self.ways[way](x)


class InPlace(nn.Sequential):
    """Adds to what a block returns, in place or not."""

    in_place = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self:
            y = block(x)
            if self.in_place:
                y += x
            x = y if self.in_place else y + x
        return x


def silent(gpt: Callable[[], GPT], mesh: DeviceMesh, rank: int, loss: Callable[[nn.Module], torch.Tensor]) -> dict:
    """Mistakes that raise nothing, or much later."""
    device = mesh.device_type
    model = today(gpt(), mesh)
    with torch.no_grad():
        loss(model)
    evaluated = {"whole after it": sum(not isinstance(weight, DTensor) for weight in model.parameters())}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before = model.state_dict()["token_embedding.weight"].full_tensor().clone()
    for _ in range(3):
        loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    moved = model.token_embedding.weight.full_tensor() - before
    given = {id(weight) for weight in optimizer.param_groups[0]["params"]}
    evaluated |= {"embedding moved": moved.abs().max().item(), "in the state": len(optimizer.state)}
    evaluated |= {"missed": sum(id(weight) not in given for weight in model.parameters())}

    stored = io.BytesIO()
    torch.save(today(gpt(), mesh).state_dict(), stored)  # no rank waits for another
    stored.seek(0)
    weight = torch.load(stored, weights_only=False)["token_embedding.weight"]
    saved = {"rows": len(weight), "rows in the file": len(weight.to_local())}

    gradients = {}
    for unused in (False, True):
        torch.manual_seed(0)
        two = fully_shard(TwoWays().to(device), mesh=mesh)
        two.set_reduce_scatter_unused_params(unused)
        two(torch.full((1, 8), 1.0 + rank, device=device), way=rank).sum().backward()
        grad = two.ways[rank].weight.grad
        gradients[f"unused={unused}"] = grad.to_local().mean().item()

    def in_place(**there: bool) -> nn.Module:
        model = InPlace(*(nn.Linear(8, 8) for _ in range(3))).to(device)
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh).in_place = there.get("in_place", True)
        return model(torch.ones(2, 4, 8, device=device)).sum().backward()

    return {
        "an evaluation, then the optimizer": evaluated,
        "torch.save of state_dict": saved,
        "another layer on each rank": gradients,
        "in place": {"y += x": said(in_place), "y + x": said(lambda: in_place(in_place=False))},
    }


def whole_state_dicts(gpt: Callable[[], GPT], mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    """From one whole state dict on rank 0 into shards, and back."""
    given = gpt().state_dict() if rank == 0 else {}
    torch.manual_seed(1)
    model = today(GPT(**SHAPE).to(mesh.device_type), mesh)
    set_model_state_dict(model, given, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    back = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    expected = gpt().state_dict()
    same = all(torch.equal(back[name], expected[name].cpu()) for name in back)
    return {"entries": len(back), "same": same if back else None, "entries of the dict that was given": len(given)}


def main() -> None:
    rank, ranks, device = join_ranks()
    mesh = init_device_mesh(device.type, (ranks,))
    both = init_device_mesh(device.type, (1, ranks), mesh_dim_names=("replicate", "shard"))
    everything = next(text_batches(library_text(2**16), 2 * ranks, 32, 1, device=device))
    tokens, targets = (tensor.chunk(ranks)[rank] for tensor in everything)

    def gpt() -> GPT:
        torch.manual_seed(0)
        return GPT(**SHAPE).to(device)

    def loss(model: nn.Module) -> torch.Tensor:
        return loss_of(model, tokens, targets)

    def two_steps(wrap: Wrap) -> dict:
        model = wrap(gpt())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            with Collectives() as collectives:
                last = loss(model)
                last.backward()
            optimizer.step()
        weights = memory_by_kind(model, optimizer)["weights"]
        gathered = sum(size for name, _, size, _ in collectives.calls if name.startswith("allgather"))
        return {"loss": last.item(), "weights_bytes": weights, "gathered_bytes": gathered}

    def trained(wrap: Wrap, then: Callable[[nn.Module], object]) -> dict:
        model = wrap(gpt())
        loss(model).backward()
        result = then(model)
        return {"result": result if isinstance(result, float) else None}

    calls = {
        name: {"old": attempt(two_steps, old), "today": words, "new": attempt(two_steps, new)}
        for name, (old, words, new) in old_and_new(mesh, both, device).items()
    }
    old_blocks = functools.partial(OldFSDP, auto_wrap_policy=BLOCKS, device_id=device)
    new_blocks = functools.partial(today, mesh=mesh)
    for name, (old_then, words, new_then) in methods(loss).items():
        old, new = attempt(trained, old_blocks, old_then), attempt(trained, new_blocks, new_then)
        calls[name] = {"old": old, "today": words, "new": new}
    report(parameters_bytes=sum(weight.nbytes for weight in gpt().parameters()), calls=calls)
    report(mistakes=mistakes(gpt, mesh, tokens, loss), state_dicts=whole_state_dicts(gpt, mesh, rank))
    report(silent=silent(gpt, mesh, rank, loss))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
