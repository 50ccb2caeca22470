"""Batches as a loop gets them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

from torch.utils.data import Subset, TensorDataset

from own_program.diagnosis.state import StepError


class Batches:
    """Batches of data, begun anew where they end."""

    def __init__(self, data: Iterable[Any]) -> None:
        self._data, self._batches = data, iter(data)
        self.workers = getattr(data, "num_workers", 0)
        self.waits: list[float] = []  # seconds for each batch

    def following(self) -> Any:
        """The next batch."""
        start = time.perf_counter()
        for _ in range(2):
            with contextlib.suppress(StopIteration):
                batch = next(self._batches)
                self.waits.append(time.perf_counter() - start)
                return batch
            self._batches = iter(self._data)
        raise StepError("data has no more batches: pass a loader, or a list of batches, that can be read again.")


def lie_in_memory(data: Any) -> bool:
    """Whether a loader puts its batches together sample by sample, of tensors that one index would take them from."""
    dataset = getattr(data, "dataset", None)
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return isinstance(dataset, TensorDataset) and bool(data.batch_size)
