"""Checks of lesson 11. They run the simulated allocator, so none needs a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import numpy as np

from course_utils.lessons.answers import NotRight, ask, exercise
from course_utils.memory.allocator import (
    MIB,
    Allocate,
    AllocatorOptions,
    Event,
    Free,
    round_size,
    segment_size,
    simulate_allocator,
)

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


@exercise(
    "By hand",
    right="First the size is rounded to a block, then the block decides which segment is taken from the device.",
    hints={
        "the_request": (
            "You return what was asked for. The device is asked for a whole segment, and the segment is larger than "
            "most requests. Which sizes can a segment have?"
        ),
        "the_block": (
            "You round to 512 bytes. That is the block. How large is the segment that is taken for it when the cache "
            "is empty?"
        ),
        "one_pool": (
            "Your small requests take as much as the middle ones. They have a pool of their own: how large are its "
            "segments?"
        ),
        "always_twenty": (
            "From 10 MiB on, segments no longer come in steps of 20 MiB. By what are these sizes rounded up?"
        ),
        "exact_when_large": "Small and middle requests are right. A large one is rounded up as well. To what?",
        "rounds_too_late": (
            "Look at a request one byte below 10 MiB. It is rounded to a multiple of 512 first. On which side of the "
            "boundary is it then?"
        ),
        "boundary": "A request of exactly 1 MiB: does it still belong to the small pool? Look at the rules once more.",
    },
)
def check_by_hand(answer: Any) -> str | None:
    """Compares with each rule that people apply, on sizes at every boundary."""
    given = [ask(answer, size) for size in _REQUESTS]
    for value in given:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise NotRight(f"A number of bytes is asked for, and you return {type(value).__name__}.")
    for key, rule in _BY_HAND.items():
        if given == [rule(size) for size in _REQUESTS]:
            return key
    for size, value in zip(_REQUESTS, given, strict=True):
        if value != _taken(size):
            huge = abs(value) > 2**63
            told = math.copysign(math.inf, value > 0 or -1) if huge else float(value)
            raise NotRight(
                f"For a request of {size} byte{'s' * (size > 1)} ({size / MIB:.6g} MiB) you return "
                f"{told:.12g} bytes, and "
                f"{_taken(size)} ({_taken(size) // MIB} MiB) are taken from the device."
            )
    return None


def _growing_batches() -> tuple[Event, ...]:
    """Six steps of a training whose batches grow and shrink; the optimizer's state is made in the first one."""
    events: list[Event] = [Allocate("weights", 150 * MIB)]
    for number, unit in enumerate((31, 54, 42, 67, 81, 90)):
        parts = {"hidden": 1.0, "wide": 2.5, "logits": 1.6, "gradient": 1.3}
        names = {f"{what}, step {number + 1}": int(share * unit * MIB) for what, share in parts.items()}
        events += [Allocate(name, size) for name, size in names.items()]
        if number == 0:
            events.append(Allocate("first moments", 37 * MIB))
        events += [Free(name) for name in names]
        if number == 0:
            events.append(Allocate("second moments", 37 * MIB))
    return tuple(events)


GROWING_BATCHES = _growing_batches()
"""The events of exercise 2: 802 MiB in use at most."""
CAP_BYTES = 818 * MIB
"""The most that the process of exercise 2 may take from the device."""


@exercise(
    "Make it fit",
    right="Every request is met under the cap. Whether a setting fits is decided by the trace: run it, do not guess.",
    hints={
        "nothing_changed": (
            "That leaves the allocator as it was: cached segments of the early steps are too short for the later "
            "ones. Which option lets a segment grow?"
        ),
        "rounding": (
            "Rounding sizes up makes blocks easier to use again, and it makes tensors larger. Under this cap there "
            "is no room for larger tensors. Which option leaves the sizes alone?"
        ),
        "splitting": (
            "Large blocks that may not be split serve only requests of nearly their own size, so others need new "
            "segments. Under this number it does not fit. What else changes how segments are made?"
        ),
        "collection": (
            "Giving cached segments back earlier does not help here: they are given back anyhow when the cap is "
            "reached. What is left over lies in segments that are partly in use. How could those be of use?"
        ),
        "raised_the_cap": (
            "The cap is part of the task: per_process_memory_fraction is where a cap comes from, and it does not make "
            "the GPU larger. Leave it out, and change how the allocator uses what it has."
        ),
        "misspelt_truth": "PyTorch wants True or False with a capital letter, and refuses any other spelling.",
    },
)
def check_make_it_fit(answer: Any) -> str | None:
    """Simulates the growing batches under the cap, with the learner's options."""
    if not isinstance(answer, str):
        raise NotRight(f"The text that PYTORCH_ALLOC_CONF takes is asked for, and this is {type(answer).__name__}.")
    try:
        options = AllocatorOptions.parse(answer)
    except ValueError as error:
        if any(f"expandable_segments:{word}" in answer.replace(" ", "") for word in ("true", "TRUE", "1", "yes", "on")):
            return "misspelt_truth"
        raise NotRight(f"The allocator does not understand this: {error}.") from None
    if "per_process_memory_fraction" in answer:
        return "raised_the_cap"
    run = simulate_allocator(GROWING_BATCHES, options=options, cap_bytes=CAP_BYTES)
    if run.out_of_memory is None:
        return None
    if any(divisions > 1 for divisions in options.roundup_power2_divisions):
        return "rounding"
    if options.max_split_size_bytes is not None:
        return "splitting"
    if options.garbage_collection_threshold:
        return "collection"
    if not options.text or options == AllocatorOptions():
        return "nothing_changed"
    raise NotRight(f"With these options it does not fit. {run.out_of_memory.message}")


