"""Ranks with different amounts of data: the mean of means, Join, and what happens without it. Always on the CPU.

torchrun --standalone --nproc-per-node=2 scripts/ddp_uneven.py
torchrun --standalone --nproc-per-node=2 scripts/ddp_uneven.py --without-join   (two ranks or more; fails)
torchrun --standalone --nproc-per-node=2 scripts/ddp_uneven.py --broken         (the last rank fails)
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.digits import load_digits_split
from course_utils.materials.models import MLP
from course_utils.ranks import report

BATCH = 32
Batches = list[tuple[Tensor, Tensor]]
Distribute = Callable[[nn.Module], DistributedDataParallel]


def gradient_of(model: nn.Module) -> Tensor:
    """All gradients as one vector."""
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).clone()


def gradient_errors(model: nn.Module, distribute: Distribute, images: Tensor, labels: Tensor) -> dict[str, float]:
    """Split one batch 3 to 1, and hold the gradient against that of the whole batch in one process."""
    rank, ranks, size = dist.get_rank(), dist.get_world_size(), len(labels)
    small = size // 4 // max(ranks - 1, 1)
    sizes = [size - small * (ranks - 1), *[small] * (ranks - 1)]
    own_images, own_labels = images.split(sizes)[rank], labels.split(sizes)[rank]
    whole = copy.deepcopy(model)
    F.cross_entropy(whole(images), labels).backward()
    expected, distributed, errors = gradient_of(whole), distribute(copy.deepcopy(model)), {}
    for way, weight in (("mean of means", 1.0), ("weighted by size", ranks * len(own_labels) / size)):
        distributed.zero_grad()
        (weight * F.cross_entropy(distributed(own_images), own_labels)).backward()
        errors[way] = ((gradient_of(distributed) - expected).norm() / expected.norm()).item()
    return errors


def train_joined(model: DistributedDataParallel, batches: Batches, divide_by_all: bool) -> dict[str, float]:
    """Train until every rank has used up its batches. Says how large the last gradient was, over this rank's own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Join([model], divide_by_initial_world_size=divide_by_all):
        for images, labels in batches:
            own = torch.autograd.grad(F.cross_entropy(model.module(images), labels), list(model.module.parameters()))
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            share = gradient_of(model).norm() / torch.cat([part.flatten() for part in own]).norm()
            optimizer.step()
    return {"steps": len(batches), "share": share.item()}


def train(model: nn.Module, batches: Batches) -> None:
    """The same loop without Join."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--without-join", action="store_true")
    parser.add_argument("--broken", action="store_true", help="the last rank finds a label that is none")
    parser.add_argument("--wait-s", type=float, default=3.0, help="how long a rank waits for the others")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # A group of its own, so that the short time-out does not count while processes still start.
    group = dist.new_group(timeout=timedelta(seconds=args.wait_s))
    distribute = partial(DistributedDataParallel, process_group=group)

    digits = load_digits_split(seed=0)
    images, labels = digits.train_images.flatten(1).double(), digits.train_labels
    torch.manual_seed(0)
    model = MLP((64, 128, 10)).double()
    steps = 4 + 2 * rank  # each rank has two batches more than the one before
    own = slice(rank * 320, rank * 320 + steps * BATCH)
    batches = list(zip(images[own].split(BATCH), labels[own].split(BATCH), strict=True))

    if args.broken and rank == ranks - 1:
        batches[2] = (batches[2][0], batches[2][1] + 10)
        train(distribute(model), batches)
    elif args.broken:
        train(distribute(model), batches)
    elif args.without_join:
        train(distribute(model), batches)
        time.sleep(5 * args.wait_s)  # done before the others: it validates, or writes a file
    else:
        errors = gradient_errors(model, distribute, images[: 2 * BATCH], labels[: 2 * BATCH])
        joined = {}
        for divide_by_all in (True, False):
            trained = distribute(copy.deepcopy(model))
            found = train_joined(trained, batches, divide_by_all)
            vector = torch.cat([parameter.detach().flatten() for parameter in trained.parameters()])
            of_rank_0 = vector.clone()
            dist.broadcast(of_rank_0, 0)
            joined[f"divide_by_initial_world_size={divide_by_all}"] = found["share"]
            report(steps=found["steps"], weights_as_on_rank_0=torch.equal(vector, of_rank_0))
        report(gradient_error=errors)
        if rank == ranks - 1:  # it was the last one to have batches, and alone with its last two
            report(last_gradient_over_own=joined)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
