"""Run the checks that lesson 17 gives its readers on steps that are right and on steps that are not."""

from __future__ import annotations

import contextlib
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

cells = nbformat.read(Path(sys.argv[1]), as_version=4).cells
pasted: dict = {}
for cell in cells:
    folded = re.findall(r"```python\n(import contextlib.*?)```", cell.source, re.DOTALL)
    for code in [cell.source] if cell.cell_type == "code" else folded:
        if any(f"def {name}(" in code for name in ("between_ranks", "against_one_process", "seconds")):
            exec(code, pasted)

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(96, 8)
y = x.sum(1, keepdim=True)
own, half = slice(rank, None, ranks), slice(0, None, ranks)
last_alike = slice(min(rank, 1), None, ranks)  # all but rank 0 have the same
cuts = [0, *range(48, 96, 48 // (ranks - 1)), 96][: ranks + 1]  # rank 0 has half of all
uneven = slice(cuts[rank], cuts[rank + 1])


def loss_of_all(model, batches):
    x, y = map(torch.cat, zip(*batches, strict=True))
    return mse_loss(model(x), y)


def step(rows, weight=1.0, around=False, local=False):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)))
    with model.no_sync() if local else contextlib.nullcontext():
        (weight * mse_loss((model.module if around else model)(x[rows]), y[rows])).backward()
    apart = pasted["between_ranks"](model)["gradients"]
    try:
        return [apart, pasted["against_one_process"](model, [x[rows], y[rows]], loss_of_all)]
    except AssertionError as error:
        return [apart, str(error)]


def seconds() -> list[float]:
    model = DistributedDataParallel(nn.Linear(8, 1))
    return [pasted["seconds"](model, lambda: mse_loss(model(x), y).backward(), sends, 3) for sends in (True, False)]


report(
    right=step(own),
    weighted=step(uneven, weight=ranks * len(x[uneven]) / 96),
    uneven=step(uneven),
    same=step(half),
    last_alike=step(last_alike),
    around=step(own, around=True),
    local=step(own, local=True),
    seconds=seconds(),
)
dist.destroy_process_group()
