"""What the lesson runs: causes of other numbers, a last bit that grows, a training to resume, steps with a price."""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.utils.deterministic
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from course_utils.materials.digits import load_digits_split
from course_utils.materials.models import GPT
from course_utils.measure.fresh import RandomState, Switches
from course_utils.measure.machine import course_size, scaled
from course_utils.show.progress import progress

_ANIMALS = ("ant", "bear", "cat", "deer", "eel", "fox", "goat", "hare", "ibis", "jay", "koala", "lynx")


def digest(tensor: torch.Tensor) -> str:
    """The SHA-256 of a tensor's bytes."""
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def _share(chosen: torch.Tensor) -> float:
    """Which share of a boolean tensor is true."""
    return chosen.float().mean().item()


def _outputs(program: str, *environments: dict[str, str]) -> list[str]:
    """What a Python program prints in new processes: one for each of these additions to the environment."""
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ, **each})
        for each in environments
    ]
    try:
        printed = [process.communicate(timeout=120)[0].strip() for process in processes]
        if any(process.returncode for process in processes):
            raise RuntimeError("a new Python process failed: its message is above, or in the terminal of the notebook")
        return printed
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _no_seed(remedied: bool) -> list[Any]:
    def numbers() -> str:
        torch.manual_seed(0) if remedied else torch.seed()
        return digest(torch.rand(8))

    return [numbers(), numbers()]


def _threads(remedied: bool) -> list[Any]:
    rows = torch.rand(8, 2**20, generator=torch.Generator().manual_seed(0))

    def sums(threads: int) -> list[float]:
        torch.set_num_threads(threads)
        return [row.sum().item() for row in rows]

    return [sums(1), sums(1 if remedied else 2)]


def _race(remedied: bool) -> list[Any]:
    """Gradients to which threads add in the order of arrival: until one differs from the first."""
    gradient = index_backward(remedied)
    gradients = [digest(gradient())]
    for _ in range(20 if remedied else 60):
        gradients.append(digest(gradient()))
        if gradients[-1] != gradients[0]:
            break
    return gradients


def _batch_size(remedied: bool) -> list[Any]:
    """The first of 64 rows: alone, or (remedied) among 63 rows of zeros."""
    torch.manual_seed(0)
    layer, x = nn.Linear(512, 512), torch.randn(64, 512)
    alone = torch.cat([x[:1], torch.zeros(63, 512)]) if remedied else x[:1]
    return [digest(layer(x)[0]), digest(layer(alone)[0])]


class _Noisy(Dataset[torch.Tensor]):
    """Random numbers as augmentations draw them: from whatever generator there is, or one of the sample's own."""

    def __init__(self, own: bool) -> None:
        self.own = own

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(4, generator=torch.Generator().manual_seed(index) if self.own else None)


def _workers(remedied: bool) -> list[Any]:
    def samples(workers: int) -> str:
        torch.manual_seed(0)
        return digest(torch.cat(list(DataLoader(_Noisy(remedied), batch_size=2, num_workers=workers))))

    return [samples(1), samples(2)]


def _validation(remedied: bool) -> list[Any]:
    """The next random numbers, with and without a look at a loader that shuffles nothing."""

    def afterwards(validate: bool) -> str:
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0) if remedied else None
        if validate:
            list(DataLoader(range(8), generator=generator))
        return digest(torch.rand(8))

    return [afterwards(False), afterwards(True)]


def _set_order(remedied: bool) -> list[Any]:
    new_hashes = {"PYTHONHASHSEED": "random"}
    return _outputs(f"print({'sorted' if remedied else 'list'}({set(_ANIMALS)}))", new_hashes, new_hashes)


def _file_order(remedied: bool) -> list[Any]:
    """The same files in two folders, copied in two orders; one in memory, where there is such a file system."""
    listings = []
    for place, names in (("/dev/shm", _ANIMALS), (None, _ANIMALS[::-1])):
        with tempfile.TemporaryDirectory(dir=place if place and os.access(place, os.W_OK) else None) as folder:
            for name in names:
                (Path(folder) / name).touch()
            listings.append(sorted(os.listdir(folder)) if remedied else os.listdir(folder))
    return listings


def _random_and_softmax() -> str:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    return digest(torch.cat([x, x.softmax(1)]))


@functools.cache
def _plain_kernels() -> list[str]:
    """The same in two new processes, with PyTorch's plain kernels, which stand in for those of another CPU."""
    functions = "".join(map(inspect.getsource, (digest, _random_and_softmax)))
    plain = {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}
    return _outputs(f"import hashlib, torch\n{functions}\nprint(_random_and_softmax())", plain, plain)


def _another_cpu(remedied: bool) -> list[Any]:
    return _plain_kernels() if remedied else [_random_and_softmax(), _plain_kernels()[0]]


