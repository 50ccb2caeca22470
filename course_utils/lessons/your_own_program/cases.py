"""What the lesson reads and measures: a training in several states, what was said of it, and a loop over tokens."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from course_utils.lessons.your_own_program import planted
from course_utils.materials.models import GPT, MLP
from course_utils.materials.text import library_text
from course_utils.measure.machine import scaled
from course_utils.measure.tabulate import tabulate
from course_utils.results.table import Table
from course_utils.show.formats import format_percent, format_ratio, format_seconds

if TYPE_CHECKING:
    from own_program.diagnosis.diagnose import Diagnosis

FILES, ROWS, LENGTH = 64, 2, 32  # of the loader; of a file
WAIT_S = 0.006  # for a file
# What a picture tells apart in a step, and the phases of a diagnosis that belong to it.
PARTS = {
    "data": ("waiting for data",),
    "forward": ("before the forward pass", "forward pass and loss"),
    "backward": ("backward pass", "after the backward pass"),
    "optimizer": ("optimizer", "after the optimizer"),
}
UNITS = dict.fromkeys(["a step", *PARTS], "s") | dict.fromkeys(["it saved", "fused AdamW"], "percent")


def build(fused: bool = False) -> tuple[GPT, torch.optim.Optimizer]:
    """A small GPT of bytes and AdamW, from the same start each time."""
    torch.manual_seed(0)
    model = GPT(context=LENGTH, width=64, layers=4)
    return model, torch.optim.AdamW(model.parameters(), fused=fused or None)


def loader(workers: int = 0, wait_s: float = WAIT_S) -> DataLoader:
    """Pieces of Python's standard library; a file is a batch."""
    pieces = library_text(2**16)[: FILES * ROWS * (LENGTH + 1)].long().view(FILES, ROWS, -1)
    files = planted.Files(pieces, wait_s)
    return DataLoader(files, batch_size=None, num_workers=workers, persistent_workers=workers > 0)


def steps(mended: bool = False, fused: bool = False, read: bool = True, workers: int = 0) -> Callable[[], torch.Tensor]:
    """A step of the lesson's program as a call: as planted, or with one change; `mended`: outside of its lines."""
    (model, optimizer), losses = build(fused), []
    batches = itertools.chain.from_iterable(itertools.repeat(loader(workers)))

    def call() -> torch.Tensor:
        with torch.autograd.set_detect_anomaly(not mended):
            batch = next(batches)
            logits = model(batch[:, :-1]).flatten(0, 1)
            loss = functional.cross_entropy(logits, batch[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if read:
                losses.append(loss.item())
        return loss.detach()

    return call


def readings(several: Sequence[Diagnosis], name: str) -> Table:
    """A row for each diagnosis: its first entry, the step's time, what was said, and what was saved by the next one."""
    rows = []
    for number, (found, following) in enumerate(itertools.zip_longest(several, several[1:]), start=1):
        plan = found.card().plan
        first = plan[0] if plan else None
        rows.append(
            {
                "its plan begins": f"{number}. {first.change if first else 'nothing stands out'}",
                "a step": found.step_s,
                "it said": f"{first.known} {format_percent(first.saves)}" if first else "",
                "it saved": 1 - following.step_s / found.step_s if following else None,
                "fused AdamW": next((each.saves for each in plan if "fused" in each.change), None),
                **{part: sum(found.phases[phase] for phase in PARTS[part]) * found.step_s for part in PARTS},
            }
        )
    return tabulate(rows, units=UNITS, name=name, worked_by="cpu", says=three_mends)


def three_mends(table: Table) -> str:
    """What the readings come to, in a sentence."""
    first, *_, last = (row["a step"] for row in table)
    return (
        f"{len(table.rows) - 1} mends: {format_seconds(first)} become {format_seconds(last)}, "
        f"{format_ratio(first / last)} times as fast."
    )


def tagger_step(one_by_one: bool) -> Callable[[], torch.Tensor]:
    """A training step of a small network that picks the valid ones of 256 tokens one by one, or all at once."""
    torch.manual_seed(0)
    net = planted.Tagger(one_by_one)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    x, labels, valid = torch.randn(256, 64), torch.randint(10, (256,)), torch.rand(256) < 0.8

    def step() -> torch.Tensor:
        loss = functional.cross_entropy(net(x, valid), labels[valid])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


# On a GPU: the same loop, with causes that are common there


def gpu_program(mended: int = 0) -> tuple[Callable[[Any], torch.Tensor], list[Any]]:
    """A step and its batches, with none, one, two or all of TF32, batches in pinned memory and an unread loss."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if mended > 0 else "highest")
    width = scaled(cpu=64, cuda=4096)
    model = MLP((width, width, width, width, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [(torch.randn(width // 4, width), torch.randint(10, (width // 4,))) for _ in range(4)]
    if mended > 1:
        batches = [tuple(part.pin_memory() for part in batch) for batch in batches]
    losses: list[Any] = []

    def step(batch: Any) -> torch.Tensor:
        x, labels = (part.to("cuda", non_blocking=True) for part in batch)
        loss = functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item() if mended < 3 else loss.detach())
        return loss

    return step, batches


def gpu_steps(mended: int) -> Callable[[], torch.Tensor]:
    """Eight steps on a GPU as a call."""
    step, batches = gpu_program(mended)

    def call() -> torch.Tensor:
        for batch in 2 * batches:
            loss = step(batch)
        return loss.detach()

    return call


def nearly(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two losses agree, though one comes from products in TF32."""
    return torch.allclose(a, b, rtol=0.01)
