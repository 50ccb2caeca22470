"""A program: read a file through a loader, in a process that may not allocate as much as the file holds.

Run as ``python short_of_memory.py FILE ROOM_BYTES mapped|whole WORKERS``. It writes the sum of each sample.
"""

from __future__ import annotations

import resource
import sys

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset

ROW_BYTES = 2**20


class Rows(Dataset):
    """A file of rows of 1 MiB. Sample i is row i, uint8 ``[2**20]``."""

    def __init__(self, path: str, how: str) -> None:
        # A mapped file lies in the system's cache, which gives way; what is read whole is this process's own.
        read = np.memmap if how == "mapped" else np.fromfile
        options = {"mode": "r"} if how == "mapped" else {}
        self.rows = read(path, dtype=np.uint8, **options).reshape(-1, ROW_BYTES)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.array(self.rows[index]))


def main(path: str, room_bytes: str, how: str, workers: str) -> None:
    """Limit what this process and its workers may allocate, then go through the data once."""
    torch.set_num_threads(1)
    now = psutil.Process().memory_info().data
    resource.setrlimit(resource.RLIMIT_DATA, (now + int(room_bytes),) * 2)
    for row in DataLoader(Rows(path, how), batch_size=None, num_workers=int(workers)):
        # NumPy adds up bytes as they are; torch would first make a copy eight times as large.
        sys.stdout.write(f"{row.numpy().sum(dtype=np.int64)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
