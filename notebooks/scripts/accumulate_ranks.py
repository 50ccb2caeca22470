"""Gradient accumulation on several ranks: what is sent, and which divisor gives the gradient of one process.

torchrun --standalone --nproc-per-node=2 scripts/accumulate_ranks.py
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text
from course_utils.ranks.collectives import Collectives
from course_utils.ranks.programs import gradient_of, join_ranks, report

Part = tuple[Tensor, Tensor]
# Of each rank: how many tokens count in each of its parts.
COUNTED = ((8, 16, 64, 512), (16, 8, 16, 8))


def parts_of(rank: int, device: torch.device) -> list[Part]:
    """Pieces of text, of which the last so many tokens count."""
    text = library_text(2**20).long().to(device)
    parts = []
    for number, counted in enumerate(COUNTED[rank % len(COUNTED)]):
        piece = text[(4 * rank + number) * 4096 :][: 8 * 65].view(8, 65)
        tokens, targets = piece[:, :-1], piece[:, 1:].clone()
        targets[:, : 64 - counted // 8] = -100
        parts.append((tokens, targets))
    return parts


def tokens_of(parts: list[Part]) -> int:
    return sum(int((targets != -100).sum()) for _, targets in parts)


def loss_sum(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum")


def accumulate(model: DistributedDataParallel, parts: list[Part], divisor: float, quiet: str) -> None:
    """Adds up the gradients of the parts, each part's loss over ``divisor``; ``quiet`` is what no_sync() surrounds."""
    for number, part in enumerate(parts, start=1):
        silent = model.no_sync if number < len(parts) else contextlib.nullcontext
        with silent() if quiet == "both" else contextlib.nullcontext():
            loss = loss_sum(model, *part) / divisor
            with silent() if quiet == "backward" else contextlib.nullcontext():
                loss.backward()


def main() -> None:
    rank, ranks, device = join_ranks()
    parts = parts_of(rank, device)
    everywhere = torch.tensor(tokens_of(parts), device=device)
    dist.all_reduce(everywhere)
    total, own = int(everywhere), tokens_of(parts)

    def gpt() -> GPT:
        torch.manual_seed(0)
        return GPT(context=64, width=64, layers=2).double().to(device)

    alone = gpt()
    for each in range(ranks):
        for part in parts_of(each, device):
            (loss_sum(alone, *part) / total).backward()
    wanted = gradient_of(alone)

    def tried(divisor: float, quiet: str = "both") -> dict[str, Any]:
        model = DistributedDataParallel(gpt())
        with Collectives() as sent:
            accumulate(model, parts, divisor, quiet)
        found, all_reduces = gradient_of(model), sent.of("allreduce")
        return {
            "error": ((found - wanted).norm() / wanted.norm()).item(),
            "norm": (found.norm() / wanted.norm()).item(),
            "all-reduces": all_reduces["calls"],
            "sent": all_reduces["bytes"],
        }

    right = total / ranks
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "no_sync; × ranks / all tokens": lambda: tried(right),
        "send each time; × ranks / all tokens": lambda: tried(right, "nothing"),
        "no_sync around backward() alone; × ranks / all tokens": lambda: tried(right, "backward"),
        "no_sync; / all tokens": lambda: tried(total),
        "no_sync; / own tokens": lambda: tried(own),
    }
    report(cases={name: case() for name, case in cases.items()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
