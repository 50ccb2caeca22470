"""One rank of an FSDP training fails: it raises, is killed, is late, or skips a step while the others train on.

By hand, on one machine: torchrun --standalone --nproc-per-node=2 scripts/fsdp_failure.py --how skips
"""

import argparse
import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", choices=("raises", "is killed", "is late", "skips"), default="skips")
    how = parser.parse_args().how
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if device.type != "cpu":
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    # Three seconds, to see soon what otherwise takes minutes.
    dist.init_process_group(dist.get_default_backend_for_device(device), timeout=timedelta(seconds=3))
    rank, ranks = dist.get_rank(), dist.get_world_size()

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(device)
    for layer in (*model, model):
        fully_shard(layer)
    for step in range(3):
        if step == 1 and rank == ranks - 1:
            if how == "raises":
                raise ValueError("this rank's batch is broken")
            if how == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "is late":
                time.sleep(60)
            continue  # an empty batch, so nothing to do: or so it seems
        model(torch.ones(2, 8, device=device)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
