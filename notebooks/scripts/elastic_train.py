"""A training under FSDP that goes on from its last complete checkpoint, however often it is restarted.

On each of two nodes, with HOST being the first one's name:
torchrun --nnodes=2 --nproc-per-node=1 --max-restarts=3 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 --rdzv-id=1
scripts/elastic_train.py --folder /shared/checkpoint
All nodes must see the same folder.
"""

import argparse
import os
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
from fsdp_checkpoint import BATCH, LENGTH, Training
from torch.distributed.device_mesh import init_device_mesh

from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.programs import join_ranks

KEPT = 2  # checkpoints


def complete_checkpoints(folder: Path) -> list[int]:
    """Their steps. ``.metadata`` is written last: a folder without it holds a save that was cut off."""
    return sorted(int(path.parent.name) for path in folder.glob("*/.metadata"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="of the checkpoints, one for each step")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    args = parser.parse_args()

    rank, ranks, device = join_ranks()
    batches = text_batches(library_text(2**16), BATCH, LENGTH, args.steps, device=device)
    training = Training(device, seed=0, mesh=init_device_mesh(device.type, (ranks,)))
    # Rank 0 chooses for all: on a shared disk another node may not see the newest one yet.
    chosen = torch.tensor(max(complete_checkpoints(args.folder), default=0), device=device)
    dist.broadcast(chosen, src=0)
    if first := int(chosen):
        training.load(str(args.folder / str(first)))
    if rank == 0:
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print(f"{ranks} ranks, restart {attempt}: from step {first}", flush=True)
    for step, batch in enumerate(batches):
        if step < first:
            continue  # the data go on where the checkpoint was made, too
        loss = training.step(*batch)
        training.save(str(args.folder / str(step + 1)))
        if rank == 0:
            print(f"step {step}: loss {loss:.6f}", flush=True)
            for old in complete_checkpoints(args.folder)[:-KEPT]:
                shutil.rmtree(args.folder / str(old))
        time.sleep(args.pause)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
