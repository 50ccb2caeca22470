"""PyTorch's own history of the CUDA caching allocator, as blocks over time.

Pure Python on what ``torch.cuda.memory._snapshot()`` returns: a state to begin with, and the entries recorded after it.

An entry tells the requested size. What ``torch.cuda.memory_allocated`` counts is the block that was given out: the
request rounded up, and for large requests sometimes more, where splitting off the rest would leave too small a piece.
Which block was taken follows from the address, so the sizes can be worked out by cutting and joining blocks as the
allocator does, without knowing how it chose.

Source (torch 2.13.0 and 2.11.0):
    c10/cuda/CUDACachingAllocator.cpp: ``alloc_found_block`` records the requested size and adds the block's size to
    ``allocated_bytes``; ``free`` takes it off when the release is requested (``FREE_REQUESTED``), and ``free_block``
    joins neighbours (``FREE_COMPLETED``); ``should_split``; c10/core/CachingDeviceAllocator.h: ``kMinBlockSize``,
    ``kSmallSize``, ``TraceEntry``; torch/cuda/memory.py, ``_snapshot``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from course_utils.memory.allocator import (
    BLOCK_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorOptions,
    round_size,
)


@dataclass
class Allocation:
    """One block that was given out.

    Attributes:
        address: where it is.
        size_bytes: its size, as ``memory_allocated`` counts it.
        born: the moment from which on it is there; 0 if it was there at the start.
        died: the moment at which its release was requested; None if that did not happen.
        metadata: what ``_set_memory_metadata`` had set when it was allocated.
        frames: the stack at that time, the innermost frame first.
    """

    address: int
    size_bytes: int
    born: int
    died: int | None = None
    metadata: str = ""
    frames: Sequence[Mapping[str, Any]] = ()


@dataclass
class History:
    """What happened on one device.

    Attributes:
        times_us: microseconds from the first entry to each moment; moment 0 is the start.
        allocations: all blocks, those from before first.
        reserved_bytes: what the allocator had taken from the device at each moment.
        exact: False if an entry did not fit the state, so that sizes are requested ones, rounded up.
    """

    times_us: list[int] = field(default_factory=lambda: [0])
    allocations: list[Allocation] = field(default_factory=list)
    reserved_bytes: list[int] = field(default_factory=list)
    exact: bool = True


class _Layout:
    """Which parts of the segments are free. Cuts and joins blocks as the allocator does."""

    def __init__(self, options: AllocatorOptions) -> None:
        self._split_limit = options.max_split_size_bytes or math.inf
        self._free: dict[int, int] = {}  # address to size
        self._free_end: dict[int, int] = {}  # end of a free block to its address
        self._fences: set[int] = set()  # addresses at which blocks are not joined
        self._small: dict[int, bool] = {}  # of each block's address: is it in the small pool
        self._expandable: dict[int, bool] = {}

    def add_segment(self, address: int, size: int, small: bool, expandable: bool, free: bool = True) -> None:
        if not expandable:  # memory that is mapped right behind other memory of an expandable segment belongs to it
            self._fences |= {address, address + size}
        if free:
            self.release(address, size, small, expandable)

    def remove(self, address: int, size: int) -> None:
        """Take a range, all of which is free, out of what is mapped."""
        for start, length in list(self._free.items()):
            if start <= address and address + size <= start + length:
                small, expandable = self._small[start], self._expandable[start]
                self._forget(start)
                if start < address:
                    self._put(start, address - start, small, expandable)
                if address + size < start + length:
                    self._put(address + size, start + length - address - size, small, expandable)
                self._fences -= {address}
                return
        raise KeyError(address)

    def take(self, address: int, rounded: int) -> tuple[int, bool, bool]:
        """Give out a block. Returns its size, and its pool."""
        size = self._free[address]
        small, expandable = self._small[address], self._expandable[address]
        rest = size - rounded
        if rest < 0:
            raise KeyError(address)
        self._forget(address)
        if rest >= BLOCK_BYTES if small or expandable else rest > SMALL_REQUEST_BYTES and rounded < self._split_limit:
            self._put(address + rounded, rest, small, expandable)
            size = rounded
        return size, small, expandable

    def release(self, address: int, size: int, small: bool, expandable: bool) -> None:
        """Take a block back, and join it with free neighbours."""
        before = self._free_end.get(address)
        if before is not None and address not in self._fences:
            size += self._forget(before)
            address = before
        end = address + size
        if end in self._free and end not in self._fences:
            size += self._forget(end)
        self._put(address, size, small, expandable)

    def _put(self, address: int, size: int, small: bool, expandable: bool) -> None:
        self._free[address], self._free_end[address + size] = size, address
        self._small[address], self._expandable[address] = small, expandable

    def _forget(self, address: int) -> int:
        size = self._free.pop(address)
        del self._free_end[address + size]
        return size


def read_history(
    segments: Sequence[Mapping[str, Any]], entries: Sequence[Mapping[str, Any]], options: str = ""
) -> History:
    """Work out every block of a device from a state and what was recorded after it.

    Args:
        segments: of this device, from a snapshot that was taken right before the first entry.
        entries: of this device's trace, the oldest first.
        options: of the allocator, as the environment variable states them.

    Returns:
        The blocks. A block that was there before the state was taken is born at moment 0.
    """
    try:
        parsed = AllocatorOptions.parse(options)
    except ValueError:  # an option of a later version
        parsed = AllocatorOptions()
    exact = _read(segments, entries, parsed, exact=True)
    return exact if exact is not None else _read(segments, entries, parsed, exact=False)


def _read(
    segments: Sequence[Mapping[str, Any]],
    entries: Sequence[Mapping[str, Any]],
    options: AllocatorOptions,
    exact: bool,
) -> History | None:
    history, layout = History(exact=exact), _Layout(options)
    live: dict[int, Allocation] = {}
    waiting: dict[int, tuple[int, bool, bool]] = {}
    pools: dict[int, tuple[bool, bool]] = {}
    reserved = 0
    for segment in segments:
        reserved += segment["total_size"]
        small, expandable = segment.get("segment_type") == "small", bool(segment.get("is_expandable"))
        layout.add_segment(segment["address"], segment["total_size"], small, expandable, free=False)
        address = segment["address"]
        for block in segment["blocks"]:
            address = block.get("address", address)
            if block["state"] == "active_allocated":
                live[address] = Allocation(address, block["size"], 0, frames=block.get("frames") or ())
                history.allocations.append(live[address])
                pools[address] = (small, expandable)
            elif block["state"] == "inactive":
                layout.release(address, block["size"], small, expandable)
            else:  # its release was requested, and another stream still uses it
                waiting[address] = (block["size"], small, expandable)
            address += block["size"]
    history.reserved_bytes.append(reserved)
    first_us = entries[0].get("time_us", 0) if entries else 0
    try:
        for entry in entries:
            action, address, size = entry["action"], entry.get("addr", 0), entry["size"]
            moment = len(history.times_us)
            if action in ("segment_alloc", "segment_map"):
                reserved += size
                expandable = action == "segment_map"
                if exact:
                    layout.add_segment(address, size, size <= SMALL_SEGMENT_BYTES, expandable)
            elif action in ("segment_free", "segment_unmap"):
                reserved -= size
                if exact:
                    layout.remove(address, size)
            elif action == "alloc":
                taken = round_size(size, options)
                if exact:
                    taken, *pool = layout.take(address, taken)
                    pools[address] = (pool[0], pool[1])
                live[address] = Allocation(
                    address, taken, moment, None, entry.get("user_metadata", ""), entry.get("frames") or ()
                )
                history.allocations.append(live[address])
            elif action == "free_requested":
                gone = live.pop(address)
                gone.died = moment
                if exact:
                    waiting[address] = (gone.size_bytes, *pools.pop(address))
            else:
                if action == "free_completed" and exact:
                    layout.release(address, *waiting.pop(address))
                continue  # no sum changes
            history.times_us.append(max(history.times_us[-1], entry.get("time_us", first_us) - first_us))
            history.reserved_bytes.append(reserved)
    except KeyError:
        if exact:
            return None
        raise
    return history
