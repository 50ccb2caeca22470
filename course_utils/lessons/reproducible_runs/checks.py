"""The check of the lesson: a sample's noise, asked for in two orders and compared between samples, epochs and seeds."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import torch

from course_utils.lessons.answers import NotRight, ask, exercise
from course_utils.measure.fresh import RandomState

_GRID = [*itertools.product((0, 1, 11), (0, 1, 2, 10, 11, 111), (0, 1, 2, 3, 10, 11, 100, 1_000_000, 1_000_001))]


@exercise
def check_noise(noise: Any) -> str | None:
    before = RandomState.now()
    untouched = _next_numbers()
    before.restore()
    try:
        there = {key: _noise(noise, *key) for key in _GRID}
        moves = _next_numbers() != untouched
        back = {key: _noise(noise, *key) for key in reversed(_GRID)}
    finally:
        before.restore()
    if there != back:
        return "order"
    if moves:
        return "global"
    if len(set(there.values())) == len(_GRID):
        return "hash" if "hash" in getattr(getattr(noise, "__code__", None), "co_names", ()) else None
    if all(value == there[seed, epoch, 0] for (seed, epoch, _), value in there.items()):
        return "same_for_all"
    if all(value == there[seed, 0, index] for (seed, _, index), value in there.items()):
        return "each_epoch"
    return "collides"


def _next_numbers() -> list[float]:
    return [random.random(), np.random.rand(), torch.rand(1).item()]


def _noise(noise: Any, *place: int) -> tuple[float, ...]:
    value = np.asarray(ask(noise, *place), dtype=float)
    if value.shape != (4,):
        raise NotRight(f"Return four numbers; you return an array of shape {value.shape}.")
    return tuple(value.tolist())
