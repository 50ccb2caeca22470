"""A loop that waits for its batches: late photographs, numbers in memory, and every core."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from course_utils import scaled
from course_utils.lessons.data_loading.samples import Photographs
from course_utils.measure.machine import course_size

SHORT = course_size() == "test"
STEPS, UNEQUAL, IN_MEMORY = (3, 12, 64) if SHORT else (14, 40, 64)  # batches of a pass
Cases = dict[str, Callable[[], int]]


def loader(data: Any, size: int | None, workers: int, **options: Any) -> DataLoader:
    """A loader that keeps its workers from one pass to the next."""
    return DataLoader(data, size, num_workers=workers, persistent_workers=workers > 0, **options)


def passes(batches: Iterable[Any], step: Callable[[Any], Any]) -> Callable[[], int]:
    """Go through the batches once, a step for each; returns how many came."""
    return lambda: sum(1 for batch in batches if step(batch) or True)


def wait(batch: Any) -> None:
    time.sleep(0.010)


def step_cases(paths: list[Path]) -> Cases:
    """A step of 10 ms, as if one waited for a GPU; its batch is one photograph, 15 ms late."""
    late, batches = Photographs(paths, wait_s=0.015, length=STEPS), {"step only": [Photographs(paths)[0]] * STEPS}
    for workers, name in enumerate(["no worker", "1 worker", "2 workers", "3 workers"]):
        batches[name] = loader(late, 1, workers)
    return {name: passes(each, wait) for name, each in batches.items()}


def unequal_cases(paths: list[Path]) -> Cases:
    """The same step, and a photograph is 15 ms late on average: each of them, or most 5 ms and one in twenty 205 ms."""
    equal = Photographs(paths, wait_s=0.015, length=UNEQUAL)
    unequal = Photographs(paths, wait_s=0.005, length=UNEQUAL, late_s=0.200)
    loaders = {
        "equal": loader(equal, 1, 2),
        "unequal": loader(unequal, 1, 2),
        "4 workers": loader(unequal, 1, 4),
        "prefetch_factor=16": loader(unequal, 1, 2, prefetch_factor=16),
        "in_order=False": loader(unequal, 1, 2, in_order=False),
    }
    return {name: passes(each, wait) for name, each in loaders.items()}


def row_cases() -> Cases:
    """Batches of 64 rows of 784 numbers that lie in memory; there is no step."""
    data = TensorDataset(torch.randn(64 * IN_MEMORY, 784), torch.zeros(64 * IN_MEMORY))
    whole = BatchSampler(RandomSampler(data), 64, drop_last=False)
    return {
        "no worker": passes(loader(data, 64, 0, shuffle=True), len),
        "2 workers": passes(loader(data, 64, 2, shuffle=True), len),
        "one index a batch": passes(loader(data, None, 0, sampler=whole), len),
    }


def worker_counts() -> list[int]:
    """None, 1, 2, 4 and so on up to the cores, 16 at most; 4 at least."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [0, *(2**power for power in range(5) if 2**power <= max(4, cores))]


def scaling_batches() -> int:
    """As many for each number of workers, so that the wait for the first one weighs the same."""
    return (2 if SHORT else 6) * max(worker_counts())


def scaling_cases(paths: list[Path]) -> Callable[[int], Cases]:
    """By the number of workers, a step whose batch of photographs is loaded, or stays on the device."""
    on_gpu, size, count = torch.cuda.is_available(), scaled(cpu=4, cuda=8), scaling_batches()
    device, step = ("cuda", training_step()) if on_gpu else ("cpu", lambda batch: time.sleep(0.002))
    there = next(iter(DataLoader(Photographs(paths), size))).to(device)

    def make(workers: int) -> Cases:
        loaded = loader(Photographs(paths, length=size * count), size, workers, pin_memory=on_gpu)
        return {"stays": passes([there] * count, step), "loaded": passes(loaded, step)}

    return make


def training_step() -> Callable[[torch.Tensor], None]:
    """Train a small convolutional network on the GPU; nothing waits for it."""
    layers = nn.Conv2d(3, 16, 7, 4), nn.ReLU(), nn.Conv2d(16, 64, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch: torch.Tensor) -> None:
        model(batch.to("cuda", non_blocking=True).float() / 255).square().mean().backward()
        optimizer.step(), optimizer.zero_grad()

    return step
