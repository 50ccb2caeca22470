"""Does an untimed call before each timing matter, and up to which length of a call?

``compare`` lets each timing of few calls follow a call that is not timed, so that code finds its own data in the cache
and not what the case before it left behind. For long calls that doubles the time of a comparison. Here functions of
several lengths are timed after a writer has emptied the caches, in turn with and without such a call before. The worst
kind reads an eighth of the last-level cache again and again; the usual kind is a matrix product.

    python benchmarks/preceding_calls.py [--rounds 40]

It prints how much longer the first call takes, with its 99% interval.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import torch

from course_utils.measure.devices import Device
from course_utils.records import paired
from course_utils.show.formats import format_percent, format_seconds

LENGTHS_S = (0.001, 0.005, 0.02, 0.05, 0.1)


def kinds(device: Device) -> dict[str, Callable[[int], Any]]:
    """Functions that do so many units of work, each well under a millisecond, from the beginning."""
    parts = torch.ones(device.cache_bytes() // 4 // 8).split(2**16)
    a = torch.randn(256, 256)
    return {
        "data in the cache": lambda units: [part.sum() for part in itertools.islice(itertools.cycle(parts), units)],
        "matrix product": lambda units: [a @ a for _ in range(units)][-1],
    }


def first_call_ratios(work: Callable[[], Any], rounds: int, device: Device) -> list[float]:
    """Logarithms of the time right after the caches were emptied over the time after one more call."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for preceded in random.sample((True, False), 2):
            device.flush_cache()
            if preceded:
                work()
            seconds[preceded].append(device.sample(work, 1, "warm").elapsed_s)
    return paired.log_ratios(seconds[False], seconds[True])


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    device = Device()
    for kind, unit in kinds(device).items():
        unit_s = min(device.sample(functools.partial(unit, 50), 1, "warm").elapsed_s / 50 for _ in range(20))
        for length_s in LENGTHS_S:
            work = functools.partial(unit, max(1, round(length_s / unit_s)))
            logs = first_call_ratios(work, rounds, device)
            low, high = paired.ratio_interval(logs).ends
            longer = math.exp(statistics.median(logs)) - 1
            print(
                f"{kind}, {format_seconds(length_s)}: without a call before it takes {format_percent(longer)} longer "
                f"({format_percent(low - 1)} to {format_percent(high - 1)})"
            )


if __name__ == "__main__":
    main()
