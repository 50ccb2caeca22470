"""What we planted in the lesson's programs: a switch, a wait, and a line that keeps too much. And what mends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

Batch = tuple[torch.Tensor, torch.Tensor]


def debugging_helpers() -> None:
    """Stand for a module that somebody wrote to hunt for a NaN, and that is still imported."""
    torch.autograd.set_detect_anomaly(True)


class Files(Dataset):
    """Batches as files; each comes after a wait, as from storage over a network."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, rows: int, wait_s: float) -> None:
        self.files = list(zip(images.split(rows), labels.split(rows), strict=True))
        self.wait_s = wait_s

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Batch:
        if self.wait_s:
            time.sleep(self.wait_s)
        return self.files[index]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    keep: Callable[[torch.Tensor], torch.Tensor],
) -> list[torch.Tensor]:
    """Train, and collect what was predicted, for the accuracy of the epoch."""
    predictions = []
    for tokens, targets in batches:
        logits = model(tokens).flatten(0, 1)
        functional.cross_entropy(logits, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        predictions.append(keep(logits))
    return predictions


def all_logits(logits: torch.Tensor) -> torch.Tensor:
    """Keep a number for each word of the vocabulary."""
    return logits.detach()


def most_likely(logits: torch.Tensor) -> torch.Tensor:
    """Keep the most likely word."""
    return logits.argmax(-1)
