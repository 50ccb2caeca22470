"""What we planted in the lesson's programs: a switch, a wait for each file, and a loop over the rows of a batch."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import Dataset


def debugging_helpers() -> None:
    """Stand for a module that somebody wrote to hunt for a NaN, and that is still imported."""
    torch.autograd.set_detect_anomaly(True)


class Files(Dataset):
    """Batches as files; each comes after a wait, as from storage over a network."""

    def __init__(self, batches: torch.Tensor, wait_s: float) -> None:
        self.batches, self.wait_s = batches, wait_s

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.wait_s)
        return self.batches[index]


class Encoder(nn.Module):
    """Two layers; the first takes a batch row by row, or all of it."""

    def __init__(self, row_by_row: bool) -> None:
        super().__init__()
        self.row_by_row = row_by_row
        self.layer, self.head = nn.Linear(64, 256), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.stack([self.layer(row) for row in x]) if self.row_by_row else self.layer(x)
        return self.head(hidden.relu())
