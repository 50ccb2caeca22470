"""A small data-parallel program, as a lesson would have it: it runs under plain torchrun, too.

Without DistributedDataParallel, which takes longer to import than all the rest takes to run.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_utils.ranks.programs import integer_options, join_ranks, memory_by_kind, report, timed_rounds


def main() -> None:
    args = integer_options(__doc__, steps=3, budget=0).parse_args()
    rank, ranks, device = join_ranks()

    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64).to(device)
    batch = torch.randn(32, 64, generator=torch.Generator().manual_seed(rank)).to(device)

    def step(together: bool) -> float:
        model.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        for parameter in model.parameters():
            if together:
                dist.all_reduce(parameter.grad)
                parameter.grad /= ranks
            parameter.data -= 0.1 * parameter.grad
        return loss.item()

    print(f"{rank} of {ranks} on {device}, {torch.get_num_threads()} threads")
    report(loss=[step(True) for _ in range(args.steps)], memory_bytes=memory_by_kind(model))
    report(weight=model.weight[0, 0].detach())
    timed_rounds(
        {"1 rank": (lambda: step(False)) if rank == 0 else None, "all ranks": lambda: step(True)},
        name="scaling",
        budget_s=args.budget,
        items=32 * ranks,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
