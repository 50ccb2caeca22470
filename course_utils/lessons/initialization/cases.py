"""What the lesson trains from several starts: a small GPT on real text, a deep network on digits, and an LSTM."""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from course_utils.materials.digits import load_digits_split
from course_utils.materials.models import GPT, MLP, LSTMLanguageModel
from course_utils.materials.text import library_text, text_batches
from course_utils.measure.machine import course_size
from course_utils.records.paired import median_interval
from course_utils.show.progress import progress

CONTEXT = 32
BATCH = 8
VOCABULARY = 256
# Counting letters stays well above it: letter_frequencies().
TARGET = 2.8
_HELD_OUT = 2**14

NOTE = "medians of six seeds; low and high: the 95% interval of times the steps"

Start = Callable[[nn.Module], None]


@functools.cache
def texts() -> tuple[torch.Tensor, torch.Tensor]:
    """The text to train on and the text held out: uint8, the first and the last part of 256 KiB of source code."""
    whole = library_text(2**18)
    return whole[:-_HELD_OUT], whole[-_HELD_OUT:]


def small_gpt() -> GPT:
    """Two blocks of width 32, for pieces of 32 bytes; its embedding is its output layer, too.

    Example:
        >>> small_gpt()(torch.zeros(1, 8, dtype=torch.int64)).shape
        torch.Size([1, 8, 256])
    """
    return GPT(vocabulary=VOCABULARY, context=CONTEXT, width=32, layers=2, heads=4)


def pytorch_defaults(model: nn.Module) -> None:
    """Draw every layer's weights anew, as its own ``reset_parameters`` does.

    Embeddings come last: an output layer that is tied to one, ``head.weight = embedding.weight``, keeps its weights.
    """
    for module in sorted(model.modules(), key=lambda module: isinstance(module, nn.Embedding)):
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


def all_normal(model: nn.Module, std: float) -> None:
    """Normal weights of one standard deviation in each matrix, and biases of zero."""
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=std)
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def each_linear(model: nn.Module, fill: Callable[[torch.Tensor], Any]) -> None:
    """Fill the weight of each linear layer, and set its bias to zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            fill(module.weight)
            nn.init.zeros_(module.bias)


def with_embeddings(model: nn.Module, start: Start, std: float) -> None:
    """Start a model, then draw its embeddings alone with another standard deviation."""
    start(model)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=std)


def small_lstm() -> LSTMLanguageModel:
    """An LSTM of width 32 over bytes.

    Example:
        >>> small_lstm()(torch.zeros(1, 8, dtype=torch.int64)).shape
        torch.Size([1, 8, 256])
    """
    return LSTMLanguageModel(vocabulary=VOCABULARY, width=32)


@torch.no_grad()
def orthogonal_and_open(model: LSTMLanguageModel) -> None:
    """Orthogonal recurrent matrices for each gate, and forget gates whose two biases add up to 1."""
    pytorch_defaults(model)
    width = model.rnn.hidden_size
    for gate in model.rnn.weight_hh_l0.split(width):
        nn.init.orthogonal_(gate)
    model.rnn.bias_ih_l0[width : 2 * width] = 1.0
    model.rnn.bias_hh_l0[width : 2 * width] = 0.0


def batches(seed: int, most: int, device: torch.device | str = "cpu") -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The pieces of text that a seed trains on: the same for each start."""
    return text_batches(texts()[0], BATCH, CONTEXT, most, seed, device)


def loss_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of the next byte, in nats."""
    return functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def held_out() -> torch.Tensor:
    """The first 32 pieces of the text held out, each with the byte that follows: int64 ``[32, CONTEXT + 1]``."""
    return texts()[1].long().unfold(0, CONTEXT + 1, CONTEXT)[:32]


@torch.no_grad()
def loss_held_out(model: nn.Module) -> float:
    """The loss on the pieces held out, in nats: the same pieces for each start and seed."""
    pieces = held_out().to(next(model.parameters()).device)
    return loss_of(model, pieces[:, :-1], pieces[:, 1:]).item()


def letter_frequencies() -> float:
    """The loss on the pieces held out, in nats, of a table that knows how often each byte occurs, and nothing else."""
    share = torch.bincount(texts()[0].long(), minlength=VOCABULARY) + 1.0
    return -(share / share.sum()).log()[held_out()[:, 1:]].mean().item()


def frozen_step(start: Start, device: torch.device | str = "cpu") -> Callable[[], None]:
    """A whole training step whose weights stay as they started: AdamW computes its update, at a rate of zero."""
    torch.manual_seed(0)
    model = small_gpt().to(device)
    start(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0, fused=True)
    tokens, targets = next(batches(0, 1, device))

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model, tokens, targets).backward()
        optimizer.step()

    return step


def best_rate(steps_to_target: Callable[[float, int], int | None], rates: Sequence[float]) -> float:
    """The learning rate whose slowest run over three seeds, that the lesson does not use, needs the fewest steps."""
    needs = {rate: [steps_to_target(rate, seed) for seed in (100, 101, 102)] for rate in rates}
    return min(needs, key=lambda rate: max(math.inf if steps is None else steps for steps in needs[rate]))


# A generator of torch's own is one for all threads.
_DRAWING = threading.Lock()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw weights from a seed, also while another thread trains: one thread at a time is in here."""
    with _DRAWING:
        torch.manual_seed(seed)
        yield


