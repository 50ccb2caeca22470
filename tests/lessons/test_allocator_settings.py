"""`caching_allocator`: what the rules of its settings do; what torch says of a text is in its lesson.yml."""

from __future__ import annotations

from course_utils.lessons.caching_allocator import cases
from course_utils.memory.allocator import MIB, Allocate, Event, Free, simulate_allocator


def test_only_whole_pages_of_a_hole_go_back():
    expandable = "expandable_segments:True"
    rows = [cases.hole_row("", size, expandable, cap_mib=320) for size in (100, 15)]
    assert [row["given back"] // MIB for row in rows] == [100, 0]
    assert [row["fits"] for row in rows] == [True, True]  # the second has room beside the hole
    assert not cases.hole_row("", 100)["fits"]


def test_max_split_size_beside_expandable_segments_keeps_large_free_blocks_from_being_used():
    """The pattern of https://github.com/pytorch/pytorch/issues/123548: a small live tensor after large ones."""
    events: list[Event] = []
    for cycle in range(6):
        names = [f"{cycle}.{number}" for number in range(3)]
        events += [Allocate(name, 138 * MIB) for name in names]
        events += [Allocate(f"stays {cycle}", 2 * MIB), *map(Free, names)]
    peak = {
        options: simulate_allocator(events, options=options).peak_reserved_bytes
        for options in ("expandable_segments:True", "max_split_size_mb:128")
    }
    both = simulate_allocator(events, options=",".join(peak)).peak_reserved_bytes
    assert both > 5 * max(peak.values())


def test_garbage_collection_needs_a_cap_and_skips_expandable_segments():
    events = [event for size in (30, 40, 50) for event in (Allocate(size, size * MIB), Free(size))]
    options = "garbage_collection_threshold:0.5"
    assert simulate_allocator(events, options=options).device_frees[-1] == 0
    assert simulate_allocator(events, options=options, cap_bytes=130 * MIB).device_frees[-1] > 0
    options += ",expandable_segments:True"
    assert simulate_allocator(events, options=options, cap_bytes=130 * MIB).device_frees[-1] == 0


def test_of_reserved_memory_a_part_is_wholly_free_and_a_part_is_stuck():
    events: list[Event] = [Allocate("large", 40 * MIB), Free("large"), Allocate("stays", 8 * MIB)]
    events += [Allocate("larger", 50 * MIB), Free("larger"), Allocate("largest", 60 * MIB)]
    assert cases.at_the_peak(simulate_allocator(events)) == ("150 reserved = 68 in tensors + 50 wholly free + 32 stuck")


def test_rests_that_are_not_split_off_count_as_allocated_and_expandable_segments_free_them():
    """The last case of Exercise 2: by its *allocated* bytes the request cannot fit, and with a setting it does."""
    events = [Allocate(number, 11 * MIB) for number in range(20)]
    default = simulate_allocator(events, cap_bytes=230 * MIB)
    failure = default.out_of_memory
    assert failure is not None
    assert (failure.event, failure.allocated_bytes, failure.segment_bytes) == (19, 228 * MIB, 12 * MIB)
    assert failure.reserved_bytes == failure.allocated_bytes
    expandable = simulate_allocator(events, options="expandable_segments:True", cap_bytes=230 * MIB)
    assert expandable.out_of_memory is None
    assert expandable.peak_reserved_bytes == 220 * MIB


def test_expandable_segments_beside_max_split_size_still_cut_a_large_block_at_the_segments_end():
    events = [Allocate("large", 100 * MIB), Allocate("stays", 100 * MIB), Free("large"), Allocate("small", 10 * MIB)]
    options = "expandable_segments:True,max_split_size_mb:64"
    assert simulate_allocator(events, options=options).peak_reserved_bytes > 200 * MIB  # the hole is not cut
    at_the_end = [Allocate("large", 100 * MIB), Free("large"), Allocate("small", 10 * MIB)]
    assert simulate_allocator(at_the_end, options=options).peak_reserved_bytes == 100 * MIB
