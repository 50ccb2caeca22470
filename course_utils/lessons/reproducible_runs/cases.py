"""What the lesson runs: a training to resume, a last bit that grows, causes of other numbers, steps with a price."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.utils.deterministic
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from course_utils.materials.digits import load_digits_split
from course_utils.materials.models import GPT, MLP
from course_utils.measure.fresh import Switches
from course_utils.measure.machine import course_size, scaled


class Training:
    """What a checkpoint has to hold: ``parts``, random states, and ``place``: the epoch, which orders it, and batch."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        np.random.seed(seed)
        self._data = load_digits_split()
        hidden = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2)
        model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(32, 10))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.8)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
        self.parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "averaged weights": average}
        self.place = [0, 0]

    def step(self) -> float:
        """Train on the next batch; returns the loss."""
        model, optimizer, scheduler, average = self.parts.values()
        (epoch, batch), images = self.place, self._data.train_images
        rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch)).split(32)[batch]
        noisy = images[rows] + torch.from_numpy(np.random.normal(scale=0.1, size=images[rows].shape)).float()
        loss = cross_entropy(model.train()(noisy), self._data.train_labels[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        average.update_parameters(model)
        self.place = [epoch, batch + 1] if batch + 1 < len(images) // 32 else [epoch + 1, 0]
        return loss.item()

    @torch.no_grad()
    def validate(self) -> list[float]:
        """The losses on the test images: of the model, and of its averaged weights."""
        both, images, labels = ("model", "averaged weights"), self._data.test_images, self._data.test_labels
        return [cross_entropy(self.parts[name].eval()(images), labels).item() for name in both]


def _state(training: Training) -> dict[str, Any]:
    """Everything, under the names by which it is left out; BatchNorm's averages apart from the weights."""
    parts = {f"the {name}": part.state_dict() for name, part in training.parts.items()}
    buffers = {name: parts["the model"].pop(name) for name, _ in training.parts["model"].named_buffers()}
    states = {"torch's random state": torch.get_rng_state(), "NumPy's random state": np.random.get_state()}
    return copy.deepcopy(parts | states | {"the place in the epoch": training.place, "BatchNorm's averages": buffers})


def resumed() -> tuple[list[dict[str, Any]], dict[str, list[float]]]:
    """How a training goes on with one thing after the other left out: rows, and losses minus the unbroken ones."""
    before, after = (10, 6) if course_size() == "test" else (60, 40)
    rows, lines = [], {}
    unbroken = Training()
    for _ in range(before):
        unbroken.step()
    saved = _state(unbroken)
    at_once, losses, at_the_end = unbroken.validate(), [unbroken.step() for _ in range(after)], unbroken.validate()
    within = "the optimizer's averages"
    for left_out in ("nothing", *[*saved][4:7], *[*saved][1:3], *[*saved][7:], "the averaged weights", within):
        new = Training(seed=1)
        state = copy.deepcopy(saved)  # an optimizer goes on with the very tensors that it loads
        state.update({name: its for name, its in _state(new).items() if name == left_out})
        state["the model"] |= state["BatchNorm's averages"]
        state["the optimizer"] |= {"state": {}} if left_out == within else {}
        for name, part in new.parts.items():
            part.load_state_dict(state[f"the {name}"])
        new.place = state["the place in the epoch"]
        torch.set_rng_state(state["torch's random state"])
        np.random.set_state(state["NumPy's random state"])
        found, lines[left_out] = new.validate(), [new.step() - loss for loss in losses]
        first = next((f"step {step}" for step, off in enumerate(lines[left_out], 1) if off), "never")
        off = [ours / loss - 1 for ours, loss in zip(found + new.validate(), at_once + at_the_end, strict=True)]
        off = {"validation at once": max(off[:2], key=abs), "and at the end": max(off[2:], key=abs)}
        rows.append({"left out": left_out, "first other loss": first, **off})
    return rows, lines


def _test_loss(learning_rate: float, seed: int, nudged: bool, steps: int) -> float:
    digits = load_digits_split()
    torch.manual_seed(seed)
    model = MLP((64, 64, 64, 64, 10))
    if nudged:
        weight = model[0].weight.data
        weight[0, 20] = torch.nextafter(weight[0, 20], torch.tensor(float("inf")))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    for _ in range(steps):
        batch = torch.randint(len(digits.train_images), (32,))
        cross_entropy(model(digits.train_images[batch].flatten(1)), digits.train_labels[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return cross_entropy(model(digits.test_images.flatten(1)), digits.test_labels).item()


def one_bit() -> list[dict[str, Any]]:
    """How far one changed bit moves the test loss, and how far another seed does: medians."""
    rows = []
    steps, seeds = (30, 2) if course_size() == "test" else (300, 7)
    for rate in (0.03, 0.1):
        pairs = [[_test_loss(rate, seed, nudged, steps) for nudged in (False, True)] for seed in range(seeds)]
        away = median(abs(a - b) for (a, _), (b, _) in itertools.combinations(pairs, 2))
        rows.append({"learning rate": str(rate), "one bit": median(abs(a - b) for a, b in pairs), "another seed": away})
    return rows


def _look_at_a_loader(remedied: bool) -> list[Any]:
    alone = torch.rand(8).tolist()
    torch.manual_seed(0)
    list(DataLoader(range(8), generator=torch.Generator() if remedied else None))  # it shuffles nothing
    return [alone, torch.rand(8).tolist()]


def _sums(threads: int) -> list[float]:
    torch.set_num_threads(threads)
    return [row.sum().item() for row in torch.rand(8, 2**20, generator=torch.Generator().manual_seed(0))]


def _race(remedied: bool) -> list[Any]:
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(remedied)
    gradient = index_gradient("cpu")  # two threads add to it in the order of arrival
    return [gradient().tolist() for _ in range(20 if course_size() == "test" else 200)]


def _draws(own: bool, rows: list[int]) -> torch.Tensor:
    return torch.rand(4, generator=torch.Generator().manual_seed(rows[0]) if own else None)


def _drawn_by(workers: int, own: bool) -> list[list[float]]:
    torch.manual_seed(0)
    loader = DataLoader(range(8), num_workers=workers, collate_fn=functools.partial(_draws, own))
    return [each.tolist() for each in loader]


def _batch_size(remedied: bool) -> list[Any]:
    layer, x = nn.Linear(512, 512), torch.randn(64, 512)
    alone = torch.cat([x[:1], torch.zeros(63, 512)]) if remedied else x[:1]
    return [layer(x)[0].tolist(), layer(alone)[0].tolist()]


def causes() -> list[dict[str, Any]]:
    """Run each cause, left alone and with its remedy; say whether the results were equal to the bit."""
    runs: dict[tuple[str, str], Callable[[bool], list[Any]]] = {
        ("a look at a loader", "generator= of its own"): _look_at_a_loader,
        ("2 threads for 1", "set_num_threads"): lambda on: [_sums(1), _sums(1 if on else 2)],
        ("a race of 2 threads", "deterministic algorithms"): _race,
        ("2 workers for 1", "a seed for each sample"): lambda on: [_drawn_by(1, on), _drawn_by(2, on)],
        ("1 row for 64", "pad the batch"): _batch_size,
    }
    rows = []
    for (cause, remedy), run in runs.items():
        found = []
        for remedied in (False, True):
            with Switches.kept():
                torch.set_num_threads(1)
                torch.manual_seed(0)
                results = run(remedied)
            found.append("same" if all(result == results[0] for result in results) else "differs")
        rows.append({"cause": cause, "left alone": found[0], "remedy": remedy, "with it": found[1]})
    return rows


def index_gradient(device: str) -> Callable[[], torch.Tensor]:
    """The gradient of ten weights that are each read 20,000 times or so, in the way that is a race on that device."""
    index, upstream = torch.randint(10, (200_000,)).to(device), torch.randn(200_000).to(device)
    weight = torch.zeros(10, device=device, requires_grad=True)
    read = weight[index] if device == "cpu" else weight.index_select(0, index)
    return lambda: torch.autograd.grad(read, weight, upstream, retain_graph=True)[0]


def gpt_step(deterministic: bool = True, fill: bool = True) -> Callable[[], torch.Tensor]:
    """A training step in bfloat16; ``fill`` is :attr:`torch.utils.deterministic.fill_uninitialized_memory`."""
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = fill
    width, layers, batch = scaled(cpu=(64, 1, 2), cuda=(768, 12, 32))
    model = GPT(width=width, layers=layers).to("cuda", torch.bfloat16)
    tokens = torch.randint(256, (batch, 257)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> torch.Tensor:
        loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
