"""Batches as a loop gets them, and whether indexing the tensors in memory would give the same ones sooner."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Subset

from course_utils.results import paired
from course_utils.show.formats import format_seconds
from own_program.diagnosis.state import StepError

_ROUNDS = 12
_MOST_ROWS = 512  # of a batch, as far as it is tried


class Batches:
    """Batches of data, begun anew where they end."""

    def __init__(self, data: Iterable[Any]) -> None:
        self._data, self._batches = data, iter(data)
        self.workers = getattr(data, "num_workers", 0)
        self.waits: list[float] = []  # seconds for each batch

    def following(self) -> Any:
        """The next batch."""
        start = time.perf_counter()
        for is_new in (False, True):
            if is_new:
                self._batches = iter(self._data)
            with contextlib.suppress(StopIteration):
                batch = next(self._batches)
                self.waits.append(time.perf_counter() - start)
                return batch
        raise StepError("data has no more batches: pass a loader, or a list of batches, that can be read again.")


def index_instead(data: Any) -> tuple[str, paired.Judgement] | None:
    """Try out one index for a loader's batch: what came out, in words, and how it compares with sample by sample.

    None where it does not give the same values, or is not clearly faster.
    """
    if not isinstance(data, DataLoader) or not data.batch_size or not hasattr(data.dataset, "__getitem__"):
        return None
    with contextlib.suppress(Exception):  # a dataset of somebody else's: it may do whatever it likes
        dataset, rows = data.dataset, min(data.batch_size, len(data.dataset), _MOST_ROWS)
        chosen = torch.linspace(0, len(dataset) - 1, rows).long()
        index = chosen
        while isinstance(dataset, Subset):
            index, dataset = torch.as_tensor(dataset.indices)[index], dataset.dataset

        def one_by_one() -> list[Any]:
            return tree_leaves(data.collate_fn([data.dataset[i] for i in chosen.tolist()]))

        whole = list(_tensors(vars(dataset), len(dataset)))
        parts = one_by_one()
        sources = [next(w for w in whole if w.dtype == part.dtype and torch.equal(w[index], part)) for part in parts]
        if rows < 2 or not sources:
            return None
        seconds: tuple[list[float], list[float]] = [], []
        for _ in range(_ROUNDS):
            for kept, fetch in zip(seconds, (one_by_one, lambda: [w[index] for w in sources]), strict=True):
                start = time.perf_counter()
                fetch()
                kept.append(time.perf_counter() - start)
        slow, quick = seconds
        judged = paired.judge(quick, slow, slow)
        if judged.verdict is paired.Verdict.FASTER:
            one_by_one_s, at_once_s = (format_seconds(statistics.median(kept)) for kept in seconds)
            because = f"{rows} samples are fetched one by one and put together in {one_by_one_s}"
            return f"{because}; one index gives the same values in {at_once_s}.", judged
    return None


def _tensors(attributes: Any, rows: int) -> Iterator[torch.Tensor]:
    """Those of a dataset that have a row for each sample."""
    for value in tree_leaves(list(attributes.values())):
        if isinstance(value, torch.Tensor) and value.ndim and len(value) == rows:
            yield value
