"""`caching_allocator`: what the rules of its settings do; what torch says of a text is in its lesson.yml."""

from __future__ import annotations

from course_utils.lessons.caching_allocator import cases
from course_utils.memory.allocator import MIB, Allocate, EmptyCache, Event, Free, simulate_allocator

EXPANDABLE = "expandable_segments:True"


def test_max_split_size_beside_expandable_segments_keeps_large_free_blocks_from_being_used():
    """The pattern of https://github.com/pytorch/pytorch/issues/123548: a small live tensor after large ones."""
    events: list[Event] = []
    for cycle in range(6):
        names = [f"{cycle}.{number}" for number in range(3)]
        events += [Allocate(name, 138 * MIB) for name in names]
        events += [Allocate(f"stays {cycle}", 2 * MIB), *map(Free, names)]
    options = EXPANDABLE, "max_split_size_mb:128"
    peaks = [simulate_allocator(events, options=each).peak_reserved_bytes for each in options]
    assert simulate_allocator(events, options=",".join(options)).peak_reserved_bytes > 5 * max(peaks)


def test_of_reserved_memory_a_part_is_wholly_free_and_a_part_is_stuck_and_after_a_failure_all_is_stuck():
    events: list[Event] = [Allocate("large", 40 * MIB), Free("large"), Allocate("stays", 8 * MIB)]
    events += [Allocate("larger", 50 * MIB), Free("larger"), Allocate("largest", 60 * MIB)]
    row = cases.gap("", events)
    assert [row[part] / MIB for part in ("in tensors", "wholly free", "stuck")] == [68, 50, 32]
    row = cases.gap("", events, cap=90 * MIB)
    assert [row[part] / MIB for part in ("in tensors", "wholly free", "stuck", "tried")] == [8, 0, 32, 60]


def test_the_least_cap_is_the_first_that_all_requests_fit_under():
    events: list[Event] = [Allocate("a", 100 * MIB), Free("a"), EmptyCache(), Allocate("b", 110 * MIB)]
    assert cases.least_cap(events, 100 * MIB) == cases.least_cap(events, 100 * MIB, EXPANDABLE) == 1.1
    assert cases.least_cap(events, 50 * MIB) > max(cases.CAPS)
    assert {len(lengths) for lengths in cases.DRAWS} == {96}


def test_rests_that_are_not_split_off_count_as_allocated_and_expandable_segments_free_them():
    """The last case of the exercise: by its *allocated* bytes the request cannot fit, and with a setting it does."""
    events = [Allocate(number, 11 * MIB) for number in range(20)]
    failure = simulate_allocator(events, cap_bytes=230 * MIB).out_of_memory
    assert (failure.event, failure.allocated_bytes, failure.segment_bytes) == (19, 228 * MIB, 12 * MIB)
    assert simulate_allocator(events, options=EXPANDABLE, cap_bytes=230 * MIB).peak_reserved_bytes == 220 * MIB
