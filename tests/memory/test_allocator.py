"""The simulated allocator: answers worked out by hand, PyTorch's own allocator, and invariants under random events."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.memory.allocator import (
    Allocate,
    Allocator,
    AllocatorOptions,
    AllocatorRun,
    EmptyCache,
    Event,
    Free,
    round_size,
    segment_size,
    simulate_allocator,
)
from tests.replays import load_snapshot, same_end

MIB = 2**20
TRACES = Path(__file__).parents[1] / "allocator_traces"
OPTIONS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:24",
    "large_segment_size_mb:12",
    "expandable_segments:True,large_segment_size_mb:32",
)


def in_mib(values) -> list[float]:
    return [value / MIB for value in values]


def parts(run: AllocatorRun) -> list[list[tuple[float, str]]]:
    """Size in MiB and state of each block at the end, by segment."""
    return [[(block.bytes / MIB, block.state) for block in segment.blocks] for segment in run.state(len(run)).segments]


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.json")), ids=lambda path: path.stem)
def test_recorded_memory_is_simulated_to_the_byte(path: Path) -> None:
    """Recorded from libc10_cuda.so of the version in the name, over a stand-in for the CUDA driver (no GPU)."""
    origin = json.loads(path.read_text())["made_with"]
    snapshot = load_snapshot(path)
    assert snapshot.start.segments == ()
    ties = "oldest" if tuple(map(int, origin["torch"].split(".")[:2])) >= (2, 13) else "lowest"
    replay = snapshot.replay(cap_bytes=origin["cap_bytes"], device_bytes=origin["device_bytes"], ties=ties)
    assert replay.agrees
    assert replay.moved == 0
    assert replay.run.begin.ties == ties  # where the other one would do as well, it was not needed
    assert same_end(replay)
    assert len(replay.run) > 80
    assert replay.run.reserved_bytes[-1] == snapshot.end.reserved_bytes
    check_state(replay.run, len(replay.run))


def test_options_are_read_as_the_variable_is_written() -> None:
    options = AllocatorOptions.parse(
        " expandable_segments:True, max_split_size_mb:128,roundup_power2_divisions:8,large_segment_size_mb:32"
    )
    assert options == AllocatorOptions(
        expandable_segments=True,
        large_segment_bytes=32 * MIB,
        max_split_size_bytes=128 * MIB,
        roundup_power2_divisions=8,
    )
    assert AllocatorOptions.parse(options.text) == options
    assert AllocatorOptions.parse("expandable_segments:False") == AllocatorOptions()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expandable:True", "'expandable' is not simulated; those that are: expandable_segments, .*_divisions"),
        ("expandable_segments:true", "must be True or False, got 'true'"),
        ("max_split_size_mb:19", "max_split_size_mb must be at least 20, got 19"),
    ],
)
def test_a_wrong_option_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AllocatorOptions.parse(text)


@pytest.mark.parametrize(
    ("asked", "options", "rounded"),
    [
        (512, "", 512),
        (513, "", 1024),
        # The comment at roundup_power2_next_division: 1200 and 4 divisions give 1280, but only beyond 4 x 512 bytes.
        (1200, "roundup_power2_divisions:4", 1536),
        (5 * MIB + 1, "roundup_power2_divisions:4", 6 * MIB),
    ],
)
def test_sizes_are_rounded_up(asked: int, options: str, rounded: int) -> None:
    assert round_size(asked, AllocatorOptions.parse(options)) == rounded


def test_segments_have_three_sizes() -> None:
    sizes = (512, MIB, MIB + 512, 10 * MIB - 512, 10 * MIB, 10 * MIB + 512, 100 * MIB)
    assert in_mib(map(segment_size, sizes)) == [2, 2, 20, 20, 10, 12, 100]
    assert segment_size(2 * MIB, AllocatorOptions(large_segment_bytes=32 * MIB)) == 32 * MIB


def test_best_fit_takes_the_smallest_that_is_large_enough() -> None:
    sizes = {"a": 40, "gap 1": 10, "b": 20, "gap 2": 10, "c": 30, "gap 3": 10}
    events: list[Event] = [Allocate(name, size * MIB) for name, size in sizes.items()]
    events += [Free("a"), Free("b"), Free("c"), Allocate("x", 19 * MIB)]
    run = simulate_allocator(events)
    held = {block.id: segment.bytes for segment in run.state(len(run)).segments for block in segment.blocks}
    assert held["x"] == 20 * MIB
    assert run.words(9).startswith("x asks for 19 MiB: the smallest cached block that fits has 20 MiB")


def test_a_block_that_fits_is_cut_only_where_enough_is_left() -> None:
    begin = [Allocate("a", 20 * MIB), Free("a")]
    run = simulate_allocator([*begin, Allocate("b", 19 * MIB)])
    assert parts(run) == [[(20, "allocated")]]
    assert "Use it whole, as the rest is too small to split off" in run.words(2)
    run = simulate_allocator([*begin, Allocate("b", 19 * MIB - 512)])
    assert [state for _, state in parts(run)[0]] == ["allocated", "free"]
    # Small ones are always cut.
    assert len(parts(simulate_allocator([Allocate("a", MIB), Allocate("b", MIB - 512)]))[0]) == 3


def test_what_is_freed_merges_with_both_neighbours() -> None:
    run = simulate_allocator([*(Allocate(name, 4 * MIB) for name in "abcd"), Free("a"), Free("c"), Free("b")])
    assert parts(run) == [[(12, "free"), (4, "allocated"), (4, "free")]]


def test_a_cached_block_serves_its_own_stream_alone() -> None:
    run = simulate_allocator([Allocate("a", 20 * MIB), Free("a"), Allocate("b", 20 * MIB, stream=3)])
    assert in_mib(run.reserved_bytes) == [20, 20, 40]


def test_under_a_cap_cached_segments_go_back_and_it_is_tried_again() -> None:
    events = [Allocate("a", 30 * MIB), Free("a"), Allocate("b", 40 * MIB)]
    run = simulate_allocator(events, cap_bytes=50 * MIB)
    assert in_mib(run.reserved_bytes) == [30, 30, 40]
    assert (run.device_allocs[-1], run.device_frees[-1], run.retries[-1]) == (2, 1, 1)
    assert "30 MiB of cached memory go back to the device" in run.words(2)
    # A segment that is in use in part cannot go back.
    events = [Allocate("a", 8 * MIB), Allocate("b", 8 * MIB), Free("a"), Allocate("c", 40 * MIB)]
    assert simulate_allocator(events, cap_bytes=50 * MIB).out_of_memory is not None


def test_expandable_pages_go_back_and_leave_a_gap_that_is_filled_first() -> None:
    events = [Allocate("a", 40 * MIB), Allocate("b", 20 * MIB), Free("a"), EmptyCache(), Allocate("c", 30 * MIB)]
    run = simulate_allocator(events, options="expandable_segments:True")
    assert in_mib(run.reserved_bytes) == [40, 60, 60, 20, 60]
    (gone,) = run.state(4).segments
    assert gone.reserved_address == gone.address - 40 * MIB
    (segment,) = run.state(5).segments
    assert [block.id for block in segment.blocks] == ["c", None, "b"]


def test_oversize_blocks_are_kept_whole() -> None:
    options = "max_split_size_mb:32"
    # A smaller request does not get a block of 32 MiB or more; one of that size may get one that is a little larger.
    run = simulate_allocator([Allocate("a", 32 * MIB), Free("a"), Allocate("b", 24 * MIB)], options=options)
    assert in_mib(run.reserved_bytes) == [32, 32, 56]
    run = simulate_allocator([Allocate("a", 40 * MIB), Free("a"), Allocate("b", 32 * MIB)], options=options)
    assert parts(run) == [[(40, "allocated")]]
    # Under a cap the least that is large enough goes back first, and not all that is cached.
    events = [Allocate(40, 40 * MIB), Allocate(70, 70 * MIB), Free(40), Free(70), Allocate("b", 45 * MIB)]
    run = simulate_allocator(events, options=options, cap_bytes=150 * MIB)
    assert (in_mib(run.reserved_bytes)[-1], run.device_frees[-1], run.retries[-1]) == (86, 1, 0)
    begin = [*(Allocate(size, size * MIB) for size in (40, 70, 50)), Free(40), Free(70), Free(50)]
    run = simulate_allocator([*begin, Allocate("b", 45 * MIB, stream=3)], options=options, cap_bytes=180 * MIB)
    assert (run.device_frees[-1], run.retries[-1]) == (3, 1)  # another stream's are not looked at
    run = simulate_allocator([*begin, Allocate("b", 120 * MIB)], options=options, cap_bytes=180 * MIB)
    assert (in_mib(run.reserved_bytes)[-1], run.device_frees[-1], run.retries[-1]) == (160, 2, 0)


def test_running_out_of_memory_gives_the_numbers() -> None:
    events = [Allocate("a", 8 * MIB), Allocate("b", 8 * MIB), Free("a"), Allocate("c", 30 * MIB), Allocate("d", 512)]
    run = simulate_allocator(events, cap_bytes=40 * MIB, device_bytes=2**30)
    assert len(run) == 4
    failure = run.out_of_memory
    assert (failure.event, failure.segment_bytes, failure.allocated_bytes) == (3, 30 * MIB, 8 * MIB)
    # The wording of torch.OutOfMemoryError.
    assert failure.message == (
        "CUDA out of memory (simulated). Tried to allocate 30.00 MiB. GPU 0 has a total capacity of 1024.00 MiB of "
        "which 1004.00 MiB is free. 40.00 MiB allowed; Of the allocated memory 8.00 MiB is allocated by PyTorch, and "
        "12.00 MiB is reserved by PyTorch but unallocated. The request was for 30.00 MiB; the largest cached block "
        "that it could have had is 8.00 MiB."
    )
    assert "out of memory" in run.words(3)
    run = simulate_allocator([Allocate("a", 512), Allocate("b", MIB), Allocate("c", MIB)], cap_bytes=2 * MIB)
    assert "largest cached block that it could have had is 1023.50 KiB" in run.out_of_memory.message


@st.composite
def event_streams(draw) -> list[Event]:
    """Requests and frees that a program could make."""
    events: list[Event] = []
    held: list[int] = []
    sizes = st.one_of(
        st.integers(1, 3 * MIB),
        st.integers(1, 40 * MIB),
        st.sampled_from((512, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 20 * MIB)),
    )
    for count in range(draw(st.integers(1, 50))):
        kind = draw(st.integers(0, 20))
        if kind < 10 or not held:
            events.append(Allocate(count, draw(sizes), draw(st.sampled_from((0, 0, 3)))))
            held.append(count)
        elif kind < 19:
            events.append(Free(held.pop(draw(st.integers(0, len(held) - 1)))))
        else:
            events.append(EmptyCache())
    return events


def check_state(run: AllocatorRun, after: int) -> None:
    """What must hold at every moment, whatever happened."""
    state = run.state(after)
    ends: list[tuple[int, int]] = []
    for segment in state.segments:
        at = segment.address
        for block in segment.blocks:
            assert block.address == at
            assert block.bytes > 0
            assert block.requested_bytes <= block.bytes
            at += block.bytes
        assert at == segment.address + segment.bytes
        states = [block.state for block in segment.blocks]
        assert ("free", "free") not in pairwise(states)
        ends.append((segment.address, at))
    assert ends == sorted(ends)
    assert all(lower[1] <= upper[0] for lower, upper in pairwise(ends))
    ids = [block.id for segment in state.segments for block in segment.blocks if block.state != "free"]
    assert len(set(ids)) == len(ids)
    assert state.reserved_bytes == run.reserved_bytes[after - 1]
    assert state.allocated_bytes == run.allocated_bytes[after - 1]


@settings(max_examples=30, deadline=None)
@given(event_streams(), st.sampled_from(OPTIONS), st.sampled_from((None, 60 * MIB, 200 * MIB)), st.booleans())
def test_invariants_hold_after_every_event(events, options: str, cap: int | None, full: bool) -> None:
    run = simulate_allocator(events, options=options, cap_bytes=cap, device_bytes=100 * MIB if full else None)
    for index in range(len(run)):
        check_state(run, index + 1)
        assert run.peak_reserved_bytes >= run.reserved_bytes[index] >= run.allocated_bytes[index]
    if full:
        assert run.peak_reserved_bytes <= 100 * MIB
    if cap is not None and "expandable" not in options:
        assert run.peak_reserved_bytes <= cap


@settings(max_examples=20, deadline=None)
@given(event_streams(), st.sampled_from(OPTIONS))
def test_when_all_is_freed_all_can_go_back(events, options: str) -> None:
    held = {event.id for event in events if isinstance(event, Allocate)}
    held -= {event.id for event in events if isinstance(event, Free)}
    events = [*events, *map(Free, sorted(held)), EmptyCache()]
    run = simulate_allocator(events, options=options)
    assert run.allocated_bytes[-1] == run.reserved_bytes[-1] == 0
    assert run.state(len(run)).segments == ()
    whole = run.state(len(run) - 1)
    assert all(len(segment.blocks) == 1 for segment in whole.segments)


@settings(max_examples=20, deadline=None)
@given(event_streams(), st.sampled_from(("", "max_split_size_mb:24")), st.sampled_from((None, 100 * MIB)))
def test_an_allocator_may_begin_with_the_segments_of_another(events, options: str, cap: int | None) -> None:
    half = len(events) // 2
    first, second = (Allocator(AllocatorOptions.parse(options), cap) for _ in range(2))
    for event in events[:half]:
        first.apply(event)
    state = first.state()
    second.begin(state, max((segment.address + segment.bytes for segment in state.segments), default=0))
    second.empty |= first.empty  # what holds nothing is in no segment
    for event in events[half:]:
        assert first.apply(event) == second.apply(event)
        assert (second.reserved, second.allocated) == (first.reserved, first.allocated)
