"""Loops that nobody reports: how far is a gradient from the other rank's, and from that of one process? On two ranks.

torchrun --standalone --nproc-per-node=2 scripts/ddp_silent.py
"""

from __future__ import annotations

import contextlib
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course_utils.lessons.ddp.cases import BATCH, LARGE_SHARE, digits_network
from course_utils.materials.digits import load_digits_split
from course_utils.ranks.programs import gradient_of, join_ranks, report


def main() -> None:
    rank, ranks, device = join_ranks()
    if ranks != 2:
        raise SystemExit("these loops are for two ranks: --nproc-per-node=2")
    digits = load_digits_split()
    x, y = digits.train_images[:BATCH].flatten(1).to(device), digits.train_labels[:BATCH].to(device)
    equal, unequal = slice(rank, None, 2), slice(LARGE_SHARE) if rank == 0 else slice(LARGE_SHARE, None)

    def distances(
        rows: slice = equal, *, norm: bool = False, weigh: bool = False, around: bool = False, stays: bool = False
    ) -> dict[str, float]:
        """Relative to their length: the worse rank's gradient against rank 0's, and against one process's."""
        whole = digits_network(nn.BatchNorm1d(32) if norm else nn.Identity()).to(device)
        model = DistributedDataParallel(copy.deepcopy(whole))
        loss = F.cross_entropy(whole(x), y)
        loss.backward()
        with model.no_sync() if stays else contextlib.nullcontext():
            own = F.cross_entropy((model.module if around else model)(x[rows]), y[rows])
            (own * 2 * len(x[rows]) / BATCH if weigh else own).backward()
        found = gradient_of(model)
        of_rank_0 = found.clone()
        dist.broadcast(of_rank_0, src=0)
        apart = torch.stack([(found - right).norm() / right.norm() for right in (of_rank_0, gradient_of(whole))])
        dist.all_reduce(apart, dist.ReduceOp.MAX)
        return dict(zip(("from rank 0", "from one process"), apart.tolist(), strict=True))

    ways = {
        "equal shares": distances(),
        f"{LARGE_SHARE} and {BATCH - LARGE_SHARE} samples": distances(unequal),
        "the same, weighed": distances(unequal, weigh=True),
        "both read the same half": distances(slice(0, None, 2)),
        "model.module(x)": distances(around=True),
        "no_sync() stays on": distances(stays=True),
        "BatchNorm": distances(norm=True),
    }
    report(ways=ways, device=device.type)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
