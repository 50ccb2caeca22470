"""A training under FSDP to copy: plain PyTorch, from init on meta to a sharded checkpoint.

On one machine: torchrun --standalone --nproc-per-node=2 scripts/fsdp_template.py --folder /tmp/checkpoint
Again with --resume, it goes on from there; on another number of ranks as well.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Model(nn.Module):
    """Yours."""

    def __init__(self, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        layer = {"d_model": width, "nhead": 4, "dim_feedforward": 4 * width, "dropout": 0.0, "batch_first": True}
        self.embedding = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(**layer) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)  # never x += in place on what a block returns: its backward pass may then not be gathered for
        return self.head(self.norm(x))

    def init_weights(self) -> None:
        """All weights and buffers, once they have memory."""
        for module in reversed(list(self.modules())):  # children first: a parent may overwrite, as in __init__
            for reset in ("reset_parameters", "_reset_parameters"):
                if hasattr(module, reset):
                    getattr(module, reset)()
        nn.init.normal_(self.embedding.weight, std=0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--replicas", type=int, default=1, help="HSDP: copies of the sharded model, one a machine")
    parser.add_argument("--compile", metavar="BACKEND", help="inductor, or aot_eager where there is no C++ compiler")
    args = parser.parse_args()

    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if device.type != "cpu":
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(dist.get_default_backend_for_device(device))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    shape = (args.replicas, ranks // args.replicas)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    mesh = mesh if args.replicas > 1 else mesh["shard"]

    with torch.device("meta"):
        model = Model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mesh": mesh, "mp_policy": policy}
    # The embedding and the head are groups of their own, so that they are not whole at one time. Are they tied? Then
    # leave out both calls: the root takes them.
    fully_shard(model.embedding, **options)
    for block in model.blocks:
        if args.compile:
            block.compile(backend=args.compile)
        fully_shard(block, **options)
    fully_shard([model.norm, model.head], reshard_after_forward=False, **options)  # its backward pass comes at once
    fully_shard(model, **options)
    model.to_empty(device=device)
    # On CUDA, DTensor gives each shard its own part of one stream. On a CPU, each shard needs a seed of its own.
    torch.manual_seed(rank % shape[1] if device.type == "cpu" else 0)
    model.init_weights()
    # Before any forward pass: one without a backward pass leaves groups whole, and their parameters are then others.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first_step = 0
    if args.resume:
        weights, states = get_state_dict(model, optimizer)
        saved = {"model": weights, "optimizer": states, "step": first_step}
        # .metadata is written last: a folder without it holds a save that was cut off.
        complete = {int(path.parent.name): path.parent for path in Path(args.folder).glob("*/.metadata")}
        if not complete:
            parser.error(f"there is no complete checkpoint in {args.folder}: leave out --resume for a first start")
        dcp.load(saved, checkpoint_id=complete[max(complete)])
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        first_step = saved["step"]

    small_batches = 2
    last_step = first_step + 5
    for step in range(first_step, last_step):
        torch.manual_seed(ranks * step + rank)  # each rank its own batches and dropout, and new ones after --resume
        step_loss = torch.zeros((), device=device)
        for number in range(small_batches):
            tokens = torch.randint(64, (4, 16), device=device)
            model.set_requires_gradient_sync(number == small_batches - 1)
            loss = nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())
            (loss / small_batches).backward()
            step_loss += loss.detach() / (small_batches * ranks)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norm = norm.full_tensor().item()  # on all ranks: it may communicate
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(step_loss)
        if rank == 0:
            print(f"step {step}: loss {step_loss.item():.4f}, norm {norm:.4f}", flush=True)
    # A new folder for each step, so that a crash while saving leaves the last checkpoint.
    weights, states = get_state_dict(model, optimizer)
    folder = Path(args.folder) / str(last_step)
    dcp.save({"model": weights, "optimizer": states, "step": last_step}, checkpoint_id=folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
