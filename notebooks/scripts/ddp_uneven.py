"""Ranks with different amounts of data: the mean of means, Join, and what happens without it. Always on the CPU.

torchrun --standalone --nproc-per-node=2 scripts/ddp_uneven.py
torchrun --standalone --nproc-per-node=2 scripts/ddp_uneven.py --broken   (the last rank fails)
"""

from __future__ import annotations

import argparse
import copy
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.models import MLP
from course_utils.materials.text import library_text
from course_utils.ranks.programs import gradient_of, report

BATCH, LENGTH = 32, 64
WAIT_S = 2.0  # how long a rank without Join waits for the others
Batches = list[tuple[Tensor, Tensor]]


def gradient_errors(model: nn.Module, texts: Tensor, following: Tensor) -> dict[str, float]:
    """Split one batch 3 to 1, and hold the gradient against that of the whole batch in one process."""
    rank, ranks, size = dist.get_rank(), dist.get_world_size(), len(texts)
    small = size // 4 // max(ranks - 1, 1)
    sizes = [size - small * (ranks - 1), *[small] * (ranks - 1)]
    own_texts, own_following = texts.split(sizes)[rank], following.split(sizes)[rank]
    whole = copy.deepcopy(model)
    F.cross_entropy(whole(texts), following).backward()
    expected, distributed, errors = gradient_of(whole), DistributedDataParallel(copy.deepcopy(model)), {}
    for way, weight in (("mean of means", 1.0), ("weighted by size", ranks * len(own_texts) / size)):
        distributed.zero_grad()
        (weight * F.cross_entropy(distributed(own_texts), own_following)).backward()
        errors[way] = ((gradient_of(distributed) - expected).norm() / expected.norm()).item()
    return errors


def train_joined(model: DistributedDataParallel, batches: Batches, divide_by_all: bool) -> dict[str, float]:
    """Train until every rank has used up its batches. Says how large the last gradient was, over this rank's own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Join([model], divide_by_initial_world_size=divide_by_all):
        for texts, following in batches:
            loss = F.cross_entropy(model.module(texts), following)
            own = torch.autograd.grad(loss, list(model.module.parameters()))
            optimizer.zero_grad()
            F.cross_entropy(model(texts), following).backward()
            share = gradient_of(model).norm() / torch.cat([part.flatten() for part in own]).norm()
            optimizer.step()
    return {"steps": len(batches), "share": share.item()}


def train(model: nn.Module, batches: Batches) -> None:
    """The same loop without Join."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for texts, following in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(texts), following).backward()
        optimizer.step()


def train_without_join(model: nn.Module, batches: Batches) -> None:
    """Train, where the ranks have different numbers of batches. Reports what becomes of those with more."""
    # A group of its own, made when all ranks are here: the short time-out counts for nothing else.
    group = dist.new_group(timeout=timedelta(seconds=WAIT_S))
    began = time.perf_counter()
    try:
        train(DistributedDataParallel(model, process_group=group), batches)
        report(without_join="done")
    except RuntimeError as error:
        line = str(error).strip().splitlines()[0][:200]
        report(without_join=f"{type(error).__name__}: {line}", waited_s=time.perf_counter() - began)
    dist.barrier()  # in the group of all, which is patient: here the rank with fewer batches is all the time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--broken", action="store_true", help="the last rank finds a label that is none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    # Which byte follows these 64?
    windows = library_text(2**18).unfold(0, LENGTH + 1, LENGTH + 1)
    texts, following = windows[:, :LENGTH].double() / 255, windows[:, LENGTH].long()
    torch.manual_seed(0)
    model = MLP((LENGTH, 64, 256)).double()
    steps = 4 + 2 * rank  # each rank has two batches more than the one before
    own = slice(rank * 320, rank * 320 + steps * BATCH)
    batches = list(zip(texts[own].split(BATCH), following[own].split(BATCH), strict=True))

    if args.broken:
        if rank == ranks - 1:
            batches[2] = (batches[2][0], batches[2][1] + 256)
        train(DistributedDataParallel(model), batches)
    else:
        report(gradient_error=gradient_errors(model, texts[: 2 * BATCH], following[: 2 * BATCH]))
        joined = {}
        for divide_by_all in (True, False):
            trained = DistributedDataParallel(copy.deepcopy(model))
            last_step = train_joined(trained, batches, divide_by_all)
            vector = torch.cat([parameter.detach().flatten() for parameter in trained.parameters()])
            of_rank_0 = vector.clone()
            dist.broadcast(of_rank_0, 0)
            joined[f"divide_by_initial_world_size={divide_by_all}"] = last_step["share"]
            report(steps=last_step["steps"], weights_as_on_rank_0=torch.equal(vector, of_rank_0))
        if rank == ranks - 1:  # it was the last one to have batches, and alone with its last two
            report(last_gradient_over_own=joined)
        train_without_join(model, batches)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
