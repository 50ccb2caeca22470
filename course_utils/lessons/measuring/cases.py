"""What the lesson times: a training step on each place of a machine, and one operation on few numbers and on many."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from course_utils.measure.fresh import Fresh, fresh

_BATCH, _FEATURES, _CLASSES = 64, 64, 10


def training_steps(width: int) -> dict[str, Fresh]:
    """The same step on one CPU thread, on all of them, and on the GPU if there is one."""
    cases = {
        "one CPU thread": fresh(_training_step, width, "cpu", 1),
        "all CPU threads": fresh(_training_step, width, "cpu", torch.get_num_threads()),
    }
    return cases | ({"the GPU": fresh(_training_step, width, "cuda", 1)} if torch.cuda.is_available() else {})


def same_loss(one: torch.Tensor, other: torch.Tensor) -> None:
    """Raise if two places do not reach the same loss."""
    torch.testing.assert_close(one, other.cpu(), rtol=1e-3, atol=1e-5)


def _training_step(width: int, where: str, threads: int) -> Callable[[], torch.Tensor]:
    """A multi-layer perceptron with two hidden layers, its AdamW and a batch, all drawn on the CPU."""
    torch.set_num_threads(threads)
    hidden = (nn.Linear(_FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    model = nn.Sequential(*hidden, nn.Linear(width, _CLASSES))
    inputs, targets = torch.randn(_BATCH, _FEATURES).to(where), torch.randint(_CLASSES, (_BATCH,)).to(where)
    model.to(where)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def doubling(counts: Sequence[int], device: str) -> dict[str, Fresh]:
    """The same operation on so many numbers each, with memory to write to; on a CPU with one thread."""
    numbers = torch.randn(max(counts), device=device)
    doubled = torch.zeros_like(numbers)  # written to: a first write has a price of its own

    def double(count: int) -> Callable[[], torch.Tensor]:
        torch.set_num_threads(1)  # so that no thread waits for another on a busy core
        source, target = numbers[:count], doubled[:count]
        return lambda: torch.mul(source, 2, out=target)

    return {f"{count:,} numbers": fresh(double, count) for count in counts}


def begins_alike(few: torch.Tensor, many: torch.Tensor) -> None:
    """Raise if the numbers that two cases have in common differ."""
    torch.testing.assert_close(few, many[: len(few)])
