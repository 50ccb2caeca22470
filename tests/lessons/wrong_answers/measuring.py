"""Wrong answers to the exercise of `measuring`: one for each hint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any


def timer(
    average: Callable[[Sequence[float]], float], calls=50, warm_up=10, before=True, twice=False, after=True
) -> Any:
    """A timer that averages so many calls after a warm-up; it waits before and after each, or reads the clock twice."""

    def usual_seconds(fn, synchronize, clock):
        for _ in range(warm_up):
            fn()
        times = []
        for _ in range(calls):
            if before:
                synchronize()
            start = clock()
            fn()
            if twice:
                clock()
            if after:
                synchronize()
            times.append(clock() - start)
        return average(times)

    return usual_seconds


def one_block(fn, synchronize, clock):
    for _ in range(10):
        fn()
    synchronize()
    start = clock()
    for _ in range(50):
        fn()
    synchronize()
    return (clock() - start) / 50


WRONG = {
    "no_wait": timer(median, after=False),
    "leftovers": timer(median, before=False),
    "first_calls": timer(fmean, calls=20, warm_up=0),
    "mean": timer(fmean),
}
