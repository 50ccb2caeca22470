r"""Train a small GPT with DDP, and hold it against one process that sees the whole batch.

One machine:
    torchrun --standalone --nproc-per-node=2 scripts/ddp_train.py --steps 20
Two machines, the same line on both; HOST is one of them:
    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 --rdzv-id=run1 \
        scripts/ddp_train.py --batch 64
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.programs import gradient_of, integer_options, join_ranks, loss_of, memory_by_kind, report

# Relative, in float32: the order of additions differs between one process and several, nothing else does.
GRADIENT_TOLERANCE, LOSS_TOLERANCE = 1e-5, 1e-3

Batches: TypeAlias = Iterable[tuple[Tensor, Tensor]]


def train(model: nn.Module, batches: Batches, rank: int, ranks: int) -> tuple[list[Tensor], torch.optim.Optimizer]:
    """An ordinary training loop. Only the slice knows that there are other ranks."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for tokens, targets in batches:
        loss = loss_of(model, tokens[rank::ranks], targets[rank::ranks])
        optimizer.zero_grad()
        loss.backward()  # with DDP: here gradients are averaged over the ranks
        optimizer.step()
        losses.append(loss.detach())
    return losses, optimizer


def gradient(model: nn.Module, batch: tuple[Tensor, Tensor], rank: int, ranks: int) -> Tensor:
    """All gradients of one batch as one vector."""
    model.zero_grad()
    loss_of(model, *(part[rank::ranks] for part in batch)).backward()
    return gradient_of(model)


def main() -> None:
    parser = integer_options(__doc__, steps=20, batch=24, length=64, width=64)
    args = parser.parse_args()

    rank, ranks, device = join_ranks()
    if args.batch % ranks:
        parser.error(f"--batch {args.batch} is no multiple of {ranks} ranks: their means would not have equal weight")

    def batches(steps: int, seed: int = 0) -> Batches:
        # The same seed on every rank: all draw the same global batch, and each takes its slice.
        text = library_text(2**20)
        return text_batches(text, args.batch, args.length, steps, seed=seed, device=str(device))

    torch.manual_seed(rank)  # not the same on purpose: DDP copies rank 0's weights to all ranks
    model = GPT(context=args.length, width=args.width, layers=2, heads=2).to(device)
    references = {"one process": copy.deepcopy(model)}
    if device.type == "cuda" or not torch.cuda.is_available():
        references["DataParallel"] = nn.DataParallel(copy.deepcopy(model))

    # Gradients of one batch. In float64, rounding is too small to hide a mistake.
    batch = next(iter(batches(1, seed=1)))
    errors = {}
    for kind, alone in {"float32": copy.deepcopy(model), "float64": copy.deepcopy(model).double()}.items():
        together = gradient(DistributedDataParallel(copy.deepcopy(alone)), batch, rank, ranks)
        expected = gradient(alone, batch, 0, 1)  # on rank 0, whose weights DDP has copied
        errors[kind] = ((together - expected).norm() / expected.norm()).item()

    # Loss curves. A rank knows the loss of its own slice; the mean of equal slices is the global batch's.
    ddp = DistributedDataParallel(model)
    losses, optimizer = train(ddp, batches(args.steps), rank, ranks)
    curve = torch.stack(losses)
    dist.all_reduce(curve)
    curves = {"DDP": (curve / ranks).tolist()}
    report(device=device.type, memory_bytes=memory_by_kind(ddp, optimizer))
    if rank == 0:
        for label, reference in references.items():
            curves[label] = torch.stack(train(reference, batches(args.steps), 0, 1)[0]).tolist()
        apart = {}
        for label in references:  # one process, and DataParallel where there is a GPU for it
            pairs = zip(curves[label], curves["DDP"], strict=True)
            apart[label] = max(abs(alone / together - 1) for alone, together in pairs)
        report(gradient_error=errors, loss_error=max(apart.values()), loss_curves=curves)
        assert errors["float32"] < GRADIENT_TOLERANCE, f"gradients differ by {errors['float32']:.1e}"
        for label, error in apart.items():
            assert error < LOSS_TOLERANCE, f"loss curves of {label} and DDP differ by {error:.1e}"
    dist.barrier()  # nobody leaves while rank 0 still checks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
