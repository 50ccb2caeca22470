"""The check of the lesson's exercise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_utils.lessons.answers import ask, exercise, number, recognise

# Samples needed and samples a second by batch size; the peaks of two sizes, and a limit, in bytes.
_RUNS = (
    ({16: 10, 64: 12, 256: 14, 1024: 30}, {16: 1, 64: 3, 256: 5, 1024: 50}, {16: 660, 64: 840}, 1_600),
    ({8: 9, 32: 20, 128: 60, 512: 70}, {8: 5, 32: 19, 128: 40, 512: 90}, {32: 1_320, 8: 1_080}, 2_400),
    ({2: 100, 4: 220, 8: 260, 16: 270}, {2: 90, 4: 140, 8: 130, 16: 900}, {2: 540, 4: 580}, 660),
    ({32: 100, 128: 110, 512: 130}, {32: 10, 128: 39, 512: 90}, {128: 512, 32: 128}, 512),  # to the byte
)


def _fitting(peaks: dict[int, int], limit: int, batches: Any) -> list[int]:
    (small, low), (large, high) = sorted(peaks.items())
    return [batch for batch in batches if low + (batch - small) * (high - low) / (large - small) <= limit]


def _by_largest(peaks: dict[int, int], limit: int, batches: Any) -> list[int]:
    return [batch for batch in batches if batch * max(peaks.values()) / max(peaks) <= limit]


def _first(needed: dict[int, int], per_s: dict[int, int], batches: Any) -> int:
    return min(batches, key=lambda batch: needed[batch] / per_s[batch])


WAYS: dict[str | None, Callable[..., int]] = {
    None: lambda needed, per_s, peaks, limit: _first(needed, per_s, _fitting(peaks, limit, needed)),
    "largest": lambda needed, per_s, peaks, limit: max(_fitting(peaks, limit, needed)),
    "by_speed": lambda needed, per_s, peaks, limit: max(_fitting(peaks, limit, needed), key=per_s.get),
    "by_samples": lambda needed, per_s, peaks, limit: min(_fitting(peaks, limit, needed), key=needed.get),
    "too_large": lambda needed, per_s, peaks, limit: _first(needed, per_s, needed),
    "in_proportion": lambda needed, per_s, peaks, limit: _first(needed, per_s, _by_largest(peaks, limit, needed)),
}


@exercise
def check_first(answer: Any) -> str | None:
    given = [number(ask(answer, *map(dict, run[:3]), run[3]), "A batch size") for run in _RUNS]
    says = "For needed={}, per_s={}, peaks={} and limit={} you return {:g}; {} is there first. Time each that fits."
    return recognise(given, WAYS, _RUNS, says.format)
