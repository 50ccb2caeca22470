"""Run the checks that `ddp` gives its readers on steps that are right and on steps that are not."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from pathlib import Path

import nbformat
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from course_utils.ranks.programs import report

pasted: dict = {"loss_function": mse_loss}
for cell in nbformat.read(Path(sys.argv[1]), as_version=4).cells:
    if cell.cell_type == "code" and re.search("def (between_ranks|against_one_process)", cell.source):
        exec(cell.source, pasted)
    # Of this one the call stands beside it, in the reader's own words.
    for code in re.findall(r"^(def loss_of_all\(.*?)\n\n", cell.source, re.DOTALL | re.MULTILINE):
        exec(code, pasted)

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(96, 8)
y = x.sum(1, keepdim=True)
own, half = slice(rank, None, ranks), slice(0, None, ranks)
cuts = [0, *range(48, 96, 48 // (ranks - 1)), 96][: ranks + 1]  # rank 0 has half of all
uneven = slice(cuts[rank], cuts[rank + 1])


def step(rows, weight=1.0, around=False, local=False, between=nn.Tanh):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), between(), nn.Linear(32, 1)))
    with model.no_sync() if local else contextlib.nullcontext():
        (weight * mse_loss((model.module if around else model)(x[rows]), y[rows])).backward()
    apart = pasted["between_ranks"](model)["gradients"]
    off = pasted["against_one_process"](model, [x[rows], y[rows]], pasted["loss_of_all"])
    return [apart, off if off < math.inf else "same batch twice"]  # a report has no infinity


def other_lengths() -> float:
    """Texts of another length on each rank, weighed."""
    model = DistributedDataParallel(nn.Linear(1, 1))
    texts = torch.randn(4, 3 + rank, 1)
    own = texts.numel()
    total = torch.tensor(float(own))
    dist.all_reduce(total)
    (mse_loss(model(texts), texts + 1) * ranks * own / total).backward()
    return pasted["against_one_process"](model, [texts, texts + 1], pasted["loss_of_all"])


def with_gradients(number: float) -> str:
    model = nn.Linear(2, 2, bias=False)
    model.weight.grad = torch.full((2, 2), number)
    return str(pasted["between_ranks"](model)["gradients"])  # a report has no infinity


report(
    right=step(own),
    weighted=step(uneven, weight=ranks * len(x[uneven]) / 96),
    uneven=step(uneven),
    same=step(half),
    around=step(own, around=True),
    local=step(own, local=True),
    batch_norm=step(own, between=lambda: nn.BatchNorm1d(32)),
    undivided=step(own, weight=2.0),  # as two micro-batches whose losses are added up
    other_lengths=other_lengths(),
    not_a_number=with_gradients(float("nan") if rank == 1 else 1.0),
)
dist.destroy_process_group()