_CAUSES: tuple[tuple[str, str, Callable[[bool], list[Any]]], ...] = (
    ("no seed", "manual_seed", _no_seed),
    ("2 threads for 1", "set_num_threads", _threads),
    ("a race of 2 threads", "deterministic algorithms", _race),
    ("kernels of another CPU", "the same kernels", _another_cpu),
    ("order of a set", "sorted()", _set_order),
    ("order of files", "sorted()", _file_order),
    ("2 workers for 1", "a seed for each sample", _workers),
    ("a look at a loader", "generator= of its own", _validation),
    ("1 row for 64", "pad the batch", _batch_size),
)


def causes() -> list[dict[str, Any]]:
    """Run each cause twice or more, left alone and with its remedy; say whether the results were equal to the bit."""
    rows = []
    before = RandomState.now()
    with progress("running each cause twice", expected_s=8) as bar:
        for cause, remedy, run in _CAUSES:
            found = []
            for remedied in (False, True):
                with Switches.kept():
                    torch.set_num_threads(1)
                    results = run(remedied)
                found.append("same" if all(result == results[0] for result in results) else "differs")
            rows.append({"cause": cause, "left alone": found[0], "remedy": remedy, "with it": found[1]})
            bar.advance(8 / len(_CAUSES))
    before.restore()
    return rows


# --- a last bit that grows ----------------------------------------------------------------------------------------


def _trained(learning_rate: float, seed: int, nudged: bool, steps: int) -> tuple[torch.Tensor, float]:
    """All weights after each step of a training on digits, and the loss on its test images.

    ``nudged``: one weight of the first layer begins one bit larger.
    """
    digits = load_digits_split()
    images, labels = digits.train_images.flatten(1), digits.train_labels
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    if nudged:
        with torch.no_grad():
            weight = layers[0].weight
            weight[0, 20] = torch.nextafter(weight[0, 20], torch.tensor(math.inf))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    weights = []
    for _ in range(steps):
        batch = torch.randint(len(images), (32,))
        functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
        weights.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    with torch.no_grad():
        loss = functional.cross_entropy(model(digits.test_images.flatten(1)), digits.test_labels)
    return torch.stack(weights), loss.item()


