"""Mistakes on two real ranks: which raise, which leave a rank waiting, and what mends them. Always on the CPU.

torchrun --standalone --nproc-per-node=2 scripts/ddp_mistakes.py
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from course_utils.ranks.programs import gradient_of, report

WAIT_S, PATIENT_S = 0.7, 60.0
NAMED = re.compile(r"Ranks (\d+) failed to pass monitoredBarrier")
# Of two ranks that wait for each other, one gives up first, and the other then hears only of that.
WAITED = re.compile(r"Timed out waiting|Connection (closed|reset) by peer|Broken pipe")


class TwoBranches(nn.Module):
    """A model that uses its second branch only if told to."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, width), nn.Linear(4, width)

    def forward(self, x: Tensor, both: bool = True) -> Tensor:
        return self.first(x) + self.second(x) if both else self.first(x)


# Each takes this rank and the group that it may talk in. The first ones leave a rank waiting.


def skips_an_all_reduce(rank: int, group: Any) -> Tensor:
    if rank == 0:  # "only rank 0 logs": and the mean of the metric is a collective
        dist.all_reduce(torch.tensor([100.0]), group=group)
    gradient = torch.tensor([1.0 + rank])
    dist.all_reduce(gradient, group=group)
    return gradient


def other_order(rank: int, group: Any) -> None:
    talk = [lambda: dist.all_reduce(torch.ones(2), group=group), lambda: dist.broadcast(torch.ones(2), 0, group=group)]
    for collective in talk if rank else reversed(talk):
        collective()


def steps(model: nn.Module, count: int, both: bool | Callable[[int], bool] = True) -> None:
    for step in range(count):
        model(torch.ones(2, 4), both(step) if callable(both) else both).sum().backward()


def one_batch_more(rank: int, group: Any) -> None:
    steps(DistributedDataParallel(TwoBranches(), process_group=group), 2 + rank)


def other_branch(rank: int, group: Any) -> None:
    steps(DistributedDataParallel(TwoBranches(), process_group=group), 3, both=rank == 0)


def other_model(rank: int, group: Any) -> None:
    DistributedDataParallel(TwoBranches(8 + rank), process_group=group)


def other_shape(rank: int, group: Any) -> None:
    dist.all_reduce(torch.ones(4 + 4 * rank), group=group)


def unused_parameters(rank: int, group: Any, **options: bool) -> None:
    steps(DistributedDataParallel(TwoBranches(), process_group=group, **options), 3, both=False)


def branch_with_option(rank: int, group: Any) -> None:
    steps(DistributedDataParallel(TwoBranches(), process_group=group, find_unused_parameters=True), 3, rank == 0)


def changing_static_graph(rank: int, group: Any) -> None:
    steps(DistributedDataParallel(TwoBranches(), process_group=group, static_graph=True), 3, lambda step: step != 1)


def joined(rank: int, group: Any) -> None:
    model = DistributedDataParallel(TwoBranches(), process_group=group)
    with Join([model]):
        steps(model, 2 + rank)


MISTAKES: dict[str, tuple[Callable[..., Any], bool]] = {  # and whether a rank waits
    "one rank skips an all-reduce": (skips_an_all_reduce, True),
    "collectives in another order": (other_order, True),
    "one rank has a batch more": (one_batch_more, True),
    "ranks build different models": (other_model, True),
    "a branch that only rank 0 takes": (other_branch, True),
    "parameters that no rank uses": (unused_parameters, False),
    "a static_graph that changes": (changing_static_graph, False),
}
MENDED = {
    "a batch more, inside Join": joined,
    "a branch, find_unused_parameters": branch_with_option,
    "unused on all, static_graph": lambda rank, group: unused_parameters(rank, group, static_graph=True),
}
WITH_DETAIL: dict[str, tuple[Callable[..., Any], bool]] = {
    "a skipped all-reduce, DETAIL": (skips_an_all_reduce, True),
    "another order, DETAIL": (other_order, False),
    "different shapes, DETAIL": (other_shape, False),
}


def what_happens(mistake: Callable[..., Any], waits: bool) -> dict[str, list[str]]:
    """What each rank does in a group of its own, and the first line of what it raises."""
    group = dist.new_group(timeout=timedelta(seconds=WAIT_S if waits else PATIENT_S))
    try:
        found = mistake(dist.get_rank(), group)
        own = ("goes on" if found is None else f"goes on with {found.item():g}", "")
    except (RuntimeError, ValueError) as error:
        says = re.sub(r"^\[/\S+\] ", "", str(error).splitlines()[0])[:150]
        named = NAMED.search(says)
        does = "waits" if WAITED.search(says) else "raises"
        own = (f"waits, then names rank {named[1]}" if named else does, says)
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, own)  # in the group of all, which is patient
    return {"does": [does for does, _ in everybody], "says": [says for _, says in everybody]}


def last_gradient_with_join(rank: int) -> dict[str, float]:
    """Rank 1 is alone with its last batch: what is left of its gradient?"""
    left = {}
    for by_all in (True, False):
        model = DistributedDataParallel(nn.Linear(4, 1, bias=False))
        with Join([model], divide_by_initial_world_size=by_all):
            for _ in range(1 + rank):
                model.zero_grad()
                model(torch.ones(1, 4)).sum().backward()
        left[f"divide_by_initial_world_size={by_all}"] = gradient_of(model)[0].item()  # its own is 1
    return left


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if dist.get_world_size() != 2:
        raise SystemExit("these mistakes are made for two ranks: --nproc-per-node=2")
    steps(DistributedDataParallel(TwoBranches()), 1)  # the first one takes longer than the time-outs below
    report(happened={name: what_happens(*mistake) for name, mistake in MISTAKES.items()})
    report(last_gradient=last_gradient_with_join(rank))
    mended = {name: what_happens(mistake, False) for name, mistake in MENDED.items()}
    dist.set_debug_level(dist.DebugLevel.DETAIL)  # as TORCH_DISTRIBUTED_DEBUG=DETAIL does, for new groups
    report(mended=mended | {name: what_happens(*mistake) for name, mistake in WITH_DETAIL.items()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
