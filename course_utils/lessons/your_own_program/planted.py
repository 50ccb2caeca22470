"""Three programs of lesson 24, each with a cause that we planted, and a healthy twin: the same without it."""

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


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> torch.Tensor:
    """Take a step and give the loss."""
    tokens, targets = batch
    loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


class FromAfar(Dataset):
    """Pieces of a text, each after a wait, as from storage over a network."""

    WAIT_S = 0.004

    def __init__(self, tokens: torch.Tensor, length: int, count: int) -> None:
        self.pieces = tokens[: count * (length + 1)].view(count, length + 1)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> Batch:
        time.sleep(self.WAIT_S)
        return self.pieces[index, :-1], self.pieces[index, 1:]


class InMemory(FromAfar):
    """The same pieces at once, for a sampler of whole batches."""

    def __getitem__(self, index: list[int]) -> Batch:
        return self.pieces[index, :-1], self.pieces[index, 1:]


def all_logits(logits: torch.Tensor) -> torch.Tensor:
    """Keep a number for each word of the vocabulary."""
    return logits.detach()


def most_likely(logits: torch.Tensor) -> torch.Tensor:
    """Keep the most likely word."""
    return logits.argmax(-1)


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
