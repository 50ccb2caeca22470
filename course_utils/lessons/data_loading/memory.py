"""What a worker's memory grows by as it reads, and a loader in a process that may not hold its data."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from torch.utils.data import DataLoader, Dataset

ROW_BYTES = 2**20  # one sample of the file that is larger than the limit


class ReadWhole(Dataset):
    """Sample i is what the process that reads container i grew by, in bytes that no other process shares."""

    def __init__(self, containers: list[Any]) -> None:
        self.containers = containers

    def __len__(self) -> int:
        return len(self.containers)

    def __getitem__(self, index: int) -> int:
        container = self.containers[index]
        before = psutil.Process().memory_full_info().uss
        for place in range(len(container)):
            container[place]
        return psutil.Process().memory_full_info().uss - before


def growth_in_a_worker(containers: Mapping[str, Any]) -> dict[str, int]:
    """Let one forked worker read every item of each container.

    Returns:
        By label, the bytes that the worker holds for itself afterwards and did not before. What it still shares with
        the process that it was forked from does not count.

    Raises:
        ValueError: where the system cannot fork.
    """
    loader = DataLoader(
        ReadWhole(list(containers.values())), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    return {label: max(0, grown) for label, grown in zip(containers, loader, strict=True)}


def write_rows(path: str | Path, rows: int) -> list[int]:
    """Write a file of ``rows`` samples of 1 MiB of random bytes; returns the sum of each, to know it again."""
    generator = np.random.default_rng(0)
    sums = []
    with open(path, "wb") as file:
        for _ in range(rows):
            row = generator.integers(256, size=ROW_BYTES, dtype=np.uint8)
            sums.append(int(row.sum()))
            file.write(row.tobytes())
    return sums


def read_short_of_memory(path: str | Path, room_bytes: int, how: str, workers: int = 0) -> list[int] | str:
    """Read the file in a process of its own that may allocate no more than ``room_bytes`` beyond what it starts with.

    Args:
        path: a file of `write_rows`.
        room_bytes: what the process may still allocate; each of its workers, too.
        how: ``mapped`` or ``whole``.
        workers: of the loader.

    Returns:
        The sum of each sample in its order, or the last line of the error.

    Raises:
        OSError: on a system other than Linux, which has no such limit.
    """
    if sys.platform != "linux":
        raise OSError("only Linux holds a process to RLIMIT_DATA: a limit on the memory that it allocates")
    program = Path(__file__).with_name("short_of_memory.py")
    command = [sys.executable, program, path, room_bytes, how, workers]
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    if run.returncode:
        return run.stderr.strip().splitlines()[-1]
    return [int(total) for total in run.stdout.split()]
