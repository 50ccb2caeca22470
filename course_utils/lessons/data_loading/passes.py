"""Passes through loaders, to be timed, and the start of a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from course_utils.lessons.data_loading.samples import ProcessNumbers


def count_samples(batches: Iterable[Any]) -> int:
    """Go through batches, tensors or pairs of inputs and targets, and count the samples."""
    return sum(len(batch if isinstance(batch, torch.Tensor) else batch[0]) for batch in batches)


def through(dataset: Dataset, batch_size: int, workers: int, kept: bool = True) -> Callable[[], int]:
    """A function that goes once through a loader that shuffles, and returns how many samples came."""
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=workers, persistent_workers=kept and workers > 0)
    return lambda: count_samples(loader)


def until_first_batch_s(method: str) -> float:
    """Seconds from asking a loader with one worker for its first batch until it is there; the worker ends."""
    begun = time.perf_counter()
    next(iter(DataLoader(ProcessNumbers(), num_workers=1, multiprocessing_context=method)))
    return time.perf_counter() - begun
