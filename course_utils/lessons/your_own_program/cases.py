"""What lesson 24 reads and measures: a step, a loop and a training, as planted and mended."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from course_utils.lessons.memory_snapshots import cases as snapshots
from course_utils.lessons.your_own_program import planted
from course_utils.materials.models import GPT
from course_utils.materials.text import library_text
from course_utils.measure.machine import scaled
from course_utils.show.advice import Advice

BATCHES = 8  # in a pass of the loop
STEPS = 8  # of the training whose memory is read


# A step


def build(device: str, fused: bool = False) -> tuple[GPT, torch.optim.Optimizer]:
    """A small GPT of bytes and AdamW, from the same start each time."""
    torch.manual_seed(0)
    model = GPT(width=scaled(cpu=128, cuda=256), layers=scaled(cpu=4, cuda=8), context=length()).to(device)
    return model, torch.optim.AdamW(model.parameters(), fused=fused or None)


def length() -> int:
    """Tokens in a row."""
    return scaled(cpu=64, cuda=128)


def pieces(kind: type[planted.FromAfar], batches: int = BATCHES) -> planted.FromAfar:
    """Pieces of Python's standard library, enough for so many batches."""
    return kind(library_text(2**20).long(), length(), batches * rows())


def rows() -> int:
    """Rows in a batch."""
    return scaled(cpu=4, cuda=16)


def batch(device: str) -> planted.Batch:
    """One batch, on the device."""
    tokens, targets = pieces(planted.InMemory, 1)[list(range(rows()))]
    return tokens.to(device), targets.flatten().to(device)


def step(device: str, *, fused: bool = False, read: bool = True) -> Callable[[], torch.Tensor]:
    """A training step as a call; with one kernel for the optimizer, and with a loss that is read."""
    (model, optimizer), given, losses = build(device, fused), batch(device), []

    def call() -> torch.Tensor:
        loss = planted.train_step(model, optimizer, given)
        if read:
            losses.append(loss.item())
        return loss

    return call


def switched(on: bool, device: str, **how: bool) -> Callable[[], torch.Tensor]:
    """The same step as a call that sets the debugging switch for itself alone."""
    call = step(device, **how)

    def under_switch() -> torch.Tensor:
        with torch.autograd.set_detect_anomaly(on):
            return call()

    return under_switch


# A loop


def loader(kind: type[planted.FromAfar] = planted.FromAfar, workers: int = 0) -> DataLoader:
    """Batches of pieces; whole ones at a time where they are in memory."""
    data = pieces(kind)
    if kind is planted.InMemory:
        return DataLoader(data, batch_size=None, sampler=BatchSampler(SequentialSampler(data), rows(), drop_last=True))
    return DataLoader(data, rows(), num_workers=workers, persistent_workers=workers > 0)


def repeated(batches: Iterable[planted.Batch]) -> Iterator[planted.Batch]:
    """Pass after pass."""
    return itertools.chain.from_iterable(itertools.repeat(batches))


def train_step(device: str) -> Callable[[planted.Batch], torch.Tensor]:
    """A training step as a function of a batch."""
    model, optimizer = build(device, fused=True)

    def call(given: planted.Batch) -> torch.Tensor:
        tokens, targets = given
        return planted.train_step(model, optimizer, (tokens.to(device), targets.flatten().to(device)))

    return call


def loop(device: str, workers: int) -> Callable[[], torch.Tensor]:
    """A pass through the batches as a call, which gives the last loss."""
    take, batches = train_step(device), loader(workers=workers)

    def call() -> torch.Tensor:
        for given in batches:
            loss = take(given)
        return loss

    return call


# A training, and its memory


def training(device: str, keep: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
    """A training as a call: everything is built inside, so that its memory has a stack."""

    def call() -> list[torch.Tensor]:
        data = snapshots.batches(device, STEPS, snapshots.sizes()[0])
        return planted.train(*snapshots.build(device), data, keep)

    return call


def memory_row(name: str, snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """What a training reserved at most, and what it still held at its end, by its snapshot."""
    sign, reserved, most = {"segment_alloc": 1, "segment_free": -1}, 0, 0
    for entry in snapshot["device_traces"][0]:
        reserved += sign.get(entry["action"], 0) * entry["size"]
        most = max(most, reserved)
    held = sum(segment["allocated_size"] for segment in snapshot["segments"])
    return {"training": name, "reserved at most": most, "held at the end": held}


# What was said, and what came out


def said_row(program: str, plan: Sequence[Advice], gained: float) -> dict[str, Any]:
    """The first entry of a plan beside what mending gained, as shares."""
    first = plan[0] if plan else None
    return {
        "program": program,
        "first entry": first.change if first else "none",
        "said": first.saves if first else None,
        "known": first.known if first else "–",
        "came out": gained,
    }
