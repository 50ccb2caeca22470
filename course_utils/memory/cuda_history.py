"""PyTorch's own history of the CUDA caching allocator, as blocks over time.

Pure Python on what ``torch.cuda.memory._snapshot()`` returns: a state to begin with, and the entries recorded after it.

An entry tells the requested size, and ``torch.cuda.memory_allocated`` counts the block that was given out. Which block
was taken follows from the address, so blocks are cut and joined as the allocator does, without knowing how it chose.

Source (torch 2.13.0 and 2.11.0):
    c10/cuda/CUDACachingAllocator.cpp: ``alloc_found_block``, ``free``, ``free_block``, ``should_split``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from course_utils.memory.allocator import (
    BLOCK_BYTES,
    GIVES_BACK,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorOptions,
    round_size,
)
from course_utils.memory.snapshots import recorded_options


@dataclass
class Allocation:
    """One block that was given out."""

    address: int
    size_bytes: int  # as memory_allocated counts it
    born: int  # the moment from which on it is there; 0 if it was there at the start
    died: int | None = None  # the moment at which its release was requested; None if that did not happen
    metadata: str = ""  # what _set_memory_metadata had set when it was allocated
    frames: Sequence[Mapping[str, Any]] = ()  # the stack at that time, the innermost frame first


@dataclass
class History:
    """What happened on one device."""

    times_us: list[int] = field(default_factory=lambda: [0])  # from the first entry to each moment; 0 is the start
    allocations: list[Allocation] = field(default_factory=list)  # those from before first
    reserved_bytes: list[int] = field(default_factory=list)  # taken from the device at each moment
    exact: bool = True  # False if an entry did not fit the state, so that some sizes are requests, rounded up


class _Place(NamedTuple):
    """Where a block lies, as far as that decides how it is cut."""

    small: bool
    expandable: bool


class _Layout:
    """Which parts of the segments are free. Cuts and joins blocks as the allocator does."""

    def __init__(self, options: AllocatorOptions) -> None:
        self._split_limit = options.max_split_size_bytes or math.inf
        self._free: dict[int, int] = {}  # address to size
        self._free_end: dict[int, int] = {}  # end of a free block to its address
        self._fences: set[int] = set()  # addresses at which blocks are not joined
        self._pools: dict[int, _Place] = {}  # of each free block's address
        self.exact = True  # False once an entry did not fit: nothing is known of the segments from then on

    def add_segment(self, address: int, size: int, pool: _Place) -> None:
        """Memory that is mapped right behind other memory of an expandable segment belongs to it."""
        if not pool.expandable:
            self._fences |= {address, address + size}

    def remove(self, address: int, size: int) -> None:
        """Take a range, all of which is free, out of what is mapped."""
        start = next((at for at, length in self._free.items() if at <= address < at + length), None)
        if start is None:
            self.exact = False
            return
        end, pool = start + self._free[start], self._pools[start]
        self._forget(start)
        if start < address:
            self._put(start, address - start, pool)
        if address + size < end:
            self._put(address + size, end - address - size, pool)
        self._fences -= {address}

    def take(self, address: int, rounded: int) -> tuple[int, _Place]:
        """Give out a block. Returns its size, and its pool."""
        size = self._free.get(address, 0)
        rest = size - rounded
        if rest < 0:
            self.exact = False
            return rounded, _Place(False, False)
        pool = self._pools[address]
        self._forget(address)
        if pool.small or pool.expandable:
            splits = rest >= BLOCK_BYTES
        else:
            splits = rest > SMALL_REQUEST_BYTES and rounded < self._split_limit
        if splits:
            self._put(address + rounded, rest, pool)
        return rounded if splits else size, pool

    def release(self, address: int, size: int, pool: _Place) -> None:
        """Take a block back, and join it with free neighbours."""
        before = self._free_end.get(address)
        if before is not None and address not in self._fences:
            size += self._forget(before)
            address = before
        end = address + size
        if end in self._free and end not in self._fences:
            size += self._forget(end)
        self._put(address, size, pool)

    def _put(self, address: int, size: int, pool: _Place) -> None:
        self._free[address], self._free_end[address + size], self._pools[address] = size, address, pool

    def _forget(self, address: int) -> int:
        size = self._free.pop(address)
        self._free_end.pop(address + size, None)
        return size


def read_history(snapshot: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], device: int = 0) -> History:
    """Work out every block of a device from a state and what was recorded after it.

    Args:
        snapshot: taken right before the first entry.
        entries: of this device's trace, the oldest first.
        device: the index of the device.
    """
    options, _ = recorded_options(snapshot)
    segments = [segment for segment in snapshot["segments"] if segment.get("device", device) == device]
    layout, history = _Layout(options), History()
    live: dict[int, tuple[Allocation, _Place]] = {}
    waiting: dict[int, tuple[int, _Place]] = {}  # their release was requested
    for segment in segments:
        pool = _Place(segment.get("segment_type") == "small", bool(segment.get("is_expandable")))
        address = segment["address"]
        layout.add_segment(address, segment["total_size"], pool)
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                live[address] = Allocation(address, block["size"], 0, frames=block.get("frames") or ()), pool
                history.allocations.append(live[address][0])
            elif block["state"] == "inactive":
                layout.release(address, block["size"], pool)
            else:
                waiting[address] = block["size"], pool
            address += block["size"]
    reserved = sum(segment["total_size"] for segment in segments)
    history.reserved_bytes.append(reserved)
    first_us = entries[0].get("time_us", 0) if entries else 0
    for entry in entries:
        action, address, size = entry["action"], entry.get("addr", 0), entry["size"]
        moment = len(history.times_us)
        if action in ("segment_alloc", "segment_map"):
            reserved += size
            pool = _Place(size <= SMALL_SEGMENT_BYTES, action == "segment_map")
            layout.add_segment(address, size, pool)
            layout.release(address, size, pool)
        elif action in GIVES_BACK:
            reserved -= size
            layout.remove(address, size)
        elif action == "alloc":
            taken, pool = layout.take(address, round_size(size, options))
            allocation = Allocation(
                address, taken, moment, None, entry.get("user_metadata", ""), entry.get("frames") or ()
            )
            live[address] = allocation, pool
            history.allocations.append(allocation)
        elif action == "free_requested":
            allocation, pool = live.pop(address)
            allocation.died = moment
            waiting[address] = allocation.size_bytes, pool
        else:
            if action == "free_completed":
                layout.release(address, *waiting.pop(address))
            continue  # no sum changes
        history.times_us.append(max(history.times_us[-1], entry.get("time_us", first_us) - first_us))
        history.reserved_bytes.append(reserved)
    history.exact = layout.exact
    return history
