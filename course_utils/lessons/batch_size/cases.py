"""What the lesson trains: a small convolutional network on scanned digits, in batches of several sizes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from course_utils.materials.digits import Digits, load_digits_split
from course_utils.measure.fresh import Fresh, fresh
from course_utils.measure.machine import course_size
from course_utils.records.kinds.comparison import Comparison
from course_utils.records.paired import median_interval
from course_utils.show.progress import progress

# Each size is four times the one before, and the largest is most of the training digits.
BATCHES = (16, 64, 256, 1024)
GRID = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
TUNING_SEEDS = (100, 101, 102)
# What `best_rate` chose for each size, with seeds that the experiment does not use.
RATES = {16: 0.04, 64: 0.08, 256: 0.08, 1024: 0.08}
# For AdamW the best of 0.0025, 0.005, 0.01 and 0.02, in the mean of the first four of seeds from 100 on.
ADAMW_RATES = {64: 0.01, 1024: 0.02}


def digits_on(device: torch.device | str) -> Digits:
    """The digits as tensors of a device, with the training images' mean and spread taken out."""
    digits = load_digits_split()
    mean, spread = digits.train_images.mean(), digits.train_images.std()
    train, test = ((images - mean) / spread for images in (digits.train_images, digits.test_images))
    tensors = (train, digits.train_labels, test, digits.test_labels)
    return Digits(*(tensor.to(device) for tensor in tensors))


def convnet() -> nn.Sequential:
    """Two convolutions and a linear layer: float32 ``[n, 1, 8, 8]`` to ten logits ``[n, 10]``.

    Example:
        >>> convnet()(torch.zeros(3, 1, 8, 8)).shape
        torch.Size([3, 10])
    """
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


def batches_of(digits: Digits, batch: int, most: int) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yield batches, shuffled anew in each epoch, each with the samples so far; what is left of an epoch is dropped.

    Raises:
        ValueError: if there are fewer digits than a batch has.

    Example:
        >>> [seen for seen, _, _ in batches_of(load_digits_split(), batch=512, most=1500)]
        [512, 1024, 1536]
    """
    there = len(digits.train_labels)
    if not 1 <= batch <= there:
        raise ValueError(f"a batch has 1 to {there:,} samples, as many as there are to train on; got {batch!r}")
    seen = 0
    while seen < most:
        for places in torch.randperm(there).split(batch)[: there // batch]:
            seen += batch
            yield seen, digits.train_images[places], digits.train_labels[places]
            if seen >= most:
                return


@torch.no_grad()
def loss_on_test(model: nn.Module, digits: Digits) -> float:
    """The mean cross-entropy of the test digits, in nats."""
    return functional.cross_entropy(model(digits.test_images), digits.test_labels).item()


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


ToTarget = Callable[..., int | None]


def best_rate(samples_to_target: ToTarget, batch: int, grid: Sequence[float] = GRID) -> float:
    """The learning rate whose slowest run over the tuning seeds needs the fewest samples; of equals, by the median.

    A run ends at 150 steps or 6,000 samples, whichever is later; a rate counts if all its runs reach the target.

    Raises:
        ValueError: if no rate does.
    """
    most = max(6_000, 150 * batch)
    needs = {rate: [samples_to_target(batch, rate, seed, most=most) for seed in TUNING_SEEDS] for rate in grid}
    reached = {rate: (max(runs), statistics.median(runs)) for rate, runs in needs.items() if None not in runs}
    if not reached:
        raise ValueError(f"no rate of {list(grid)} reaches the target in batches of {batch}")
    return min(reached, key=reached.__getitem__)


def runs_to_target(samples_to_target: ToTarget, seeds: int) -> list[dict[str, Any]]:
    """Train with so many seeds in batches of each size, at its rate: a row for each seed, a column for each size.

    The last columns are of AdamW, in batches of 64 and of 1,024.
    """
    rows = []
    seeds = 1 if course_size() == "test" else seeds
    with progress("training to the target", expected_s=2.5 * seeds) as bar:
        for seed in range(seeds):
            runs = {f"batch {batch}": samples_to_target(batch, RATES[batch], seed) for batch in BATCHES}
            for batch, rate in ADAMW_RATES.items():
                runs[f"batch {batch}, AdamW"] = samples_to_target(batch, rate, seed, rule=torch.optim.AdamW)
            rows.append({"seed": str(seed), **runs})
            bar.advance(2.5)
    return rows


def summary(rows: Iterable[Mapping[str, Any]], throughput: Comparison) -> list[dict[str, Any]]:
    """For each size the seconds to the target, the median of the samples with its 95% interval, and the steps.

    Samples a second are those of the smallest batch, times the paired ratio that the comparison shows.

    Raises:
        RuntimeError: if a run did not reach the target.
    """
    found, rows = [], list(rows)
    slowest_per_s = throughput.parameters["samples"] / throughput[throughput.baseline].median_s
    for batch in BATCHES:
        label = f"batch {batch}"
        runs = [row[label] for row in rows]
        if None in runs:
            raise RuntimeError(f"with {label} {runs.count(None)} of {len(runs)} runs did not reach the target")
        interval = median_interval(runs, 0.95)
        gain = 1.0 if label == throughput.baseline else throughput[label].speedup  # the baseline's is its control's
        samples, samples_per_s = statistics.median(runs), slowest_per_s * gain
        found.append(
            {
                "in steps of": label,
                "time to the target": samples / samples_per_s,
                "samples to the target": samples,
                "samples/s": samples_per_s,
                "steps": samples / batch,
                "low": interval.low,
                "high": interval.high,
            }
        )
    return found
