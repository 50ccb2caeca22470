"""A training step on 1, 2, 4, ... ranks, timed in the same rounds.

torchrun --standalone --nproc-per-node=2 scripts/ddp_scaling.py            (the same work on each rank)
torchrun --standalone --nproc-per-node=2 scripts/ddp_scaling.py --global-batch 8    (the same work in all)
"""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks import report, timed_rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8, help="pieces of text on each rank")
    parser.add_argument("--global-batch", type=int, default=None, help="pieces on all ranks together, instead")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()

    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    cuda = torch.cuda.device_count() >= local_ranks
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    counts = sorted({2**n for n in range(ranks.bit_length())} | {ranks})
    if args.global_batch and any(args.global_batch % count for count in counts):
        parser.error(f"--global-batch {args.global_batch} cannot be divided by each of {counts} ranks")

    text = library_text(2**20).data
    torch.manual_seed(0)
    base = GPT(context=args.length, width=args.width, layers=args.layers, heads=4).to(device)

    def step_of(model: nn.Module, batch: int) -> Callable[[], Tensor]:
        sizes = {"batch": batch, "length": args.length, "steps": 1, "seed": rank}
        tokens, targets = next(text_batches(text, device=str(device), **sizes))
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> Tensor:
            loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    whole = args.global_batch or args.batch
    cases = {"one process": step_of(copy.deepcopy(base), whole) if rank == 0 else None}
    items = {"one process": whole}
    if args.global_batch and cuda and ranks > 1:
        copied = nn.DataParallel(copy.deepcopy(base)) if rank == 0 else None
        cases["DataParallel"] = step_of(copied, whole) if rank == 0 else None
        items["DataParallel"] = whole
    for count in counts:
        group = dist.new_group(range(count))  # every rank calls it, also those that are not in the group
        label = f"DDP, {count} rank{'s' if count > 1 else ''}"
        items[label] = whole if args.global_batch else count * args.batch
        cases[label] = None
        if rank < count:
            model = DistributedDataParallel(copy.deepcopy(base), process_group=group)
            cases[label] = step_of(model, items[label] // count)
    if rank == 0:  # the same weights and the same batch; several ranks are checked by ddp_train.py
        torch.testing.assert_close(cases["DDP, 1 rank"](), cases["one process"]())
    agreement = "same loss in one process and on 1 rank; for more ranks see ddp_train.py"
    timed_rounds(cases, name="steps", rounds=args.rounds, items=items, agreement=agreement)
    gradient_bytes = sum(parameter.nbytes for parameter in base.parameters())
    report(gradient_bytes=gradient_bytes, device=device.type, threads=torch.get_num_threads())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
