"""The check of the lesson: a sample's noise, asked for in two orders and compared between samples, epochs and seeds."""

from __future__ import annotations

import itertools
import random
from typing import Any
from unittest import mock

import numpy as np
import torch

from course_utils.lessons.answers import NotRight, ask, exercise
from course_utils.measure.fresh import RandomState

_INDICES = [0, 1, 2, 3, 10, 11, 31, 100, 1000, 1024, 10_000, 50_000, 60_000, 65_536, 100_000, 1_000_000, 1_000_001]
_GRID = [*itertools.product((0, 1, 11), (0, 1, 2, 10, 11, 111), _INDICES)]


@exercise
def check_noise(noise: Any) -> str | None:
    before, untouched = RandomState.now(), _next_numbers()
    before.restore()
    try:
        there = {key: _noise(noise, *key) for key in _GRID}
        moves = _next_numbers() != untouched
        getattr(noise, "cache_clear", bool)()  # another process has no cache yet
        back = {key: _noise(noise, *key) for key in reversed(_GRID)}
        with mock.patch("builtins.hash", _hash_elsewhere):
            elsewhere = _noise(noise, *_GRID[-1])
    finally:
        before.restore()
    if there != back:
        return "order"
    if moves:
        return "global"
    if len(set(there.values())) == len(_GRID):
        if elsewhere != back[_GRID[-1]] or "__hash__" in getattr(getattr(noise, "__code__", None), "co_names", ()):
            return "hash"
        rare = min(len(set(numbers)) for numbers in zip(*there.values(), strict=True))
        return "constant" if rare < len(_GRID) / 2 else None
    if all(value == there[seed, epoch, 0] for (seed, epoch, _), value in there.items()):
        return "same_for_all"
    if all(value == there[seed, 0, index] for (seed, _, index), value in there.items()):
        return "each_epoch"
    return "collides"


def _hash_elsewhere(value: Any, here: Any = hash) -> int:
    """`hash` in another process: a text has another one there, and so has what holds a text."""
    return here(value) + ("'" in repr(value))


def _next_numbers() -> list[float]:
    return [random.random(), np.random.rand(), torch.rand(1).item()]


def _noise(noise: Any, *place: int) -> tuple[float, ...]:
    value = np.asarray(ask(noise, *place), dtype=float)
    if value.shape != (4,):
        raise NotRight(f"Return four numbers; you return an array of shape {value.shape}.")
    return tuple(value.tolist())
