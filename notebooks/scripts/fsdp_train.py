"""Train one GPT with DDP, ZeRO-1 and FSDP: what each rank keeps, what it holds at its worst, and what it sends.

By hand, on one machine: torchrun --standalone --nproc-per-node=2 scripts/fsdp_train.py --steps 10
On two machines, on each: torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400
--rdzv-id=1 scripts/fsdp_train.py
"""

import gc
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.collectives import Collectives
from course_utils.ranks.memory import RankMemory
from course_utils.ranks.programs import integer_options, join_ranks, memory_by_kind, report

STRATEGIES = ("DDP", "ZeRO-1", "FSDP no reshard", "FSDP", "FSDP root only")


def spread(strategy: str, model: nn.Module, mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Wrap the model first, then build the optimizer from the wrapped model's parameters."""
    adamw = {"lr": 1e-3, "fused": True}
    if strategy in ("DDP", "ZeRO-1"):
        model = DistributedDataParallel(model, process_group=mesh.get_group(), gradient_as_bucket_view=True)
        if strategy == "ZeRO-1":
            return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, mesh.get_group(), **adamw)
        return model, torch.optim.AdamW(model.parameters(), **adamw)

    options = {"mesh": mesh}
    if strategy == "FSDP no reshard":  # weights stay gathered from the forward pass until the backward pass
        options["reshard_after_forward"] = False
    if strategy != "FSDP root only":
        for block in model.blocks:
            fully_shard(block, **options)
    fully_shard(model, **options)  # what is in no group yet: embeddings, last norm
    return model, torch.optim.AdamW(model.parameters(), **adamw)


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, ...],
    phase: Callable[[str], None] = lambda name: None,
) -> torch.Tensor:
    """The same for all strategies. ``phase`` hears what runs next."""
    tokens, targets = batch
    optimizer.zero_grad()
    phase("forward")
    loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    phase("backward")
    loss.backward()
    phase("optimizer step")
    optimizer.step()
    return loss.detach()


def main() -> None:
    parser = integer_options(__doc__, steps=5, batch=2, length=64, width=128, layers=4)
    args = parser.parse_args()
    if args.steps < 3:
        parser.error("--steps must be 3 or more: memory is measured from the third step on")

    rank, ranks, device = join_ranks()
    mesh = init_device_mesh(device.type, (ranks,))
    text = library_text(2**18)

    def gpt() -> GPT:
        torch.manual_seed(0)  # the same weights on all ranks, every time
        heads = max(1, args.width // 64)
        return GPT(context=args.length, width=args.width, layers=args.layers, heads=heads).to(device)

    batches = list(text_batches(text, args.batch * ranks, args.length, args.steps, device=device))

    def mine(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.chunk(ranks)[rank] for tensor in batch)

    # One process with the whole batch says what the loss must be.
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    whole = [training_step(model, optimizer, batch).item() for batch in batches]
    report(
        parameters=sum(weight.numel() for weight in model.parameters()),
        parameters_of_a_block=sum(weight.numel() for weight in model.blocks[0].parameters()),
        losses={"one process": whole},
    )
    del model, optimizer

    losses, memory, steps, traffic, allocated = {"one process": whole}, {}, {}, {}, {}
    for strategy in STRATEGIES:
        shares = [mine(batch) for batch in batches]
        with RankMemory() as held:  # before the model is wrapped, so that it sees DDP's buckets
            model, optimizer = spread(strategy, gpt(), mesh)
            own_losses, measured = [training_step(model, optimizer, batch) for batch in shares[:2]], []
            for batch in shares[2:]:  # now the optimizer has its state, and DDP its final buckets
                with held.step(model, optimizer):
                    own_losses.append(training_step(model, optimizer, batch, held.phase))
                measured.append(held.last_step)
        lowest = min(measured, key=lambda step: step.peak_bytes)  # gloo's threads may hold a buffer for longer
        mean = torch.stack(own_losses)
        dist.all_reduce(mean)
        losses[strategy] = (mean / ranks).tolist()
        sizes = {"largest": lowest.largest, "at peak": lowest.at_peak, "peak_bytes": lowest.peak_bytes}
        steps[strategy] = {**sizes, "phase": lowest.peak_phase}
        memory[strategy] = memory_by_kind(model, optimizer)
        with Collectives(model.parameters()) as collectives:
            training_step(model, optimizer, shares[0])
        traffic[strategy] = collectives.traffic
        if device.type == "cuda":  # what CUDA's allocator gave out, all that is in the process
            torch.cuda.reset_peak_memory_stats()
            training_step(model, optimizer, shares[0])
            allocated[strategy] = torch.cuda.max_memory_allocated()
        del model, optimizer, collectives, held, lowest, measured
        gc.collect()
    report(losses=losses, memory=memory, steps=steps, traffic=traffic, cuda_peak_bytes=allocated)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
