"""Checks of lesson 21. All run on the CPU, in this process."""

from __future__ import annotations

import copy
import itertools
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


_GRID = list(itertools.product((0, 1), (0, 1, 2), (0, 1, 2, 3)))


@exercise
def check_noise(noise: Any) -> str | None:
    """Asks for each sample's noise in two orders, and compares samples, epochs and seeds."""
    there, back = {}, {}
    for key in _GRID:
        there[key] = _noise(noise, *key)
    for key in reversed(_GRID):
        back[key] = _noise(noise, *key)
    if there != back:
        return "order"
    if len(set(there.values())) == len(_GRID):
        return None
    if len({there[0, 0, index] for index in range(4)}) == 1:
        return "same_for_all"
    if all(there[0, 0, index] == there[0, 1, index] for index in range(4)):
        return "each_epoch"
    return "collides"


def _noise(noise: Any, seed: int, epoch: int, index: int) -> tuple[float, ...]:
    value = np.asarray(ask(noise, seed, epoch, index), dtype=float)
    if value.shape != (4,):
        raise NotRight(f"Return four numbers; you return an array of shape {value.shape}.")
    return tuple(value.tolist())


class _Label(str):
    """A label with a hash of its own: it stands for a process with another PYTHONHASHSEED."""

    __slots__ = ("number",)

    def __new__(cls, text: str, number: int) -> _Label:
        label = super().__new__(cls, text)
        label.number = number
        return label

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)


_NAMES = ("dog", "cat", "dog", "owl", "ant", "cat", "bee")


@exercise
def check_class_index(class_index: Any) -> str | None:
    """Asks with several hashes, and with the files in another order."""
    expected = {"ant": 0, "bee": 1, "cat": 2, "dog": 3, "owl": 4}
    found = []
    for names in (_NAMES, _NAMES[::-1]):
        for factor in (1, 3, 5, 7):
            order = {name: place * factor % 8 for place, name in enumerate(expected)}
            answer = ask(class_index, [_Label(name, order[name]) for name in names])
            if not isinstance(answer, dict):
                raise NotRight(f"Return a dictionary; you return {type(answer).__name__}.")
            found.append({str(name): number for name, number in answer.items()})
    if any(sorted(each.values()) != list(range(len(expected))) for each in found):
        return "gaps"
    if all(each == found[0] for each in found):
        return None
    return "set_order" if any(each != found[0] for each in found[:4]) else "first_seen"
