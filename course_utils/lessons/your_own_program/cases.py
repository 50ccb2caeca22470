"""What the lesson reads and measures: a step, a loop and a training, as planted and mended."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from course_utils.lessons.memory_snapshots import cases as snapshots
from course_utils.lessons.your_own_program import planted
from course_utils.materials.digits import load_digits_split
from course_utils.materials.models import GPT, MLP
from course_utils.materials.text import library_text
from course_utils.measure.machine import scaled
from course_utils.show.advice import Advice
from course_utils.show.formats import format_percent

FILES = 6  # of the loop
WAIT_S = 0.02  # for each of them
STEPS = 8  # of the training whose memory is read


# A step


def build(device: str, fused: bool = False) -> tuple[GPT, torch.optim.Optimizer]:
    """A small GPT of bytes and AdamW, from the same start each time."""
    torch.manual_seed(0)
    width, layers = scaled(cpu=64, cuda=256), scaled(cpu=2, cuda=6)
    model = GPT(context=_length(), width=width, layers=layers).to(device)
    return model, torch.optim.AdamW(model.parameters(), fused=fused or None)


def batch(device: str) -> planted.Batch:
    """Pieces of Python's standard library, and the bytes that follow."""
    rows = scaled(cpu=2, cuda=16)
    pieces = library_text(2**16)[: rows * (_length() + 1)].long().view(rows, -1).to(device)
    return pieces[:, :-1].contiguous(), pieces[:, 1:].flatten()


def _length() -> int:
    return scaled(cpu=32, cuda=128)


def step(on: bool, device: str, *, fused: bool = False, read: bool = True) -> Callable[[], torch.Tensor]:
    """The step as a call: with the debugging switch on or off, another kernel for AdamW, a loss that is read or not."""
    (model, optimizer), (tokens, targets), losses = build(device, fused), batch(device), []

    def call() -> torch.Tensor:
        with torch.autograd.set_detect_anomaly(on):
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if read:
            losses.append(loss.item())
        return loss.detach()

    return call


# A loop


def loader(wait_s: float = WAIT_S, workers: int = 0) -> DataLoader:
    """Files of digits, each with so many rows; after a wait, or at once."""
    rows, digits = scaled(cpu=256, cuda=4096), load_digits_split()
    again = -(-FILES * rows // len(digits.train_images))
    images = digits.train_images.flatten(1).repeat(again, 1)[: FILES * rows]
    labels = digits.train_labels.repeat(again)[: FILES * rows]
    files = planted.Files(images, labels, rows, wait_s)
    return DataLoader(files, batch_size=None, num_workers=workers, persistent_workers=workers > 0)


def repeated(batches: Iterable[planted.Batch]) -> Iterator[planted.Batch]:
    """Pass after pass."""
    return itertools.chain.from_iterable(itertools.repeat(batches))


def train_step(device: str) -> Callable[[planted.Batch], torch.Tensor]:
    """A step of a plain network as a function of a batch."""
    torch.manual_seed(0)
    width = scaled(cpu=1024, cuda=4096)
    model = MLP((64, width, width, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def call(given: planted.Batch) -> torch.Tensor:
        images, labels = (part.to(device) for part in given)
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return call


def loop(device: str, workers: int) -> Callable[[], torch.Tensor]:
    """A pass through the files as a call, which gives the last loss."""
    take, batches = train_step(device), loader(workers=workers)

    def call() -> torch.Tensor:
        for given in batches:
            loss = take(given)
        return loss

    return call


# A training, and its memory


def training(device: str, keep: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
    """A training as a call: all is built inside, so that its memory has a stack."""

    def call() -> list[torch.Tensor]:
        data = snapshots.batches(device, STEPS, snapshots.sizes()[0])
        return planted.train(*snapshots.build(device), data, keep)

    return call


def memory_row(name: str, snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """What a training reserved at most, and what was in use at its end, by its snapshot's own entries."""
    sign = {"segment_alloc": 1, "segment_free": -1}
    changes = [sign.get(entry["action"], 0) * entry["size"] for entry in snapshot["device_traces"][0]]
    segments = [segment for segment in snapshot["segments"] if segment["device"] == 0]
    before = sum(segment["total_size"] for segment in segments) - sum(changes)
    held = sum(segment["allocated_size"] for segment in segments)
    return {
        "training": name,
        "reserved at most": max(itertools.accumulate(changes, initial=before)),
        "at its end": held,
    }


# What was said, and what came out


def said_row(program: str, plan: Sequence[Advice], gained: float) -> dict[str, Any]:
    """The first entry of a plan beside the share that mending gained."""
    first = plan[0] if plan else None
    return {
        "program": program,
        "said": f"{first.known} {format_percent(first.saves)}" if first and first.saves is not None else "no number",
        "came out": gained,
        "first entry": first.change if first else "none",
    }
