"""Save a sharded GPT with its optimizer, or load it on any number of ranks, and go on training.

By hand: torchrun --standalone --nproc-per-node=2 scripts/fsdp_checkpoint.py --save --folder /tmp/checkpoint
Then:    torchrun --standalone --nproc-per-node=3 scripts/fsdp_checkpoint.py --load --folder /tmp/checkpoint
On several machines the folder must be one that all of them see.
"""

import argparse
import hashlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.programs import join_ranks, memory_by_kind, report

WIDTH, LAYERS = 128, 2
BATCH, LENGTH = 12, 32  # pieces of text in all, and bytes in a piece
Batch = tuple[torch.Tensor, torch.Tensor]


def save(model: nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> None:
    """Each rank writes its own shards."""
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, folder: str, alone: bool = False) -> None:
    """Each rank reads what its own shards need, however many ranks wrote them. ``alone``: one process reads all."""
    weights, states = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": states}, checkpoint_id=folder, no_dist=alone)  # fills these tensors
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)


def checksum(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of all weights and all optimizer states, put together, in the order of their names."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        state = optimizer.state[weight]
        for key, tensor in (("weight", weight.detach()), *sorted(state.items())):
            tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            digest.update(f"{name} {key}".encode())
            digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser()
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--save", action="store_true", help="train three steps, and save")
    action.add_argument("--load", action="store_true", help="load on all ranks, and then on rank 0 alone")
    parser.add_argument("--folder", default=os.environ.get("CHECKPOINT_FOLDER"), help="of the checkpoint")
    args = parser.parse_args()
    if not args.folder:
        parser.error("say where the checkpoint is: --folder FOLDER")

    rank, ranks, device = join_ranks()
    mesh = init_device_mesh(device.type, (ranks,))

    batches = list(text_batches(library_text(2**16), BATCH, LENGTH, 4, device=device))

    def built(sharded: bool = True) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0 if args.save else 1)  # what is loaded must come from the files
        model = GPT(context=LENGTH, width=WIDTH, layers=LAYERS, heads=2).to(device)
        if sharded:
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, shares: int) -> float:
        """One step on the same pieces of text, however many ranks share them. Returns the loss over all pieces."""
        tokens, targets = (tensor.tensor_split(shares)[rank] for tensor in batch)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum")
        # FSDP divides the sum over ranks by their number. Shares may be of unequal size, so count tokens instead.
        loss = loss / batch[0].numel()
        (loss * shares).backward()
        optimizer.step()
        total = loss.detach()
        if shares > 1:
            dist.all_reduce(total)
        return total.item()

    model, optimizer = built()
    if args.load:
        load(model, optimizer, args.folder)
    else:
        for batch in batches[:3]:
            train(model, optimizer, batch, ranks)
        save(model, optimizer, args.folder)
    report(
        ranks=ranks,
        checksum=checksum(model, optimizer),
        memory_bytes=memory_by_kind(model, optimizer),
        rows_of_the_embedding=len(model.token_embedding.weight.to_local()),
        files=sorted(path.name for path in Path(args.folder).glob("*.distcp")),
        next_loss=train(model, optimizer, batches[3], ranks),
    )
    if args.load and rank == 0:  # one process, without the others and without FSDP
        model, optimizer = built(sharded=False)
        load(model, optimizer, args.folder, alone=True)
        report(
            alone={
                "checksum": checksum(model, optimizer),
                "weights": memory_by_kind(model, optimizer)["weights"],
                "rows": len(model.token_embedding.weight),
                "next_loss": train(model, optimizer, batches[3], 1),
            }
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
