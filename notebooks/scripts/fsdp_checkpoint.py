"""Save a sharded GPT with its optimizer on two ranks, load it on all ranks and in one process, and go on training.

By hand: torchrun --standalone --nproc-per-node=3 scripts/fsdp_checkpoint.py --folder /tmp/checkpoint
On several machines the folder must be one that all of them see.
"""

import argparse
import hashlib
import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.programs import join_ranks, memory_by_kind, report

WIDTH, LAYERS = 128, 2
BATCH, LENGTH = 12, 32  # pieces of text in all, and bytes in a piece
SAVERS = 2


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


class Training:
    """One model with its optimizer: on the ranks of a mesh, or in this process alone."""

    def __init__(self, device: torch.device, seed: int, mesh: DeviceMesh | None = None) -> None:
        self.mesh = mesh
        torch.manual_seed(seed)
        self.model = GPT(context=LENGTH, width=WIDTH, layers=LAYERS, heads=2).to(device)
        if mesh:
            for module in (*self.model.blocks, self.model):
                fully_shard(module, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, tokens: torch.Tensor, targets: torch.Tensor) -> float:
        """One step on the same pieces of text, however many ranks share them. Returns the loss over all pieces."""
        shares, share = (self.mesh.size(), self.mesh.get_local_rank()) if self.mesh else (1, 0)
        pieces = targets.numel()
        tokens, targets = (tensor.tensor_split(shares)[share] for tensor in (tokens, targets))
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten(), reduction="sum")
        # FSDP divides the sum over ranks by their number. Shares may be of unequal size, so count tokens instead.
        loss = loss / pieces
        (loss * shares).backward()
        self.optimizer.step()
        total = loss.detach()
        if self.mesh:
            dist.all_reduce(total, group=self.mesh.get_group())
        return total.item()

    def save(self, folder: str) -> None:
        """Each rank of the mesh writes its own shards."""
        weights, states = get_state_dict(self.model, self.optimizer)
        group = self.mesh.get_group()
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder, process_group=group)

    def load(self, folder: str) -> None:
        """Each rank reads what its own shards need, however many ranks wrote them; one process reads all."""
        weights, states = get_state_dict(self.model, self.optimizer)
        saved = {"model": weights, "optimizer": states}
        dcp.load(saved, checkpoint_id=folder, no_dist=not self.mesh)  # fills these tensors
        set_state_dict(self.model, self.optimizer, model_state_dict=weights, optim_state_dict=states)

    def looked_at(self, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, Any]:
        """What is here, whether it is the same, and the loss of a further step."""
        embedding = self.model.token_embedding.weight
        return {
            "checksum": checksum(self.model, self.optimizer),
            "weights_bytes": memory_by_kind(self.model)["weights"],
            "rows": len(embedding.to_local() if self.mesh else embedding),
            "next_loss": self.step(*batch),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default=os.environ.get("CHECKPOINT_FOLDER"), help="of the checkpoint")
    folder = parser.parse_args().folder
    if not folder:
        parser.error("say where the checkpoint is: --folder FOLDER")

    rank, ranks, device = join_ranks()
    if ranks < SAVERS:
        parser.error(f"start it on {SAVERS} ranks or more")
    savers, everyone = DeviceMesh(device.type, range(SAVERS)), init_device_mesh(device.type, (ranks,))
    *batches, last = text_batches(library_text(2**16), BATCH, LENGTH, 4, device=device)

    if rank < SAVERS:
        training = Training(device, seed=0, mesh=savers)
        for batch in batches:
            training.step(*batch)
        training.save(folder)
        report(saved=training.looked_at(last))
    dist.barrier()
    training = Training(device, seed=1, mesh=everyone)  # other weights: what is loaded must come from the files
    training.load(folder)
    report(loaded=training.looked_at(last))
    if rank == 0:  # one process, without the others and without FSDP
        training = Training(device, seed=2)
        training.load(folder)
        report(alone=training.looked_at(last))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
