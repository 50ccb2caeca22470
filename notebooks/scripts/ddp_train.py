r"""Train a small GPT with DDP, save and resume, and hold the gradients of one batch against one process.

One machine:
    torchrun --standalone --nproc-per-node=2 scripts/ddp_train.py --epochs 2
Two machines, the same line on both; HOST is one of them:
    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 --rdzv-id=run1 \
        scripts/ddp_train.py --batch 32 --checkpoint /shared/run1.pt
"""

from __future__ import annotations

import copy
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text
from course_utils.ranks.programs import gradient_of, integer_options, join_ranks, loss_of, memory_by_kind, report

# Relative, in float32: the order of additions differs between one process and several, nothing else does.
GRADIENT_TOLERANCE, LOSS_TOLERANCE = 1e-5, 1e-3


def loader_of(data: TensorDataset, batch: int, rank: int, ranks: int) -> DataLoader:
    """This rank's share of the data. All ranks together read the same global batches as one process."""
    sampler = DistributedSampler(data, num_replicas=ranks, rank=rank, shuffle=True, drop_last=True)
    return DataLoader(data, batch_size=batch // ranks, sampler=sampler)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader,
    epochs: range,
    checkpoint: Path | None = None,
) -> Tensor:
    """An ordinary training loop: the loss of each step on this rank."""
    device = next(model.parameters()).device
    losses = []
    for epoch in epochs:
        loader.sampler.set_epoch(epoch)  # a new order, the same one on all ranks
        for tokens, targets in loader:
            loss = loss_of(model, tokens.to(device), targets.to(device))
            loss.backward()  # with DDP: here gradients are averaged over the ranks
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        if checkpoint:
            save(checkpoint, model, optimizer, epoch + 1)
    return torch.stack(losses)


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """Rank 0 writes, since all ranks hold the same. A job that is killed meanwhile leaves the old file."""
    if dist.get_rank() == 0:
        new = path.with_suffix(".new")
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, new)
        os.replace(new, path)
    dist.barrier()  # nobody reads before it is written


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """All ranks read. Returns the epoch to go on with."""
    state = torch.load(path, map_location=next(model.parameters()).device, weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


def mean_over_ranks(losses: Tensor) -> Tensor:
    """Each rank knows the loss of its share; all shares are equally large."""
    losses = losses.clone()
    dist.all_reduce(losses)
    return losses / dist.get_world_size()


def gradient_errors(model: nn.Module, tokens: Tensor, targets: Tensor) -> dict[str, float]:
    """DDP's gradients of one batch, held against one process. In float64, rounding is too small to hide a mistake."""
    rank, ranks, errors = dist.get_rank(), dist.get_world_size(), {}
    for kind, alone in {"float32": copy.deepcopy(model), "float64": copy.deepcopy(model).double()}.items():
        together = DistributedDataParallel(copy.deepcopy(alone))
        loss_of(together, tokens[rank::ranks], targets[rank::ranks]).backward()
        alone.load_state_dict(together.module.state_dict())  # DDP has copied the weights of rank 0
        loss_of(alone, tokens, targets).backward()
        expected = gradient_of(alone)
        errors[kind] = ((gradient_of(together) - expected).norm() / expected.norm()).item()
    return errors


def shared_folder() -> Path:
    """A folder that rank 0 makes and all ranks of this machine know."""
    name = [tempfile.mkdtemp(prefix="ddp-train-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(name)
    return Path(name[0])


def main() -> None:
    parser = integer_options(__doc__, epochs=2, samples=240, batch=24, length=32, width=64)
    parser.add_argument("--checkpoint", type=Path, help="save here after each epoch; go on from it if it is there")
    parser.add_argument("--compare", action="store_true", help="hold it against one process, and resume it")
    args = parser.parse_args()
    if args.compare and (args.checkpoint or args.epochs < 2):
        parser.error("--compare resumes from a file of its own: no --checkpoint, and --epochs 2 at least")

    rank, ranks, device = join_ranks()
    if args.batch % ranks or args.samples % args.batch:
        parser.error(f"--samples {args.samples} must be a multiple of --batch {args.batch}, and that one of {ranks}")
    windows = library_text(2**20).unfold(0, args.length + 1, args.length + 1)[: args.samples].long()
    data = TensorDataset(windows[:, :-1], windows[:, 1:])
    if len(data) < args.samples:
        parser.error(f"the text has {len(data)} pieces of {args.length} bytes: ask for fewer --samples")

    torch.manual_seed(rank)  # not the same on purpose: DDP copies rank 0's weights to all ranks
    base = GPT(context=args.length, width=args.width, layers=2, heads=2).to(device)
    if args.compare:  # each rank then computes a whole batch alone, too
        errors = gradient_errors(base, *(part.to(device) for part in data[: args.batch]))
        assert errors["float32"] < GRADIENT_TOLERANCE, f"gradients differ by {errors['float32']:.1e}"
        report(gradient_error=errors, device=device.type)

    def start(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    ddp, optimizer = start(DistributedDataParallel(copy.deepcopy(base)))
    loader = loader_of(data, args.batch, rank, ranks)
    checkpoint = shared_folder() / "run.pt" if args.compare else args.checkpoint
    first = load(checkpoint, ddp, optimizer) if checkpoint and checkpoint.exists() else 0
    if first >= args.epochs:
        if rank == 0:
            print(f"{checkpoint} has {first} epochs already: nothing is left of --epochs {args.epochs}")
        dist.destroy_process_group()
        return
    before_last = range(first, args.epochs - 1 if args.compare else args.epochs)
    losses = [train(ddp, optimizer, loader, before_last, checkpoint)]
    if args.compare:  # the file stays where it is, so that there is something to resume
        losses.append(train(ddp, optimizer, loader, range(args.epochs - 1, args.epochs)))
    whole = mean_over_ranks(torch.cat(losses))
    report(loss=whole[[0, -1]], memory_bytes=memory_by_kind(ddp, optimizer))

    if args.compare:
        again, optimizer = start(DistributedDataParallel(copy.deepcopy(base)))
        epoch = load(checkpoint, again, optimizer)
        rest = mean_over_ranks(train(again, optimizer, loader, range(epoch, args.epochs)))
        assert torch.equal(rest, whole[-len(rest) :]), "the resumed run is another one"
        if rank == 0:
            alone, optimizer = start(copy.deepcopy(base))
            curve = train(alone, optimizer, loader_of(data, args.batch, 0, 1), range(args.epochs))
            error = (curve / whole - 1).abs().max().item()
            assert error < LOSS_TOLERANCE, f"loss curves of one process and DDP differ by {error:.1e}"
            report(loss_error=error)
            checkpoint.unlink()
            checkpoint.parent.rmdir()
        dist.barrier()  # nobody leaves while rank 0 still checks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