def _statistics(allocated: int, peak: int, reserved: int, inactive: int, retries: int) -> dict[str, int]:
    return {
        "allocated_bytes.all.current": allocated * MIB,
        "allocated_bytes.all.peak": peak * MIB,
        "reserved_bytes.all.current": reserved * MIB,
        "reserved_bytes.all.peak": reserved * MIB,
        "inactive_split_bytes.all.current": inactive * MIB,
        "num_alloc_retries": retries,
        "num_ooms": 1,
    }


# allocated, its peak, reserved, inactive_split, retries; what is asked for, and the cap, in MiB.
_FAILURES = (
    ((600, 700, 980, 380, 3), 300, 1000),  # fragmented: enough is cached
    ((900, 950, 990, 90, 1), 200, 1000),  # the tensors alone do not leave enough
    ((500, 990, 700, 200, 2), 450, 1000),  # enough, if what is cached and what was never taken count together
    ((500, 600, 900, 100, 1), 300, 1000),  # most of the cache lies in segments that are wholly unused
    ((850, 850, 850, 0, 1), 151, 1000),  # not enough, by one MiB
    ((850, 990, 1000, 150, 0), 150, 1000),  # just enough
    ((700, 800, 985, 285, 1), 5, 1000),  # enough, in pieces that are too small, and a segment of 20 MiB does not fit
)


def _fits(tensors: int, requested: int, cap: int) -> bool:
    return tensors + requested <= cap


_READINGS: Mapping[str | None, Callable[[Mapping[str, int], int, int], bool]] = {
    None: lambda s, r, c: _fits(s["allocated_bytes.all.current"], r, c),
    "reserved": lambda s, r, c: _fits(s["reserved_bytes.all.current"], r, c),
    "peak": lambda s, r, c: _fits(s["allocated_bytes.all.peak"], r, c),
    "cached_alone": lambda s, r, c: s["reserved_bytes.all.current"] - s["allocated_bytes.all.current"] >= r,
    "inactive_alone": lambda s, r, c: s["inactive_split_bytes.all.current"] >= r,
    "retries": lambda s, r, c: s["num_alloc_retries"] > 0,
    "turned_round": lambda s, r, c: not _fits(s["allocated_bytes.all.current"], r, c),
}


@exercise(
    "Can a setting help?",
    right="What tensors hold and what is asked for must fit under the cap. All else is the allocator's to arrange.",
    hints={
        "reserved": (
            "You add the request to reserved memory. Reserved memory contains the cache, and the cache could serve "
            "the request, if it were in one piece. Which number leaves the cache out?"
        ),
        "peak": (
            "You take a peak. It may have been reached long before the failure. Which number tells what tensors hold "
            "now?"
        ),
        "cached_alone": (
            "You ask whether the cache is large enough. Memory that was never taken counts as well, up to the cap. "
            "What is all the memory that tensors do not hold?"
        ),
        "inactive_alone": (
            "inactive_split_bytes is cached memory inside of segments that are partly in use: a sign of "
            "fragmentation, and only a part of the memory that tensors do not hold. What is the rest?"
        ),
        "retries": (
            "A retry says that cached memory was given back to try again. It happens with and without enough memory. "
            "Which numbers tell how much there was?"
        ),
        "turned_round": "You answer the opposite question: True is to mean that a setting could help.",
    },
)
def check_can_a_setting_help(answer: Any) -> str | None:
    """Compares with each reading of the statistics, on failures where they differ."""
    given = []
    for numbers, requested, cap in _FAILURES:
        value = ask(answer, _statistics(*numbers), requested * MIB, cap * MIB)
        if not isinstance(value, bool | np.bool_):
            raise NotRight(f"Return True or False; you return {type(value).__name__}.")
        given.append(bool(value))
    for key, reading in _READINGS.items():
        if given == [reading(_statistics(*numbers), r * MIB, c * MIB) for numbers, r, c in _FAILURES]:
            return key
    for (numbers, requested, cap), value in zip(_FAILURES, given, strict=True):
        statistics = _statistics(*numbers)
        if value != _READINGS[None](statistics, requested * MIB, cap * MIB):
            raise NotRight(
                f"Tensors hold {numbers[0]} MiB, {numbers[2]} MiB are reserved, {requested} MiB are asked for under a "
                f"cap of {cap} MiB: you return {value}."
            )
    return None
