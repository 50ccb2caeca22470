"""Count what the collectives of one training step carry, under DDP, FSDP and HSDP; then train as elastic_train.py does.

By hand, on one machine: torchrun --standalone --nproc-per-node=4 scripts/count_traffic.py
"""

import torch
import torch.distributed as dist
from fsdp_checkpoint import BATCH, LENGTH, Training
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.collectives import Collectives
from course_utils.ranks.programs import join_ranks, loss_of, report

SHARDS = 2  # ranks of an HSDP group
STEPS = 6  # of the training that nobody disturbs


def sharded(model: nn.Module, strategy: str, ranks: int, device: torch.device) -> nn.Module:
    shape = (ranks // SHARDS, SHARDS) if strategy == "hsdp" else (1, ranks)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    options = {
        "mesh": mesh if strategy == "hsdp" else mesh["shard"],
        "mp_policy": MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32),
        "reshard_after_forward": strategy != "fsdp_no_reshard",
    }
    for module in (*model.blocks, model):
        fully_shard(module, **options)
    return model


def main() -> None:
    _, ranks, device = join_ranks()
    tokens = torch.randint(256, (2, 32), device=device)
    counted = {}
    for strategy in ("ddp", "fsdp_no_reshard", "fsdp", "hsdp"):
        model = GPT(width=128, layers=4).to(device)
        parameters = sum(weight.numel() for weight in model.parameters())
        if strategy == "ddp":
            model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        else:
            model = sharded(model, strategy, ranks, device)
        loss_of(model, tokens, tokens).backward()  # a first step: DDP makes its buckets anew after it
        with Collectives() as collectives:
            loss_of(model, tokens, tokens).backward()
        counted[strategy] = {kind: calls["bytes"] for kind, calls in collectives.traffic().items()}
    training = Training(device, seed=0, mesh=init_device_mesh(device.type, (ranks,)))
    batches = text_batches(library_text(2**16), BATCH, LENGTH, STEPS, device=device)
    report(parameters=parameters, counted=counted, losses=[training.step(*batch) for batch in batches])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
