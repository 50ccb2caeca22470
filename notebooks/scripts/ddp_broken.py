"""Train on two ranks, until something happens to rank 1 in the third step.

torchrun --standalone --nproc-per-node=2 --log-dir logs --redirects 3 scripts/ddp_broken.py raises
"""

import faulthandler
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record


def read_slow_files(group: dist.ProcessGroup) -> None:
    """Whatever keeps a rank away from the others of its group."""
    time.sleep(600)


HAPPENS = {  # to rank 1, which talks to the others in this group
    "raises": lambda group: nn.functional.cross_entropy(
        torch.zeros(1, 2), torch.tensor([2])
    ),  # a label that does not exist
    "is killed": lambda group: os.kill(os.getpid(), signal.SIGKILL),
    "hangs": read_slow_files,
    "leaves": lambda group: (dist.destroy_process_group(), sys.exit(0)),
    "sends another shape": lambda group: dist.all_reduce(torch.ones(1000), group=group),
}


@record  # the exception of a rank goes into a file, with its time, so that torchrun can show it
def main() -> None:
    dist.init_process_group("gloo")
    model, group = nn.Linear(8, 8), dist.group.WORLD
    for step in range(4):
        if step == 2:
            # What is slow the first time is over, so a short time-out counts for nothing but the steps.
            group = dist.new_group(timeout=timedelta(seconds=2))
            faulthandler.dump_traceback_later(1)  # before the time-out ends: where does each rank stand?
            if dist.get_rank() == 1:
                HAPPENS[sys.argv[1]](group)
        model(torch.randn(4, 8)).sum().backward()
        for parameter in model.parameters():  # as DDP does, whose import takes longer than all of this
            dist.all_reduce(parameter.grad, group=group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
