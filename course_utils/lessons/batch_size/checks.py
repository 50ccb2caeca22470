"""Checks of the lesson."""

from __future__ import annotations

import math
from typing import Any

from course_utils.lessons.answers import NotRight, ask, exercise, number

# Peaks of two batches, and a limit, in bytes. Each line has a fixed part.
_MEMORIES = (
    ({8: 700, 16: 1_100}, 4_030),
    ({4: 5_100, 32: 7_900}, 20_450),
    ({1: 1_030, 2: 1_060}, 1_999),
    ({2: 900, 4: 1_000}, 2_000),  # the last sample fits to the byte
)


def _line(peaks: dict[int, int]) -> tuple[float, float]:
    """The bytes of a sample, and the fixed part."""
    (small, low), (large, high) = sorted(peaks.items())
    per_sample = (high - low) / (large - small)
    return per_sample, low - small * per_sample


def _largest(peaks: dict[int, int], limit: int) -> float:
    per_sample, fixed = _line(peaks)
    return (limit - fixed) / per_sample


def _without_the_gap(peaks: dict[int, int], limit: int) -> int:
    """What comes out if the difference of the peaks is taken for one sample."""
    (small, low), (_, high) = sorted(peaks.items())
    return int((limit - (low - small * (high - low))) / (high - low))


@exercise
def check_largest_batch(answer: Any) -> str | None:
    """Compares batches with the line's, and with what comes out without its fixed part."""
    given = [number(ask(answer, dict(peaks), limit), "A batch size") for peaks, limit in _MEMORIES]

    def is_all(way: Any) -> bool:
        return all(math.isclose(value, way(*case), rel_tol=1e-9) for value, case in zip(given, _MEMORIES, strict=True))

    ways = {
        None: lambda peaks, limit: math.floor(_largest(peaks, limit)),
        "not_whole": _largest,
        "below": lambda peaks, limit: math.ceil(_largest(peaks, limit)) - 1,
        "rounds": lambda peaks, limit: round(_largest(peaks, limit)),
        "rounds_up": lambda peaks, limit: math.ceil(_largest(peaks, limit)),
        "in_proportion": lambda peaks, limit: limit * max(peaks) // peaks[max(peaks)],
        "in_proportion_small": lambda peaks, limit: limit * min(peaks) // peaks[min(peaks)],
        "no_gap": _without_the_gap,
        "no_fixed_part": lambda peaks, limit: int(limit / _line(peaks)[0]),
    }
    for key, way in ways.items():
        if is_all(way):
            return "in_proportion" if key == "in_proportion_small" else key
    peaks, limit = next(
        case for value, case in zip(given, _MEMORIES, strict=True) if value != math.floor(_largest(*case))
    )
    raise NotRight(
        f"For the peaks {peaks} and {limit:,} bytes you return {given[_MEMORIES.index((peaks, limit))]:g}; "
        f"{math.floor(_largest(peaks, limit))} fit. How many bytes does one more sample take, and what is there "
        "without any?"
    )


# Samples a second and samples to the target, by batch size. Everywhere the best by time is not the best by one of them.
_RUNS = (
    ({16: 1_000, 64: 3_000, 256: 4_000}, {16: 10_000, 64: 12_000, 256: 40_000}),
    ({8: 500, 32: 1_900, 128: 2_000, 512: 2_100}, {8: 9_000, 32: 20_000, 128: 30_000, 512: 90_000}),
    ({2: 90, 4: 100, 8: 110}, {2: 1_000, 4: 1_300, 8: 2_600}),
    ({32: 100, 128: 390, 512: 900}, {32: 1_000, 128: 1_100, 512: 1_300}),
    ({256: 100, 512: 190}, {256: 1_000, 512: 950}),
)


@exercise
def check_fastest(answer: Any) -> str | None:
    """Compares the choices with those by speed, by samples and by steps alone."""
    given = [number(ask(answer, dict(speeds), dict(samples)), "A batch size") for speeds, samples in _RUNS]
    ways = {
        None: lambda speeds, samples: min(speeds, key=lambda batch: samples[batch] / speeds[batch]),
        "by_speed": lambda speeds, samples: max(speeds, key=speeds.__getitem__),
        "by_samples": lambda speeds, samples: min(samples, key=samples.__getitem__),
        "by_steps": lambda speeds, samples: min(samples, key=lambda batch: samples[batch] / batch),
        "product": lambda speeds, samples: min(samples, key=lambda batch: samples[batch] * speeds[batch]),
        "upside_down": lambda speeds, samples: max(speeds, key=lambda batch: samples[batch] / speeds[batch]),
    }
    for key, way in ways.items():
        if given == [way(*case) for case in _RUNS]:
            return key
    right = [ways[None](*case) for case in _RUNS]
    place = next(at for at, (value, best) in enumerate(zip(given, right, strict=True)) if value != best)
    raise NotRight(
        f"For {_RUNS[place][0]} samples a second and {_RUNS[place][1]} samples to the target you return "
        f"{given[place]:g}; a batch of {right[place]} is there first. How many seconds does each take?"
    )
