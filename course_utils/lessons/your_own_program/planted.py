"""What we planted in the lesson's programs: a switch, a wait for each file, and tokens picked one by one."""

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


class Tagger(nn.Module):
    """Two layers; between them the valid tokens are picked, one by one or all at once."""

    def __init__(self, one_by_one: bool) -> None:
        super().__init__()
        self.one_by_one = one_by_one
        self.layer, self.head = nn.Linear(64, 256), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        h = self.layer(x).relu()
        picked = torch.stack([h[i] for i in range(len(h)) if valid[i]]) if self.one_by_one else h[valid]
        return self.head(picked)
