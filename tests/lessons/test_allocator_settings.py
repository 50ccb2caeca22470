"""`caching_allocator`: what the rules of its settings do; what torch says of a text is in its lesson.yml."""

from __future__ import annotations

import re

import pytest

from course_utils.lessons.caching_allocator import cases
from course_utils.memory.allocator import MIB, Allocate, Event, Free, simulate_allocator
from tests.lessons.pasted import source

EXPANDABLE = "expandable_segments:True"


def test_of_reserved_memory_a_part_is_wholly_free_and_a_part_is_stuck_and_after_a_failure_all_is_stuck():
    events: list[Event] = [Allocate("large", 40 * MIB), Free("large"), Allocate("stays", 8 * MIB)]
    events += [Allocate("larger", 50 * MIB), Free("larger"), Allocate("largest", 60 * MIB)]
    row = cases.gap("", events)
    assert [row[part] / MIB for part in ("in tensors", "wholly free", "stuck")] == [68, 50, 32]
    row = cases.gap("", events, cap=90 * MIB)
    assert [row[part] / MIB for part in ("in tensors", "wholly free", "stuck", "tried")] == [8, 0, 32, 60]


def test_rests_that_are_not_split_off_count_as_allocated_and_expandable_segments_free_them():
    """The last case of the exercise: by its *allocated* bytes the request cannot fit, and with a setting it does."""
    events = [Allocate(number, 11 * MIB) for number in range(20)]
    failure = simulate_allocator(events, cap_bytes=230 * MIB).out_of_memory
    assert (failure.event, failure.allocated_bytes, failure.segment_bytes) == (19, 228 * MIB, 12 * MIB)
    assert simulate_allocator(events, options=EXPANDABLE, cap_bytes=230 * MIB).peak_reserved_bytes == 220 * MIB


FAILURE = (
    "Tried to allocate {}. GPU 0 has a total capacity of 80.00 GiB of which 1.20 GiB is free. {}Of the allocated "
    "memory 61.00 GiB is allocated by PyTorch, and 14.80 GiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (FAILURE.format("1.00 GiB", ""), "row 1"),
        (FAILURE.format("20.00 GiB", ""), "row 3"),
        (FAILURE.format("1.00 GiB", "76.00 GiB allowed; "), "row 2"),
        ("no message", "cannot"),
    ],
)
def test_the_cell_that_reads_a_message_names_a_row_of_the_table_or_says_that_it_cannot(message, answer, capsys):
    cell = source("caching_allocator", "cell-read")
    pasted, count = re.subn(r'""".*?"""', lambda _: repr(message), cell, flags=re.DOTALL)
    assert count == 1
    exec(pasted, {})
    assert answer in capsys.readouterr().out