def train_all(
    steps_to_target: Callable[[Start, float, int, int], int | None],
    ways: Mapping[str, tuple[Start, float, int]],
    seeds: int,
    expected_s: float,
) -> list[dict[str, Any]]:
    """Train in each way with so many seeds: a row for each seed, with the steps of each way (None: not reached).

    Two trainings go on side by side: steps are counted, not timed.

    Args:
        steps_to_target: trains from a start, at a rate, with a seed and so many steps of warm-up.
        ways: start, rate and steps of warm-up by name.
        seeds: how many.
        expected_s: how long all take, about.
    """

    def train(job: tuple[str, int]) -> int | None:
        start, rate, warm_up = ways[job[0]]
        return steps_to_target(start, rate, job[1], warm_up)

    seeds = 1 if course_size() == "test" else seeds
    rows: list[dict[str, Any]] = [{"seed": str(seed)} for seed in range(seeds)]
    jobs = [(label, seed) for seed in range(seeds) for label in ways]
    with progress("training to the target", expected_s=expected_s) as bar, ThreadPoolExecutor(2) as pool:
        for (label, seed), steps in zip(jobs, pool.map(train, jobs), strict=True):
            rows[seed][label] = steps
            bar.advance(expected_s / len(jobs))
    return rows


def summary(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each start and rate the median of its steps over those of GPT-2's, seed by seed, and the median steps.

    A run that did not reach the target needs more steps than any that did: medians and their 95% intervals hold as long
    as they do not fall on such a run; there they are infinite, which a table shows as nothing.
    """
    rows = list(rows)
    found = []
    for label in rows[0]:
        if label == "seed":
            continue
        steps = [math.inf if row[label] is None else row[label] for row in rows]
        ratios = [need / (row["GPT-2's, one rate"] or math.nan) for need, row in zip(steps, rows, strict=True)]
        low, high = median_interval(ratios, 0.95).ends
        found.append(
            {
                "start": label,
                "times the steps": statistics.median(ratios),
                "low": low,
                "high": high,
                "reached": f"{sum(map(math.isfinite, steps))} of {len(steps)}",
                "steps to the target": statistics.median(steps),
            }
        )
    return found


# The deep network


def deep_network(start: Start, seed: int = 0) -> MLP:
    """Twenty linear layers of width 64 with ReLU between them, from 64 pixels to ten digits."""
    torch.manual_seed(seed)
    model = MLP((*[64] * 20, 10))
    start(model)
    return model


@functools.cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The training digits: pixels float32 ``[n, 64]``, mean and spread taken out, and labels int64 ``[n]``."""
    there = load_digits_split()
    images = there.train_images.flatten(1)
    return (images - images.mean()) / images.std(), there.train_labels


@torch.no_grad()
def spread_by_layer(model: nn.Sequential) -> list[float]:
    """After each ReLU, how far 256 digits differ: the standard deviation over the digits, averaged over the units."""
    hidden, spreads = digits()[0][:256], []
    for layer in model:
        hidden = layer(hidden)
        if isinstance(layer, nn.ReLU):
            spreads.append(hidden.std(dim=0).mean().item())
    return spreads


def highest_losses(start: Start, rules: Mapping[str, Callable[..., torch.optim.Optimizer]]) -> dict[str, float]:
    """For each optimizer the higher loss of two seeds after 60 steps, in nats; infinite if one diverged."""
    seeds = range(1 if course_size() == "test" else 2)
    losses = {name: [_trained_deep(start, rule, 60, seed) for seed in seeds] for name, rule in rules.items()}
    return {name: max(loss if math.isfinite(loss) else math.inf for loss in found) for name, found in losses.items()}


def _trained_deep(start: Start, rule: Callable[..., torch.optim.Optimizer], steps: int, seed: int) -> float:
    """Train the deep network on batches of 64 digits; the loss on all training digits afterwards, in nats."""
    model = deep_network(start, seed)
    optimizer = rule(model.parameters())
    images, labels = digits()
    order = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randint(len(labels), (64,), generator=order)
        optimizer.zero_grad()
        functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    with torch.no_grad():
        return functional.cross_entropy(model(images), labels).item()


def still_zero(start: Start, steps: int) -> dict[str, float]:
    """Train the small GPT from a start: its loss, and by part how many weights of matrices are still exactly zero."""
    torch.manual_seed(0)
    model = small_gpt()
    start(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0, fused=True)
    for tokens, targets in batches(0, steps):
        optimizer.zero_grad()
        loss_of(model, tokens, targets).backward()
        optimizer.step()
    zeros = {"embeddings": 0, "into the blocks": 0, "out of the blocks": 0}
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            part = "embeddings" if "embedding" in name else "into the blocks"
            part = "out of the blocks" if name.endswith(("projection.weight", "mlp.2.weight")) else part
            zeros[part] += int((weight == 0).sum())
    return {"loss": loss_held_out(model)} | zeros
