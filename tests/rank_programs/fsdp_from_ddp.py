"""What `fsdp`'s reference page has for checkpoints, on real ranks: from DDP into FSDP, then shards, saved and loaded.

By hand: torchrun --standalone --nproc-per-node=2 tests/rank_programs/fsdp_from_ddp.py FOLDER
"""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from authoring.reference_pages import code_blocks
from course_utils.ranks.programs import join_ranks, report

ROOT = Path(__file__).resolve().parents[2]
PAGE: dict = {}
for block in code_blocks(ROOT / "book" / "reference" / "fsdp.md"):
    exec(block, PAGE)


def built(seed: int, sharded: bool = True) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small model with a buffer, and an optimizer whose groups are not in the order of the parameters."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model[1].register_module("unused", nn.Linear(8, 3))  # a head without a gradient
    for layer in (model[0], model[2], model) if sharded else ():
        fully_shard(layer)
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=1e-2)


def losses(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> list[float]:
    """Train on one batch, the same on all ranks."""
    batch = torch.arange(32.0).sin().view(4, 8)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(batch).square().sum()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def main() -> None:
    rank, _, _ = join_ranks()
    folder = Path(sys.argv[1])
    model, optimizer = built(0, sharded=False)
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    losses(ddp, optimizer)
    saved = {"model": ddp.state_dict(), "optimizer": optimizer.state_dict()}
    if rank == 0:
        torch.save(saved, folder / "ddp.pt")
    expected = losses(ddp, optimizer, 6)

    # With the names of torch.compile around DDP, of DDP around torch.compile, and of DDP alone.
    for before in ("_orig_mod.module.", "module._orig_mod.", "module."):
        saved = torch.load(folder / "ddp.pt", map_location="cpu") if rank == 0 else None
        if saved is not None:
            saved["model"] = {before + name.removeprefix("module."): weight for name, weight in saved["model"].items()}
        model, optimizer = built(1)
        PAGE["load_ddp_checkpoint"](saved, model, optimizer)
        continued = losses(model, optimizer)
        assert continued == pytest.approx(expected[:3], rel=1e-4), before
    PAGE["save"](model, optimizer, 6, str(folder / "shards"))
    model, optimizer = built(2)
    step = PAGE["load"](model, optimizer, str(folder / "shards"))
    continued += losses(model, optimizer)
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    report(expected=expected, continued=continued, step=step, decays=decays)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
