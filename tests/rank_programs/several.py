"""Programs one after another, each on its own number of ranks: ``several.py "1 one.py --steps 2" "3 two.py"``.

With torchrun's engine, but not its command: that would import torch anew for each rank, which takes longer than all
that these programs do. Here the ranks are forked from a process that has imported it and done nothing else.
"""

from __future__ import annotations

import multiprocessing
import runpy
import shlex
import sys
import uuid

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def run_as_main(program: str, *args: str) -> None:
    """What each rank does."""
    sys.argv = [program, *args]
    runpy.run_path(program, run_name="__main__")
    sys.stdout.flush()


def main() -> None:
    multiprocessing.set_forkserver_preload(["torch._dynamo", "torch.nn.parallel.distributed", "sklearn.datasets"])
    for line in sys.argv[1:]:
        ranks, *program = shlex.split(line)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=int(ranks),
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="127.0.0.1",
            start_method="forkserver",
            max_restarts=0,
            monitor_interval=0.1,
        )
        print(f"== {line}", flush=True)
        elastic_launch(config, run_as_main)(*program)


if __name__ == "__main__":
    main()
