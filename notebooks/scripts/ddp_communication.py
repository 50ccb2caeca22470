"""What DDP sends: its buckets, gradients as views of them, and accumulation without sending.

torchrun --standalone --nproc-per-node=2 scripts/ddp_communication.py
"""

# No "from __future__ import annotations" here: DDP reads the annotations of a communication hook, and takes no strings.
import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.programs import gradient_of, integer_options, join_ranks, loss_of, report, timed_rounds

BATCH, LENGTH = 1, 32  # pieces of text on each rank, and bytes in a piece
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "bucket_cap_mb=25": {"bucket_cap_mb": 25},
    "bucket_cap_mb=0.5": {"bucket_cap_mb": 0.5},  # annotated as a whole number, and taken as it is
    "gradients as views": {"gradient_as_bucket_view": True},
}


def buckets_of(model: DistributedDataParallel, backward: Callable[[nn.Module], None]) -> dict[str, Any]:
    """The buckets of the first backward pass and of a later one, in bytes and in the order in which they are sent."""
    sent: list[Tensor] = []

    def noting(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        sent.append(bucket.buffer())
        return allreduce_hook(group, bucket)

    model.register_comm_hook(None, noting)
    backward(model)
    first = [buffer.nbytes for buffer in sent]
    backward(model)
    sent.clear()
    backward(model)
    memory = {buffer.untyped_storage().data_ptr(): buffer.untyped_storage().nbytes() for buffer in sent}
    buckets = sum(memory.values())
    for parameter in model.parameters():
        storage = parameter.grad.untyped_storage()
        memory[storage.data_ptr()] = storage.nbytes()
    kinds = {"weights": sum(p.nbytes for p in model.parameters()), "buckets": buckets}
    kinds["gradients beside the buckets"] = sum(memory.values()) - buckets
    return {"first": first, "later": [buffer.nbytes for buffer in sent], "memory_bytes": kinds}


def accumulate(model: DistributedDataParallel, batches: list[tuple[Tensor, Tensor]], sync_each: bool) -> None:
    """Gradients of several micro-batches, averaged over the ranks after each, or only after the last."""
    for tokens, targets in batches[:-1]:
        if sync_each:
            (loss_of(model, tokens, targets) / len(batches)).backward()
        else:
            with model.no_sync():  # the forward pass belongs inside, too
                (loss_of(model, tokens, targets) / len(batches)).backward()
    (loss_of(model, *batches[-1]) / len(batches)).backward()


def main() -> None:
    args = integer_options(__doc__, width=112, budget=5).parse_args()
    rank, _, device = join_ranks()
    text = library_text(2**20)
    batches = list(text_batches(text, BATCH, LENGTH, steps=4, seed=rank, device=str(device)))
    torch.manual_seed(0)
    base = GPT(context=LENGTH, width=args.width, layers=3, heads=4).to(device)

    def distributed(**options: Any) -> DistributedDataParallel:
        return DistributedDataParallel(copy.deepcopy(base), **options)

    def backward(model: nn.Module) -> None:
        model.zero_grad()
        loss_of(model, *batches[0]).backward()

    report(settings={name: buckets_of(distributed(**options), backward) for name, options in OPTIONS.items()})

    ways = {"send after each": distributed(), "no_sync": distributed()}

    def accumulated(name: str) -> None:
        ways[name].zero_grad()
        accumulate(ways[name], batches, sync_each=name == "send after each")

    cases = {name: lambda name=name: accumulated(name) for name in ways}
    for case in cases.values():
        case()
    torch.testing.assert_close(*map(gradient_of, ways.values()), rtol=1e-4, atol=1e-7)
    timed_rounds(cases, name="accumulation", budget_s=args.budget, practical=0.05, agreement="gradients equal to 1e-4")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
