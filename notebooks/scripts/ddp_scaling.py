"""What of a step is sending: one rank alone, all at once, all in DDP. On one rank: what DDP itself costs.

torchrun --standalone --nproc-per-node=2 scripts/ddp_scaling.py
"""

# No "from __future__ import annotations" here: DDP reads the annotations of a communication hook, and takes no strings.
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.programs import join_ranks, loss_of, report, timed_rounds

BATCH = 4  # texts on each rank
OPTIONS: dict[str, dict[str, Any]] = {"DDP": {}, "DDP, views": {"gradient_as_bucket_view": True}}


def step_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        loss_of(model, *batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def gradients_held(model: DistributedDataParallel, batch: tuple[Tensor, Tensor]) -> float:
    """The bytes of gradients and buckets together, over those of the weights."""
    sent: list[Tensor] = []

    def noting(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        sent.append(bucket.buffer())
        return allreduce_hook(group, bucket)

    model.register_comm_hook(None, noting)
    for _ in range(3):  # the first ones still change the buckets
        sent.clear()
        loss_of(model, *batch).backward()
    storages = [tensor.untyped_storage() for tensor in [*sent, *(weight.grad for weight in model.parameters())]]
    held = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    weights = sum(weight.nbytes for weight in model.parameters())
    return held / weights


def main() -> None:
    rank, ranks, device = join_ranks()
    length, width, layers = (64, 128, 3) if device.type == "cpu" else (1024, 1024, 12)
    torch.manual_seed(0)

    def model() -> GPT:
        return GPT(context=length, width=width, layers=layers, heads=width // 64).to(device)

    batch = next(text_batches(library_text(2**20), BATCH, length, steps=1, seed=rank, device=str(device)))
    ddp = {name: DistributedDataParallel(model(), **options) for name, options in OPTIONS.items()}
    if ranks == 1:
        cases = {"plain": step_of(model(), batch), **{name: step_of(each, batch) for name, each in ddp.items()}}
        held = {name: gradients_held(DistributedDataParallel(model(), **OPTIONS[name]), batch) for name in ddp}
        report(held=held)
    else:
        alone = step_of(model(), batch)
        at_once = {f"{ranks} at once": alone, "one alone": alone if rank == 0 else None}
        cases = {**at_once, "DDP": step_of(ddp["DDP"], batch)}
    timed_rounds(cases, name="steps", budget_s=5, practical=0.02, items=BATCH)
    report(gradient_bytes=sum(weight.nbytes for weight in ddp["DDP"].parameters()), device=device.type)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
