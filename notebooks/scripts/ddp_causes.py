"""Two pieces of work in two threads of one process, and in two processes: what does the GIL cost?

torchrun --standalone --nproc-per-node=2 scripts/ddp_causes.py (always on the CPU; ranks above 1 only wait)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor

from course_utils.materials.models import GPT
from course_utils.ranks.programs import integer_options, report, timed_rounds


def small_operations() -> Tensor:
    """Many calls into PyTorch with next to nothing to compute: Python and the dispatcher are the work."""
    x = torch.ones(16)
    for _ in range(500):
        x = x * 0.5 + 1
    return x


def main() -> None:
    args = integer_options(__doc__, budget=5).parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    # A replica of DataParallel runs such a forward pass in its thread.
    model, tokens = GPT(context=16, width=32, layers=8, heads=2), torch.zeros(2, 16, dtype=torch.int64)
    a = torch.randn(640, 640)
    works = {
        "small operations": small_operations,
        "forward pass": lambda: model(tokens),
        "large product": lambda: a @ a,  # one call with much to compute, and no Python in it
    }
    pool = ThreadPoolExecutor(2)

    for name, work in works.items():

        def in_turn(work: Callable[[], Tensor] = work) -> list[Tensor]:
            return [work(), work()]

        def in_threads(work: Callable[[], Tensor] = work) -> list[Tensor]:
            return [future.result() for future in [pool.submit(work), pool.submit(work)]]

        own = work().detach()
        of_rank_0 = own.clone()
        dist.broadcast(of_rank_0, 0)
        for output in (of_rank_0, *in_turn(), *in_threads()):
            torch.testing.assert_close(output, own)

        cases = {"one after the other": None, "two threads": None, "two processes": work if rank < 2 else None}
        if rank == 0:
            cases |= {"one after the other": in_turn, "two threads": in_threads}
        timed_rounds(cases, name=name, budget_s=args.budget, practical=0.05, items=2, agreement="outputs agree")
    pool.shutdown()
    report(gil=getattr(sys, "_is_gil_enabled", lambda: True)(), threads=torch.get_num_threads())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
