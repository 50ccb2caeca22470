"""The cases that the lesson times on a GPU alone: a check of random numbers, and training steps that need a mask."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from course_utils import scaled
from course_utils.materials.models import GPT
from course_utils.materials.text import library_text, text_batches

BATCH, LENGTH, STEPS = scaled(cpu=(8, 64, 2), cuda=(16, 128, 10))

MASKS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "made there": lambda lengths, there, positions: torch.arange(LENGTH, device=there.device) < there,
    "made here, then moved": lambda lengths, there, positions: (torch.arange(LENGTH) < lengths).to(there.device),
    "made here, pinned, moved": lambda lengths, there, positions: (
        (torch.arange(LENGTH) < lengths).pin_memory().to(there.device, non_blocking=True)
    ),
    "kept": lambda lengths, there, positions: positions < there,
}
"""How a step gets its mask, from the texts' lengths here and there, and from positions that are kept there."""


def same_distribution(one: torch.Tensor, other: torch.Tensor) -> None:
    """Random numbers from two generators cannot be compared one by one: shapes, dtypes, devices and means are."""
    assert (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    assert abs(one.mean() - other.mean()) < 6 * (6 * len(one)) ** -0.5  # six standard errors of the difference


def masked_steps(width: int, way: str) -> Callable[[], torch.Tensor]:
    """Make a function that trains a small GPT on the GPU for some steps, each with its mask made anew.

    Several steps in a row, so that the mask of a later one can find work in the queue: only then does a copy that waits
    have something to wait for.

    Args:
        width: of the model.
        way: how the mask is made: a key of `MASKS`.
    """
    text = library_text(2**16)
    tokens, targets = next(iter(text_batches(text, batch=BATCH, length=LENGTH, steps=1, seed=0, device="cuda")))
    lengths = torch.randint(LENGTH // 2, LENGTH, (BATCH, 1))
    there, positions = lengths.to("cuda"), torch.arange(LENGTH, device="cuda")
    model = GPT(width=width, layers=2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> torch.Tensor:
        for _ in range(STEPS):
            mask = MASKS[way](lengths, there, positions)
            losses = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="none")
            loss = (losses * mask.flatten()).sum() / mask.sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return run
