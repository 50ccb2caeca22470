"""A training step on 1, 2, 4, ... ranks, timed in the same rounds, and what of it is sending.

torchrun --standalone --nproc-per-node=2 scripts/ddp_scaling.py            (the same work on each rank)
torchrun --standalone --nproc-per-node=2 scripts/ddp_scaling.py --global-batch 8    (the same work in all)
torchrun --standalone --nproc-per-node=2 scripts/ddp_scaling.py --sending  (then buckets, and steps that send less)
"""

# No "from __future__ import annotations" here: DDP reads the annotations of a communication hook, and takes no strings.
import contextlib
import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.programs import gradient_of, integer_options, join_ranks, loss_of, report, timed_rounds

Cases = dict[str, Callable[[], Any] | None]
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "bucket_cap_mb=25": {"bucket_cap_mb": 25},
    "bucket_cap_mb=2": {"bucket_cap_mb": 2},
    "gradients as views": {"gradient_as_bucket_view": True},
}


def check_losses(cases: Cases, labels: list[str], groups: dict[str, dist.ProcessGroup | None]) -> str:
    """Two steps of each case must find the losses of one process; the second depends on the gradients of the first."""
    alone = cases["one process"]
    expected = [alone() for _ in range(2)] if alone else []
    for label in labels:
        step = cases[label]
        if step is None:
            continue
        losses = torch.stack([step() for _ in range(2)])
        if label in groups:  # each rank knows the loss of its share; all shares are equally large
            dist.all_reduce(losses, group=groups[label])
            losses /= dist.get_world_size(groups[label])
        if expected:
            torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-4, atol=0, msg=f"the losses of {label}")
    return f"losses of two steps equal to 1e-4: one process, {', '.join(labels)}"


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
    for number, batch in enumerate(batches, start=1):
        sends = sync_each or number == len(batches)
        with contextlib.nullcontext() if sends else model.no_sync():  # the forward pass belongs inside, too
            (loss_of(model, *batch) / len(batches)).backward()


def small_operations() -> None:
    """Many calls with next to nothing to compute: Python and the dispatcher are the work."""
    x = torch.ones(16)
    for _ in range(300):
        x = x * 0.5 + 1


def time_sending(text: Tensor, rank: int, device: torch.device, budget_s: int) -> None:
    """A wide model, a short text on each rank: its buckets, and its time with more and less to send."""
    torch.manual_seed(0)
    base = GPT(context=8, width=192, layers=2, heads=4).to(device)
    batches = list(text_batches(text, 1, 8, steps=4, seed=rank, device=str(device)))

    def backward(model: nn.Module) -> None:
        model.zero_grad()
        loss_of(model, *batches[0]).backward()

    def distributed(**options: Any) -> DistributedDataParallel:
        return DistributedDataParallel(copy.deepcopy(base), **options)

    report(settings={name: buckets_of(distributed(**options), backward) for name, options in OPTIONS.items()})

    ways = {"send after each": distributed(), "no_sync": distributed()}

    def accumulated(name: str) -> None:
        ways[name].zero_grad()
        accumulate(ways[name], batches, sync_each=name == "send after each")

    cases: Cases = {name: lambda name=name: accumulated(name) for name in ways}
    for case in cases.values():
        case()
    torch.testing.assert_close(*map(gradient_of, ways.values()), rtol=1e-4, atol=1e-7)
    timed_rounds(cases, name="accumulation", budget_s=budget_s, practical=0.05, agreement="gradients equal to 1e-4")

    model = distributed()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(sends: bool) -> None:
        with contextlib.nullcontext() if sends else model.no_sync():
            backward(model)
        optimizer.step()

    cases = {"without sending": lambda: step(False), "DDP": lambda: step(True)}
    timed_rounds(cases, name="losing", budget_s=budget_s, practical=0.1)

    with ThreadPoolExecutor(2) as pool:
        cases = {
            "two threads": (lambda: [*pool.map(lambda _: small_operations(), range(2))]) if rank == 0 else None,
            "two processes": small_operations if rank < 2 else None,
        }
        timed_rounds(cases, name="lock", budget_s=budget_s, practical=0.1)


def main() -> None:
    parser = integer_options(__doc__, batch=8, length=64, width=96, layers=3, budget=5)
    parser.add_argument("--global-batch", type=int, help="pieces on all ranks together, instead of --batch on each")
    parser.add_argument("--sending", action="store_true", help="also time steps that send more and less")
    args = parser.parse_args()

    rank, ranks, device = join_ranks()
    counts = sorted({2**n for n in range(1, ranks.bit_length())} | {ranks})
    if args.global_batch and any(args.global_batch % count for count in counts):
        parser.error(f"--global-batch {args.global_batch} cannot be divided by each of {counts} ranks")

    text = library_text(2**20)
    torch.manual_seed(0)
    base = GPT(context=args.length, width=args.width, layers=args.layers, heads=4).to(device)

    def step_of(model: nn.Module, batch: int, shared_by: int = 1) -> Callable[[], Tensor]:
        seed = rank if shared_by == 1 else 0
        drawn = next(text_batches(text, batch, args.length, steps=1, seed=seed, device=str(device)))
        tokens, targets = (part[rank % shared_by :: shared_by] for part in drawn)
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> Tensor:
            loss = loss_of(model, tokens, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    whole = args.global_batch or args.batch
    cases = {"one process": step_of(copy.deepcopy(base), whole) if rank == 0 else None}
    items = {"one process": whole}
    groups: dict[str, dist.ProcessGroup | None] = {}
    if args.global_batch and device.type == "cuda" and ranks > 1:
        cases["DataParallel"] = step_of(nn.DataParallel(copy.deepcopy(base)), whole) if rank == 0 else None
        items["DataParallel"] = whole
    for count in counts:
        group = dist.new_group(range(count))  # every rank calls it, also those that are not in the group
        label = f"DDP, {count} rank{'s' if count > 1 else ''}"
        items[label] = whole if args.global_batch else count * args.batch
        cases[label] = None
        if rank < count:
            model = DistributedDataParallel(copy.deepcopy(base), process_group=group)
            cases[label] = step_of(model, whole, shared_by=count if args.global_batch else 1)
            groups[label] = group
    # With a batch of its own on each rank, more ranks than one cannot be held against one: ddp_train.py does that.
    comparable = [label for label in list(cases)[1:] if args.global_batch or items[label] == whole]
    agreement = check_losses(cases, comparable, groups)
    timed_rounds(cases, name="steps", budget_s=args.budget, practical=0.1, items=items, agreement=agreement)
    if args.sending and ranks > 1:
        time_sending(text, rank, device, 2 * args.budget)
    gradient_bytes = sum(parameter.nbytes for parameter in base.parameters())
    report(gradient_bytes=gradient_bytes, device=device.type, threads=torch.get_num_threads())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
