"""A training step on 1, 2, 4, ... ranks, timed in the same rounds.

torchrun --standalone --nproc-per-node=2 scripts/ddp_scaling.py            (the same work on each rank)
torchrun --standalone --nproc-per-node=2 scripts/ddp_scaling.py --global-batch 8    (the same work in all)
torchrun --standalone --nproc-per-node=2 scripts/ddp_scaling.py --losing   (then a wide model on little text, too)
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.programs import integer_options, join_ranks, loss_of, report, timed_rounds

Cases = dict[str, Callable[[], Tensor] | None]


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


def main() -> None:
    parser = integer_options(__doc__, batch=8, length=64, width=96, layers=3, budget=5)
    parser.add_argument("--global-batch", type=int, help="pieces on all ranks together, instead of --batch on each")
    parser.add_argument("--losing", action="store_true", help="also share two short texts between two ranks")
    args = parser.parse_args()

    rank, ranks, device = join_ranks()
    counts = sorted({2**n for n in range(1, ranks.bit_length())} | {ranks})
    if args.global_batch and any(args.global_batch % count for count in counts):
        parser.error(f"--global-batch {args.global_batch} cannot be divided by each of {counts} ranks")

    text = library_text(2**20)
    torch.manual_seed(0)
    base = GPT(context=args.length, width=args.width, layers=args.layers, heads=4).to(device)

    def step_of(model: nn.Module, batch: int, length: int = args.length, shared_by: int = 1) -> Callable[[], Tensor]:
        sizes = {"batch": batch, "length": length, "steps": 1, "seed": rank if shared_by == 1 else 0}
        drawn = next(text_batches(text, device=str(device), **sizes))
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
    if args.losing and ranks > 1:
        wide = GPT(context=8, width=256, layers=3, heads=4).to(device)
        cases = {"one process": step_of(copy.deepcopy(wide), 2, 8) if rank == 0 else None, "DDP, 2 ranks": None}
        group = dist.new_group([0, 1])
        if rank < 2:
            model = DistributedDataParallel(wide, process_group=group)
            cases["DDP, 2 ranks"] = step_of(model, 2, 8, shared_by=2)
        agreement = check_losses(cases, ["DDP, 2 ranks"], {"DDP, 2 ranks": group})
        timed_rounds(cases, name="losing", budget_s=args.budget, practical=0.1, items=2, agreement=agreement)
    gradient_bytes = sum(parameter.nbytes for parameter in base.parameters())
    report(gradient_bytes=gradient_bytes, device=device.type, threads=torch.get_num_threads())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
