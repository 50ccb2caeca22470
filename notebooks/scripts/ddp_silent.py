"""Loops that nobody reports: how far is a gradient from the other rank's, and from that of one process? On two ranks.

torchrun --standalone --nproc-per-node=2 scripts/ddp_silent.py
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.digits import load_digits_split
from course_utils.measure.machine import course_size
from course_utils.ranks.programs import gradient_of, join_ranks, report

# A batch of digits, and rank 0's share of it where shares are unequal.
BATCH, LARGE_SHARE = 256, 192


def digits_network(norm: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 32), norm or nn.Identity(), nn.Tanh(), nn.Linear(32, 10))


def unequal_shares() -> list[dict[str, object]]:
    """The mean of two mean gradients against that of all samples: in a batch, and added up over many. On the CPU."""
    digits, model = load_digits_split(), digits_network()
    x, y, dice = digits.train_images.flatten(1), digits.train_labels, torch.Generator().manual_seed(0)
    low, high = (y < 5).nonzero().flatten(), (y >= 5).nonzero().flatten()

    def gradient(rows: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        return gradient_of(model)

    def drawn(rows: torch.Tensor, count: int) -> torch.Tensor:
        return rows[torch.randperm(len(rows), generator=dice)[:count]]

    def row(content: str, batch: Callable[[], torch.Tensor]) -> dict[str, object]:
        errors, all_means, all_right = [], 0, 0
        for _ in range(batches):
            rows = batch()
            means, right = (gradient(rows[:LARGE_SHARE]) + gradient(rows[LARGE_SHARE:])) / 2, gradient(rows)
            errors.append((means - right).norm() / right.norm())
            all_means, all_right = all_means + means, all_right + right
        return {
            "what the ranks read": content,
            "one batch": torch.stack(errors).median().item(),
            "mean of all": ((all_means - all_right).norm() / all_right.norm()).item(),
        }

    batches, everything, rest = 20 if course_size() == "test" else 400, torch.arange(len(y)), BATCH - LARGE_SHARE
    return [
        row("all digits", lambda: drawn(everything, BATCH)),
        row("0 to 4, 5 to 9", lambda: torch.cat([drawn(low, LARGE_SHARE), drawn(high, rest)])),
    ]


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
    report(ways=ways, shares=unequal_shares() if rank == 0 else None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
