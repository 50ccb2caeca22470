"""Checks of the lesson. All run on the CPU, in this process."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from course_utils.lessons.answers import NotRight, ask, effect, exercise
from course_utils.lessons.reproducible_runs.cases import Training
from course_utils.measure.fresh import RandomState, Switches


@exercise
def check_restore(restore: Any) -> str | None:
    """Restores a new training from a complete checkpoint, and compares it with the one that went on."""
    random_state = RandomState.now()
    with Switches.kept():
        torch.set_num_threads(1)
        try:
            return _goes_on(restore)
        finally:
            random_state.restore()


def _goes_on(restore: Any) -> str | None:
    unbroken = Training()
    for _ in range(60):
        unbroken.step()
    state = copy.deepcopy(complete(unbroken))
    losses = [unbroken.step() for _ in range(20)]
    new = Training(seed=1)
    effect(restore, new, copy.deepcopy(state))
    if not all(torch.equal(new.model.state_dict()[name], value) for name, value in state["model"].items()):
        raise NotRight("The weights are not those of the checkpoint.")
    if (new.epoch, new.batch) != (state["epoch"], state["batch"]):
        return "position"
    if not new.optimizer.state_dict()["state"]:
        return "optimizer"
    if new.scheduler.last_epoch != state["scheduler"]["last_epoch"]:
        return "scheduler"
    ours = [new.step() for _ in losses]
    if ours == losses and torch.equal(new.weights(), unbroken.weights()):
        return None
    # With a seed in place of a state, the generators stand where the training began.
    if ours[0] != losses[0]:
        return "generators"
    raise NotRight("The first loss is right, and a later one is not. What changes between the steps?")


def complete(training: Training) -> dict[str, Any]:
    """The checkpoint of exercise 1."""
    return {
        **{part: getattr(training, part).state_dict() for part in ("model", "optimizer", "scheduler")},
        "epoch": training.epoch,
        "batch": training.batch,
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),
    }


_INDICES = (0, 1, 2, 3, 10, 11, 100, 1_000, 10_000, 100_000, 1_000_000, 1_000_001)
_GRID = list(itertools.product((0, 1, 11), (0, 1, 2, 10, 11, 111), _INDICES))


@exercise
def check_noise(noise: Any) -> str | None:
    """Asks for each sample's noise in two orders and with other hashes, and compares samples, epochs and seeds."""
    random_state = RandomState.now()
    untouched = _next_numbers()
    random_state.restore()
    try:
        there = {key: _noise(noise, *key) for key in _GRID}
        moves = _next_numbers() != untouched
        back = {key: _noise(noise, *key) for key in reversed(_GRID)}
        with _hashes_of_another_process(noise):
            elsewhere = {key: _noise(noise, *key) for key in _GRID}
    finally:
        random_state.restore()
    if there != back:
        return "order"
    if moves:
        return "global"
    if there != elsewhere:
        return "hash"
    if len(set(there.values())) == len(_GRID):
        return None
    if all(value == there[seed, epoch, 0] for (seed, epoch, _), value in there.items()):
        return "same_for_all"
    if all(value == there[seed, 0, index] for (seed, _, index), value in there.items()):
        return "each_epoch"
    return "collides"


def _next_numbers() -> list[float]:
    return [random.random(), np.random.rand(), torch.rand(1).item()]


@contextlib.contextmanager
def _hashes_of_another_process(answer: Any) -> Iterator[None]:
    """``hash()``, as the answer's module sees it, gives other numbers for text: a new process does so."""
    names = getattr(inspect.unwrap(answer), "__globals__", {})
    if "hash" in names:  # one of the learner's own
        yield
        return
    names["hash"] = lambda value: hash(("another process", value)) if _has_text(value) else hash(value)
    try:
        yield
    finally:
        names.pop("hash", None)


def _has_text(value: Any) -> bool:
    return isinstance(value, str | bytes) or (isinstance(value, tuple) and any(map(_has_text, value)))


def _noise(noise: Any, seed: int, epoch: int, index: int) -> tuple[float, ...]:
    value = np.asarray(ask(noise, seed, epoch, index), dtype=float)
    if value.shape != (4,):
        raise NotRight(f"Return four numbers; you return an array of shape {value.shape}.")
    return tuple(value.tolist())
