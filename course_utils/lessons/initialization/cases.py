"""What the lesson trains from several starts: a small GPT on bytes of source code, a larger one on its words."""

from __future__ import annotations

import functools
import math
import re
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text, text_batches
from course_utils.measure.machine import course_size
from course_utils.results.paired import median_interval
from course_utils.show.progress import progress

Start = Callable[[nn.Module], None]
Way = tuple[Start, bool, float]  # who draws the weights, whether the head is the embedding, the learning rate
TARGET = 2.8  # counting letters stays well above it
KNOWS_NOTHING, COUNTS = "knows nothing", "counts tokens"
AXES = {"x": "step", "y": "loss on other text, nats"}


@dataclass(frozen=True)
class Task:
    """A GPT and what it trains on."""

    model: Mapping[str, int]
    text: Callable[[], torch.Tensor]
    batch: int
    steps: int
    every: int  # steps from one look at the text held out to the next

    def held_out(self) -> torch.Tensor:
        """32 pieces of the end of the text, each with the token that follows: int64 ``[32, context + 1]``."""
        context = self.model["context"]
        return self.text()[-(2**14) :].long().unfold(0, context + 1, context)[:32]

    def frequencies(self) -> float:
        """The loss on the pieces held out of a table that knows how often each token occurs, and nothing else."""
        counts = torch.bincount(self.text()[: -(2**14)].long(), minlength=self.model["vocabulary"]) + 1.0
        return -(counts / counts.sum()).log()[self.held_out()[:, 1:]].mean().item()


@functools.cache
def words(most: int = 50257) -> torch.Tensor:
    """The words, spaces and signs of Python's own library: int32 ranks by frequency, 0 for those beyond the most."""
    found = re.findall(rb"\w+| +|\W", library_text(2**22).numpy().tobytes())
    ranks = {word: rank for rank, (word, _) in enumerate(Counter(found).most_common(most - 1), 1)}
    return torch.tensor([ranks.get(word, 0) for word in found], dtype=torch.int32)


_STEPS = 20 if course_size() == "test" else 200
SMALL = Task({"vocabulary": 256, "context": 32, "width": 32, "layers": 2}, lambda: library_text(2**18), 8, _STEPS, 5)
LARGE = Task({"vocabulary": 50257, "context": 256, "width": 768, "layers": 4, "heads": 12}, words, 8, 300, 20)

_DRAWING = threading.Lock()  # a generator of torch's own is one for all threads


def new_gpt(start: Start, tied: bool = True, seed: int = 0, task: Task = SMALL) -> GPT:
    """A GPT whose weights a start has drawn from a seed, also while another thread trains."""
    with _DRAWING:
        torch.manual_seed(seed)
        model = GPT(**task.model)
        if not tied:
            model.head.weight = nn.Parameter(torch.empty_like(model.head.weight))
        start(model)
    return model


def pytorch_defaults(model: nn.Module) -> None:
    """Draw every layer's weights anew, as its own ``reset_parameters`` does.

    Embeddings come last: an output layer that is tied to one, ``head.weight = embedding.weight``, keeps its weights.
    """
    for module in sorted(model.modules(), key=lambda module: isinstance(module, nn.Embedding)):
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


def loss_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of the next token, in nats; on a GPU in bf16 autocast."""
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.device.type == "cuda"):
        logits = model(tokens)
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def losses_of(way: Way, seed: int, task: Task = SMALL, device: str = "cpu", until: float = 0.0) -> list[float]:
    """Losses on the text held out, the first before training; a run ends at the first that is below ``until``."""
    start, tied, rate = way
    model = new_gpt(start, tied, seed, task).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    pieces = task.held_out().to(device)
    look = torch.no_grad()(lambda: loss_of(model, pieces[:, :-1], pieces[:, 1:]).item())
    losses, text = [look()], task.text()[: -(2**14)]
    batches = text_batches(text, task.batch, task.model["context"], task.steps, seed, device)
    for step, (tokens, targets) in enumerate(batches, start=1):
        optimizer.zero_grad()
        loss_of(model, tokens, targets).backward()
        optimizer.step()
        if step % task.every == 0:
            losses.append(look())
            if losses[-1] < until:
                break
    return losses


def train(ways: Mapping[str, Way], seeds: Sequence[int] = range(6), whole: int = 0) -> dict[str, list[list[float]]]:
    """Losses of each way with each seed. Runs end at the target; of each way as many as ``whole`` take all steps.

    Two runs go on side by side: steps are counted, not timed.
    """
    seeds = seeds[:1] if course_size() == "test" else seeds
    jobs = [(name, seed, 0.0 if at < whole else TARGET) for at, seed in enumerate(seeds) for name in ways]
    runs: dict[str, list[list[float]]] = {name: [] for name in ways}
    with progress("training", expected_s=len(jobs)) as bar, ThreadPoolExecutor(2) as pool:
        each = pool.map(lambda job: losses_of(ways[job[0]], job[1], until=job[2]), jobs)
        for (name, *_), losses in zip(jobs, each, strict=True):
            runs[name].append(losses)
            bar.advance(1)
    return runs


def lines(runs: Mapping[str, Sequence[Sequence[float]]], task: Task = SMALL) -> dict[str, tuple[Sequence[float], ...]]:
    """For a picture: the loss of each start's first run by step, and what knowing nothing and counting give."""
    levels = {KNOWS_NOTHING: math.log(task.model["vocabulary"]), COUNTS: task.frequencies()}
    both = {name: ([0, task.steps], [level, level]) for name, level in levels.items()}
    return {name: (range(0, task.steps + 1, task.every), each[0]) for name, each in runs.items()} | both


def steps_to_target(runs: Sequence[Sequence[float]]) -> list[float]:
    """Of each run; one that did not get there needs more steps than any that did."""
    return [next((SMALL.every * at for at, loss in enumerate(run) if loss < TARGET), math.inf) for run in runs]


def race(runs: Mapping[str, Sequence[Sequence[float]]]) -> list[dict[str, Any]]:
    """For each start the first loss, how many runs got to the target, and the median of their steps."""
    return [
        {
            "start": name,
            "first loss": round(statistics.median(run[0] for run in each), 2),
            "reached 2.8": f"{sum(map(math.isfinite, steps_to_target(each)))} of {len(each)}",
            "steps, median": statistics.median(steps_to_target(each)),
        }
        for name, each in runs.items()
    ]


def times_the_first(runs: Mapping[str, Sequence[Sequence[float]]]) -> list[dict[str, Any]]:
    """For each start its median steps, and how many times the first start's they are, seed by seed (95% interval)."""
    rows, base = [], steps_to_target(next(iter(runs.values())))
    for name, each in runs.items():
        steps = steps_to_target(each)
        ratios = [need / own if math.isfinite(own) else math.nan for need, own in zip(steps, base, strict=True)]
        low, high = median_interval(ratios, 0.95).ends
        row = {"start": name, "times the steps": statistics.median(ratios), "low": low, "high": high}
        rows.append(row | {"steps, median": statistics.median(steps)})
    return rows
