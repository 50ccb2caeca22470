"""Checks of the lesson. They run the simulated allocator, so none needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from course_utils.lessons.answers import UNKNOWN, NotRight, ask, exercise, number, recognise, truth
from course_utils.memory.allocator import MIB, round_size, segment_size

# Both sides of every boundary.
_REQUESTS = (1, 512, 100_000, MIB, MIB + 1, 5 * MIB, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 13 * MIB, 20 * MIB, 33 * MIB)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _taken(size: int) -> int:
    return segment_size(round_size(size))


def _segment(size: int, *, small: int = 2 * MIB, middle: int = 20 * MIB, small_up_to: int = MIB) -> int:
    if size <= small_up_to:
        return small
    return middle if size < 10 * MIB else _up(size, 2 * MIB)


_BY_HAND: Mapping[str | None, Callable[[int], int]] = {
    None: _taken,
    "the_request": lambda size: size,
    "the_block": lambda size: _up(size, 512),
    "one_pool": lambda size: _segment(_up(size, 512), small=20 * MIB),
    "always_twenty": lambda size: 2 * MIB if size <= MIB else _up(size, 20 * MIB),
    "exact_when_large": lambda size: _taken(size) if size < 10 * MIB - 512 else _up(size, 512),
    "rounds_too_late": _segment,
    "boundary": lambda size: _segment(_up(size, 512), small_up_to=MIB - 1),
}


@exercise
def check_by_hand(answer: Any) -> str | None:
    """Compares with each rule that people apply, on sizes at every boundary."""
    given = [number(ask(answer, size), "A number of bytes") for size in _REQUESTS]
    key = recognise(given, _BY_HAND, [(size,) for size in _REQUESTS], rel_tol=0)
    if key != UNKNOWN:
        return key
    size, value = next((size, value) for size, value in zip(_REQUESTS, given, strict=True) if value != _taken(size))
    raise NotRight(
        f"For a request of {size} byte{'s' * (size > 1)} ({size / MIB:.6g} MiB) you return {value:.12g} bytes, and "
        f"{_taken(size)} ({_taken(size) // MIB} MiB) are taken from the device."
    )


def _statistics(asked: int, allocated: int, peak: int, reserved: int, inactive: int, retries: int) -> dict[str, int]:
    return {
        "requested_bytes.all.current": asked * MIB,
        "allocated_bytes.all.current": allocated * MIB,
        "allocated_bytes.all.peak": peak * MIB,
        "reserved_bytes.all.current": reserved * MIB,
        "reserved_bytes.all.peak": reserved * MIB,
        "inactive_split_bytes.all.current": inactive * MIB,
        "num_alloc_retries": retries,
        "num_ooms": 1,
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


def _fits(tensors: int, requested: int, cap: int) -> bool:
    return tensors + requested <= cap


_READINGS: Mapping[str | None, Callable[[Mapping[str, int], int, int], bool]] = {
    None: lambda s, r, c: _fits(s["requested_bytes.all.current"], r, c),
    "allocated": lambda s, r, c: _fits(s["allocated_bytes.all.current"], r, c),
    "reserved": lambda s, r, c: _fits(s["reserved_bytes.all.current"], r, c),
    "peak": lambda s, r, c: _fits(s["allocated_bytes.all.peak"], r, c),
    "cached_alone": lambda s, r, c: s["reserved_bytes.all.current"] - s["allocated_bytes.all.current"] >= r,
    "inactive_alone": lambda s, r, c: s["inactive_split_bytes.all.current"] >= r,
    "retries": lambda s, r, c: s["num_alloc_retries"] > 0,
    "turned_round": lambda s, r, c: not _fits(s["requested_bytes.all.current"], r, c),
}


@exercise
def check_can_a_setting_help(answer: Any) -> str | None:
    """Compares with each reading of the statistics, on failures where they differ."""
    cases = [(_statistics(*numbers), requested * MIB, cap * MIB) for numbers, requested, cap in _FAILURES]
    given = [truth(ask(answer, *case)) for case in cases]
    key = recognise(given, _READINGS, cases)
    if key != UNKNOWN:
        return key
    wrong = next(n for n, case in enumerate(cases) if given[n] != _READINGS[None](*case))
    (asked, allocated, _, reserved, *_), requested, cap = _FAILURES[wrong]
    raise NotRight(
        f"Tensors asked for {asked} MiB and hold {allocated} MiB, {reserved} MiB are reserved, {requested} MiB more "
        f"are asked for under a cap of {cap} MiB: you return {given[wrong]}."
    )
