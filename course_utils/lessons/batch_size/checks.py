"""The check of the lesson's exercise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_utils.lessons.answers import NotRight, ask, exercise, number

# Samples needed and samples a second by batch size; the peaks of two sizes, and a limit, in bytes.
_RUNS = (
    ({16: 10, 64: 12, 256: 14, 1024: 30}, {16: 1, 64: 3, 256: 5, 1024: 50}, {16: 660, 64: 840}, 1_600),
    ({8: 9, 32: 20, 128: 60, 512: 70}, {8: 5, 32: 19, 128: 40, 512: 90}, {32: 1_320, 8: 1_080}, 2_400),
    ({2: 100, 4: 220, 8: 260, 16: 270}, {2: 90, 4: 140, 8: 130, 16: 900}, {2: 540, 4: 580}, 660),
    ({32: 100, 128: 110, 512: 130}, {32: 10, 128: 39, 512: 90}, {128: 512, 32: 128}, 512),  # to the byte
)


def _fitting(run: Any) -> list[int]:
    (small, low), (large, high) = sorted(run[2].items())
    return [batch for batch in run[0] if low + (batch - small) * (high - low) / (large - small) <= run[3]]


def _first(run: Any, batches: list[int]) -> int:
    return min(batches, key=lambda batch: run[0][batch] / run[1][batch])


_WAYS: dict[str | None, Callable[[Any], int]] = {
    None: lambda run: _first(run, _fitting(run)),
    "largest": lambda run: max(_fitting(run)),
    "by_speed": lambda run: max(_fitting(run), key=run[1].__getitem__),
    "by_samples": lambda run: min(_fitting(run), key=run[0].__getitem__),
    "too_large": lambda run: _first(run, list(run[0])),
    "in_proportion": lambda run: _first(run, [b for b in run[0] if b * max(run[2].values()) / max(run[2]) <= run[3]]),
}


@exercise
def check_first(answer: Any) -> str | None:
    given = [number(ask(answer, *map(dict, run[:3]), run[3]), "A batch size") for run in _RUNS]
    for key, way in _WAYS.items():
        if given == [way(run) for run in _RUNS]:
            return key
    run, said = next((run, said) for run, said in zip(_RUNS, given, strict=True) if said != _WAYS[None](run))
    words = "For needed={}, per_s={}, peaks={} and limit={} you return".format(*run)
    raise NotRight(f"{words} {said:g}; {_WAYS[None](run)} is there first. Which fit, and how long does each take?")
