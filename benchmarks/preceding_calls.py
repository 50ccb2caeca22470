"""From which length on does a timing need no untimed call before it?

``compare`` lets the timing of a short call follow a call that is not timed, so that code finds its own data in the
cache and not what the case before it left behind. For long calls that would double the time of a comparison. Here
functions of several lengths are timed after a writer has emptied the caches, in turn with and without such a call
before. The worst kind reads an eighth of the last-level cache again and again; the usual kind is a matrix product.

    python benchmarks/preceding_calls.py [--rounds 40] [--reference]

It prints how much longer the first call takes, with its 99% interval; ``--reference`` keeps the raw times as this
machine's record in ``benchmarks/records/preceding_calls``.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from course_utils.measure.devices import Device
from course_utils.measure.machine import environment
from course_utils.records import paired
from course_utils.records.paired import Interval
from course_utils.records.result import compact
from course_utils.records.store import write_json
from course_utils.show.formats import format_percent, format_seconds

LENGTHS_S = (0.001, 0.005, 0.02, 0.05, 0.1)
RECORDS = Path(__file__).parent / "records" / "preceding_calls"


@dataclass(frozen=True)
class FirstCalls:
    """Seconds of calls of one kind and length, each right after the caches were emptied, and each after one more."""

    kind: str
    length_s: float
    first_s: Sequence[float]
    next_s: Sequence[float]

    @property
    def longer(self) -> float:
        """How much longer the first call takes: 0.1 is 10%."""
        return math.exp(statistics.median(paired.log_ratios(self.first_s, self.next_s))) - 1

    @property
    def interval(self) -> Interval:
        """Its 99% interval, as a ratio."""
        return paired.ratio_interval(paired.log_ratios(self.first_s, self.next_s))

    def __str__(self) -> str:
        low, high = (format_percent(end - 1) for end in self.interval.ends)
        return f"{self.kind}, {format_seconds(self.length_s)}: {format_percent(self.longer)} longer ({low} to {high})"


def kinds(device: Device) -> dict[str, Callable[[int], Any]]:
    """Functions that do so many units of work, each well under a millisecond, from the beginning."""
    parts = torch.ones(device.cache_bytes() // 4 // 8).split(2**16)
    a = torch.randn(256, 256)
    return {
        "data in the cache": lambda units: [part.sum() for part in itertools.islice(itertools.cycle(parts), units)],
        "matrix product": lambda units: [a @ a for _ in range(units)][-1],
    }


def first_calls(kind: str, unit: Callable[[int], Any], length_s: float, rounds: int, device: Device) -> FirstCalls:
    """Time calls of about a length, with and without a call before."""
    unit_s = min(device.sample(functools.partial(unit, 50), 1, "warm").elapsed_s / 50 for _ in range(20))
    work = functools.partial(unit, max(1, round(length_s / unit_s)))
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for preceded in random.sample((True, False), 2):
            device.flush_cache()
            if preceded:
                work()
            seconds[preceded].append(device.sample(work, 1, "warm").elapsed_s)
    return FirstCalls(kind, length_s, seconds[False], seconds[True])


def load(path: Path) -> list[FirstCalls]:
    """A machine's record."""
    return [FirstCalls(**row) for row in json.loads(path.read_text(encoding="utf-8"))["first_calls"]]


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--reference", action="store_true", help="keep the times as this machine's record")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = Device()
    rows = []
    for (kind, unit), length_s in itertools.product(kinds(device).items(), LENGTHS_S):
        rows.append(first_calls(kind, unit, length_s, options.rounds, device))
        print(rows[-1], flush=True)
    if options.reference:
        here = environment()
        record = {"environment": here.to_record(), "first_calls": [compact(asdict(row)) for row in rows]}
        write_json(RECORDS / f"{here.machine}.json", record)


if __name__ == "__main__":
    main()