def growth(learning_rates: tuple[float, ...] = (0.03, 0.1)) -> tuple[dict[str, list[float]], list[dict[str, Any]]]:
    """How far one changed bit goes in pairs of trainings, each pair with a seed of its own.

    Returns:
        lines for :func:`curves`, of the first pair; and rows for :func:`tabulate`, of all pairs: medians, where a key
        says nothing else. Weights move that changed in the last third of the steps, in both runs of a pair. ``one bit``
        and ``another seed`` are differences between test losses: within the pairs, and between seeds.
    """
    lines, rows = {}, []
    steps, seeds = (30, 2) if course_size() == "test" else (300, 7)
    with Switches.kept(), progress("training", expected_s=5.0 * len(learning_rates)) as bar:
        torch.set_num_threads(1)
        for rate in learning_rates:
            pairs = [[_trained(rate, seed, nudged, steps) for nudged in (False, True)] for seed in range(seeds)]
            (ours, _), (nudged, _) = pairs[0]
            label = f"learning rate {rate}"
            # float32 has some 7 digits; equal weights would have infinitely many.
            apart = ((ours - nudged).norm(dim=1) / ours.norm(dim=1)).tolist()
            lines[label] = [min(8.0, -math.log10(each + 1e-12)) for each in apart]
            equal = [a[-1] == b[-1] for (a, _), (b, _) in pairs]
            shares = [_share(each) for each in equal]
            move = [(a[-1] != a[-steps // 3]) & (b[-1] != b[-steps // 3]) for (a, _), (b, _) in pairs]
            one_bit = [abs(loss - other) for (_, loss), (_, other) in pairs]
            losses = [loss for (_, loss), _ in pairs]
            rows.append(
                {
                    "training": label,
                    "weights equal": median(shares),
                    "of those that move": median(_share(each[moved]) for each, moved in zip(equal, move, strict=True)),
                    "one bit": median(one_bit),
                    "another seed": median(abs(a - b) for a, b in itertools.combinations(losses, 2)),
                    "one bit, largest": max(one_bit),
                    "fewest equal": min(shares),
                    "fewest that differ": min(int((~each).sum()) for each in equal),
                }
            )
            bar.advance(5)
    return lines, rows


# --- resume -------------------------------------------------------------------------------------------------------


class Training:
    """A training with everything that a checkpoint has to hold; ``step()`` returns the loss.

    Attributes:
        model: a small MLP with dropout, which draws from torch's generator.
        optimizer: AdamW.
        scheduler: lowers the learning rate every 7 steps.
        epoch: counted from 0. The order of the samples follows from it.
        batch: the next batch of this epoch.
    """

    BATCHES = 44

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        np.random.seed(seed)
        digits = load_digits_split()
        self._images, self._labels = digits.train_images.flatten(1), digits.train_labels
        self.model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=7, gamma=0.8)
        self.epoch = self.batch = 0

    def step(self) -> float:
        """Train on the next batch. NumPy's global generator adds noise to the images."""
        order = torch.randperm(len(self._images), generator=torch.Generator().manual_seed(self.epoch))
        rows = order[self.batch * 32 : (self.batch + 1) * 32]
        noise = torch.from_numpy(np.random.normal(scale=0.1, size=(len(rows), 64))).float()
        loss = functional.cross_entropy(self.model(self._images[rows] + noise), self._labels[rows])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.batch += 1
        if self.batch == self.BATCHES:
            self.epoch, self.batch = self.epoch + 1, 0
        return loss.item()

    def weights(self) -> torch.Tensor:
        """All weights, in one vector of their own."""
        return nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()


# What is left out, as a path into the checkpoint.
LEFT_OUT: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "nothing": (),
    "optimizer": (("optimizer",),),
    "scheduler": (("scheduler",),),
    "torch's generator": (("random", "torch"),),
    "NumPy's generator": (("random", "numpy"),),
    "position in the epoch": (("position",),),
    "all but the weights": (("optimizer",), ("scheduler",), ("random",), ("position",)),
}


def resumed(
    checkpoint: Callable[[Training], dict[str, Any]],
    restore: Callable[[Training, dict[str, Any]], None],
    before: int = 60,
    after: int = 40,
) -> list[dict[str, Any]]:
    """Resume a training, each time with something else left out, and compare it with the one that went on.

    What is left out is what a new process begins with. Checkpoints pass through ``torch.save`` and ``torch.load``.
    """
    random_state = RandomState.now()
    with Switches.kept(), tempfile.TemporaryDirectory() as folder:
        torch.set_num_threads(1)
        file = Path(folder) / "checkpoint.pt"
        unbroken = Training()
        for _ in range(before):
            unbroken.step()
        torch.save(checkpoint(unbroken), file)
        losses = [unbroken.step() for _ in range(after)]
        rows = []
        for label, paths in LEFT_OUT.items():
            new = Training(seed=1)
            saved, own = torch.load(file), checkpoint(new)
            for *folders, key in paths:
                functools.reduce(dict.get, folders, saved)[key] = functools.reduce(dict.get, folders, own)[key]
            restore(new, saved)
            differs = [new.step() != loss for loss in losses]
            rows.append(
                {
                    "left out": label,
                    "first other loss": f"step {differs.index(True) + 1}" if any(differs) else "none",
                    "weights equal": _share(new.weights() == unbroken.weights()),
                }
            )
    random_state.restore()
    return rows


# --- what it costs ------------------------------------------------------------------------------------------------


def training_step(deterministic: bool, fill: bool = True, device: str = "cpu") -> Callable[[], torch.Tensor]:
    """A training step of a small GPT; ``fill`` is :attr:`torch.utils.deterministic.fill_uninitialized_memory`."""
    width, layers, batch = scaled(cpu=(128, 2, 8), cuda=(512, 8, 32)) if device == "cuda" else (128, 2, 8)
    model = GPT(width=width, layers=layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(256, (batch, 129)).to(device)
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = fill

    def step() -> torch.Tensor:
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def index_backward(deterministic: bool, device: str = "cpu") -> Callable[[], torch.Tensor]:
    """The gradient of ten weights that are each read 20,000 times or so; on a CPU by 2 threads.

    They are read in the way whose gradient is a race on that device: the other one is none there.
    """
    if device == "cpu":
        torch.set_num_threads(2)
    torch.use_deterministic_algorithms(deterministic)
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(10, (200_000,), generator=generator).to(device)
    upstream = torch.randn(200_000, generator=generator).to(device)
    weight = torch.zeros(10, device=device, requires_grad=True)

    def gradient() -> torch.Tensor:
        read = weight[index] if device == "cpu" else weight.index_select(0, index)
        return torch.autograd.grad(read, weight, upstream)[0]

    return gradient


def agree(one: torch.Tensor, other: torch.Tensor) -> None:
    """Raise AssertionError if two sums of 20,000 numbers differ by more than their order of addition explains."""
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-2)


def different_results(deterministic: bool, device: str = "cpu", calls: int = 20) -> int:
    """How many different gradients so many calls of :func:`index_backward` give, compared to the bit."""
    with Switches.kept():
        gradient = index_backward(deterministic, device)
        return len({digest(gradient()) for _ in range(calls)})
