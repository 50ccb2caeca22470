"""The check of the lesson's exercise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from course_utils.lessons.answers import ask, exercise, recognise, truth
from course_utils.memory.allocator import MIB


def _statistics(asked: int, allocated: int, peak: int, reserved: int, inactive: int, retries: int) -> dict[str, int]:
    return {
        "requested_bytes.all.current": asked * MIB,
        "allocated_bytes.all.current": allocated * MIB,
        "allocated_bytes.all.peak": peak * MIB,
        "reserved_bytes.all.current": reserved * MIB,
        "inactive_split_bytes.all.current": inactive * MIB,
        "num_alloc_retries": retries,
    }


# What tensors asked for, allocated, its peak, reserved, inactive_split, retries; the request, and the cap, in MiB.
_FAILURES = (
    ((600, 600, 700, 980, 380, 3), 300, 1000),  # fragmented: enough is cached
    ((900, 900, 950, 990, 90, 1), 200, 1000),  # the tensors alone do not leave enough
    ((500, 500, 990, 700, 200, 2), 450, 1000),  # enough, if what is cached and what was never taken count together
    ((500, 500, 600, 900, 100, 1), 300, 1000),  # most of the cache lies in segments that are wholly unused
    ((850, 850, 850, 850, 0, 1), 151, 1000),  # not enough, by one MiB
    ((850, 850, 990, 1000, 150, 0), 150, 1000),  # just enough
    ((700, 700, 800, 985, 285, 1), 5, 1000),  # enough, in pieces too small, and a segment of 20 MiB does not fit
    ((209, 228, 228, 228, 0, 1), 11, 230),  # nineteen tensors of 11 MiB in segments of 12: enough without the rests
)


WAYS: Mapping[str | None, Callable[[Mapping[str, int], int, int], bool]] = {
    None: lambda s, r, c: s["requested_bytes.all.current"] + r <= c,
    "allocated": lambda s, r, c: s["allocated_bytes.all.current"] + r <= c,
    "reserved": lambda s, r, c: s["reserved_bytes.all.current"] + r <= c,
    "peak": lambda s, r, c: s["allocated_bytes.all.peak"] + r <= c,
    "cached_alone": lambda s, r, c: s["reserved_bytes.all.current"] - s["allocated_bytes.all.current"] >= r,
    "inactive_alone": lambda s, r, c: s["inactive_split_bytes.all.current"] >= r,
    "turned_round": lambda s, r, c: s["requested_bytes.all.current"] + r > c,
}


@exercise
def check_can_a_setting_help(answer: Any) -> str | None:
    cases = [(_statistics(*numbers), requested * MIB, cap * MIB) for numbers, requested, cap in _FAILURES]
    given = [truth(ask(answer, *case)) for case in cases]
    return recognise(given, WAYS, cases, _says)


def _says(stats: Mapping[str, int], requested: int, cap: int, said: bool, _: bool) -> str:
    asked, allocated, reserved = (stats[f"{kind}_bytes.all.current"] for kind in ("requested", "allocated", "reserved"))
    return (
        f"Tensors asked for {asked // MIB} MiB and hold {allocated // MIB} MiB, {reserved // MIB} MiB are reserved, "
        f"{requested // MIB} MiB more are asked for under a cap of {cap // MIB} MiB: you return {said}."
    )
