"""What the lesson trains: a small network on digits, to a target in several batch sizes; a GPT until memory ends."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from course_utils.materials.digits import Digits, load_digits_split
from course_utils.materials.models import GPT
from course_utils.measure.cases import CaseError
from course_utils.measure.compare import measure
from course_utils.measure.fresh import Fresh, fresh
from course_utils.measure.machine import course_size, scaled

# Each size is four times the one before, and the largest is most of the training digits.
BATCHES = (16, 64, 256, 1024)
MOMENTUM = partial(torch.optim.SGD, momentum=0.9)
# Of rates that double, 0.02 to 0.32 and for AdamW 0.005 to 0.04, that with the fewest steps in the median of seeds 100
# to 123, which no result shows.
RATES = {16: 0.04, 64: 0.08, 256: 0.16, 1024: 0.08}
ADAMW_RATES = {64: 0.02, 1024: 0.02}
# What becomes of batch 16's rate at batch 1,024, by the rules that people use.
RULES = {"kept": 0.04, "tuned": 0.08, "times the square root": 0.32, "times the batch": 2.56}


def digits_on(device: torch.device | str) -> Digits:
    """The digits as tensors of a device, with the training images' mean and spread taken out."""
    digits = load_digits_split()
    mean, spread = digits.train_images.mean(), digits.train_images.std()
    train, test = ((images - mean) / spread for images in (digits.train_images, digits.test_images))
    tensors = (train, digits.train_labels, test, digits.test_labels)
    return Digits(*(tensor.to(device) for tensor in tensors))


def convnet() -> nn.Sequential:
    """Two convolutions and a linear layer: float32 ``[n, 1, 8, 8]`` to ten logits ``[n, 10]``."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """One step on a batch; the loss before it, in nats."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def batches_of(digits: Digits, batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches without end, shuffled anew in each epoch; what is left of an epoch is dropped."""
    there = len(digits.train_labels)
    while True:
        for places in torch.randperm(there).split(batch)[: there // batch]:
            yield digits.train_images[places], digits.train_labels[places]


def steps_to_target(
    digits: Digits, batch: int, rate: float, seed: int, *, most: int = 400, target: float = 0.2, rule: Any = MOMENTUM
) -> int | None:
    """Steps until the test loss in nats is below the target, looked at after each step."""
    torch.manual_seed(seed)
    model = convnet().to(digits.train_images.device)
    optimizer = rule(model.parameters(), lr=rate)
    for step, (inputs, targets) in zip(range(1, most + 1), batches_of(digits, batch), strict=False):
        train_step(model, optimizer, inputs, targets)
        with torch.no_grad():
            if functional.cross_entropy(model(digits.test_images), digits.test_labels) < target:
                return step
    return None


def samples_needed(digits: Digits, seeds: int) -> list[dict[str, Any]]:
    """Train with so many seeds in batches of each size, at its rate: a row for each size, the largest first."""
    runs = [(batch, "", RATES[batch], MOMENTUM) for batch in reversed(BATCHES)]
    runs += [(batch, ", AdamW", ADAMW_RATES[batch], torch.optim.AdamW) for batch in (1024, 64)]
    return [
        _row("batch", f"batch {n:,}{more}", digits, n, rate, range(seeds), rule=rule) for n, more, rate, rule in runs
    ]


def rules_of_thumb(digits: Digits, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Train in batches of 1,024 with the rate that each rule makes of batch 16's, for 40 steps at most."""
    rows = [_row("rate", rule, digits, 1024, rate, seeds, most=40) for rule, rate in RULES.items()]
    return [{key: row[key] for key in row if key != "samples"} for row in rows]


def _row(what: str, name: str, digits: Digits, batch: int, rate: float, seeds: Sequence[int], **how: Any) -> dict:
    if course_size() == "test":
        seeds, how = seeds[:1], how | {"target": 2.0, "most": 24}
    runs = [steps_to_target(digits, batch, rate, seed, **how) for seed in seeds]
    middle, reached = statistics.median(run or math.inf for run in runs), sum(run is not None for run in runs)
    each = ", ".join("none" if run is None else str(run) for run in runs)
    counted = {"steps": middle, "samples": middle * batch, "learning rate": rate}
    return {what: name, **counted, "runs that got there": f"{reached} of {len(runs)}", "steps of each seed": each}


def steps_of_sizes(digits: Digits, samples: int) -> dict[str, Fresh]:
    """Cases for :func:`compare`: the same number of samples in steps of each size."""

    def steps_of(batch: int) -> Callable[[], int]:
        model = convnet().to(digits.train_images.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        parts = list(
            zip(digits.train_images[:samples].split(batch), digits.train_labels[:samples].split(batch), strict=True)
        )

        def run() -> int:
            for inputs, targets in parts:
                train_step(model, optimizer, inputs, targets)
            return sum(len(targets) for _, targets in parts)

        return run

    return {f"batch {batch}": fresh(steps_of, batch) for batch in BATCHES}


def gpt_steps(batch: int) -> Callable[[], None]:
    """A training step in bfloat16 of a small GPT on so many sequences, on the GPU."""
    model = GPT(256, *scaled(cpu=(64, 32, 1), cuda=(1024, 768, 12)), heads=scaled(cpu=4, cuda=12)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(256, (batch, model.context), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def gpt_until_full() -> list[dict[str, Any]]:
    """That step in batches of 1, 2, 4 and so on until memory ends: its tokens a second, its peak, and a forecast."""
    length, peaks, rows = scaled(cpu=64, cuda=1024), [], []
    for batch in (2**n for n in range(scaled(cpu=3, cuda=16))):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        forecast = 3 * peaks[-1] - 2 * peaks[-2] if len(peaks) > 1 else None  # a line through the two sizes before
        try:
            timed = measure(fresh(gpt_steps, batch), budget_s=0.5, memory=False)
        except CaseError as error:
            if not isinstance(error.__cause__, torch.OutOfMemoryError):
                raise
            timed = None
        peaks.append(torch.cuda.max_memory_allocated())
        took = {"tokens/s": timed and batch * length / timed.median_s, "peak memory": timed and peaks[-1]}
        own = {"a step": timed and timed.median_s, "GPU's own work": timed and timed.queued_ahead_s}
        rows.append({"batch": batch, **took, "forecast": forecast, **own})
        if timed is None:
            break
    return rows
