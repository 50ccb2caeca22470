"""A loop of forward passes, fed in six ways, and copies of several sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils.data import DataLoader

from course_utils import scaled

STEPS = 32  # of an epoch


def prefetched(loader: Iterable[Any], move: Callable[[Any], Any], side: Any) -> Iterable[Any]:
    """The lesson's prefetcher; a test holds both to be the same code."""
    ready = []  # holds one batch at most
    for batch in loader:
        if side:
            side.wait_stream(torch.cuda.current_stream())  # work queued so far
        with torch.cuda.stream(side):  # None, on a CPU, changes nothing
            coming = move(batch)  # queues the copy of the next batch
        yield from ready  # you queue the work on this one
        if side:
            torch.cuda.current_stream().wait_stream(side)  # copy before work
        ready = [coming]
    yield from ready  # the last one


def loaders() -> tuple[list[torch.Tensor], DataLoader[torch.Tensor], DataLoader[torch.Tensor]]:
    """Two finished batches of 16 MiB; an epoch of them from two workers, as they are and pinned by the loader."""
    width = scaled(cpu=64, cuda=4096)
    two = [torch.randn(width // 4, width).share_memory_() for _ in range(2)]
    dataset, workers = two * (STEPS // 2), {"batch_size": None, "num_workers": 2, "persistent_workers": True}
    return two, DataLoader(dataset, **workers), DataLoader(dataset, **workers, pin_memory=True)


def loop_cases(products: int) -> dict[str, Callable[[], torch.Tensor]]:
    """An epoch of steps of so many products each."""
    two, plain, pinning = loaders()
    width = two[0].shape[1]
    weight = torch.randn(width, width, device="cuda") / width**0.5
    held, there = ([to(batch) for batch in two] * (STEPS // 2) for to in (torch.Tensor.pin_memory, torch.Tensor.cuda))
    side = torch.cuda.Stream()

    def move(batch: torch.Tensor, non_blocking: bool = True) -> torch.Tensor:
        return batch.to("cuda", non_blocking=non_blocking)

    def epoch(batches: Iterable[torch.Tensor]) -> torch.Tensor:
        for batch in batches:
            for _ in range(products):
                batch = batch @ weight
            loss = batch.square().mean()
        return loss

    return {
        "pageable": lambda: epoch(move(batch, False) for batch in plain),
        "pinned": lambda: epoch(move(batch, False) for batch in pinning),
        "pinned, non_blocking": lambda: epoch(map(move, pinning)),
        "prefetched": lambda: epoch(prefetched(pinning, move, side)),
        "pinned before, no loader": lambda: epoch(map(move, held)),
        "stays on the GPU": lambda: epoch(there),
    }


def copy_cases(kib: int) -> dict[str, Callable[[], torch.Tensor]]:
    """A copy to the GPU from pageable memory, from pinned memory, and pinned on the way."""
    pageable = torch.randn(kib * 256)
    pinned = pageable.pin_memory()
    return {
        "pageable": lambda: pageable.to("cuda"),
        "pageable, non_blocking": lambda: pageable.to("cuda", non_blocking=True),
        "pinned": lambda: pinned.to("cuda"),
        "pinned, non_blocking": lambda: pinned.to("cuda", non_blocking=True),
        "pin_memory() in the loop": lambda: pageable.pin_memory().to("cuda", non_blocking=True),
    }


def arrival_cases() -> dict[str, Callable[[], torch.Tensor]]:
    """The CPU's copy of 16 MiB that it has read before, and of 16 MiB that were mapped just now."""
    folder, floats = TemporaryDirectory(ignore_cleanup_errors=True), 2**22

    def arrive() -> torch.Tensor:  # as a batch from a worker does
        return torch.from_file(f"{folder.name}/batch", shared=True, size=floats)

    read_before, kept = arrive().copy_(torch.randn(floats)), torch.ones(floats)  # written, so they have all pages
    return {"read before": lambda: kept.copy_(read_before), "just arrived": lambda: kept.copy_(arrive())}
