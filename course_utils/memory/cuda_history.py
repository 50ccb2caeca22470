"""PyTorch's own history of the CUDA caching allocator, as blocks over time.

Pure Python on what ``torch.cuda.memory._snapshot()`` returns: a state to begin with, and the entries recorded after it.

An entry tells the requested size, and ``torch.cuda.memory_allocated`` counts the block that was given out. Which block
was taken follows from the address and from what lies behind it, without knowing how the allocator chose.

Source (torch 2.13.0 and 2.11.0):
    c10/cuda/CUDACachingAllocator.cpp: ``alloc_found_block``, ``free``, ``should_split``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from course_utils.memory.allocator import (
    GIVES_BACK,
    SIMULATED_OPTIONS,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorOptions,
    option_pairs,
    round_size,
)

# Say something about memory, and take or give none: `_annotate_memory` of PyTorch 2.14, `record_function` of 2.4.
# https://github.com/pytorch/pytorch/pull/190575, https://github.com/pytorch/pytorch/pull/124179
REMARKS = ("snapshot", "annotate", "user_defined")


def recorded_options(snapshot: Mapping[str, Any]) -> AllocatorOptions:
    """The options that a snapshot says were in force, as far as they are simulated; the defaults where it says nothing.

    Raises:
        ValueError: if blocks get another size, or come from elsewhere, than is simulated.
    """
    settings = snapshot.get("allocator_settings") or {}
    pairs = option_pairs(settings.get("PYTORCH_CUDA_ALLOC_CONF") or "")
    own = [f"{name}:{word}" for name, word in pairs if name in SIMULATED_OPTIONS and not word.startswith("[")]
    if ("backend", "cudaMallocAsync") in pairs:
        raise ValueError("backend:cudaMallocAsync is not simulated")
    changes: dict[str, Any] = {}
    divisions = set((settings.get("roundup_power2_divisions") or {}).values())
    if len(divisions) > 1:
        raise ValueError("roundup_power2_divisions was set to a list by size, which is not simulated")
    if divisions:
        changes["roundup_power2_divisions"] = divisions.pop()
    if "max_split_size" in settings:
        largest = settings["max_split_size"]
        changes["max_split_size_bytes"] = largest if 0 < largest < 2**62 else None
    if "expandable_segments" in settings:
        changes["expandable_segments"] = settings["expandable_segments"]
    return replace(AllocatorOptions.parse(",".join(own)), **changes)


class Edges:
    """Where blocks in use begin, and segments begin and end: how far a block can reach at most."""

    def __init__(self, options: AllocatorOptions) -> None:
        self._options = options
        self._sorted: list[int] = []

    def add(self, *addresses: int) -> None:
        """Remember edges."""
        for address in addresses:
            insort(self._sorted, address)

    def remove(self, *addresses: int) -> None:
        """Forget edges, where there are any."""
        for address in addresses:
            at = bisect_left(self._sorted, address)
            if self._sorted[at : at + 1] == [address]:
                del self._sorted[at]

    def inside(self, address: int, size: int) -> bool:
        """Whether there are any within a range, its ends excepted."""
        return bisect_left(self._sorted, address + size) > bisect_left(self._sorted, address + 1)

    def before(self, address: int) -> int | None:
        """The last edge before an address."""
        at = bisect_left(self._sorted, address)
        return self._sorted[at - 1] if at else None

    def block_bytes(self, address: int, requested: int, expandable: bool) -> int | None:
        """The size of the block for a request, given its address; None if there is no room. alloc_found_block.

        Expandable segments may have been switched off since: what lies in one was split as they do.
        """
        options, size = self._options, round_size(requested, self._options)
        if expandable or options.expandable_segments:
            return size
        at = bisect_left(self._sorted, address + 1)
        rest = self._sorted[at] - address - size if at < len(self._sorted) else -1
        if rest < 0:
            return None
        # What is left may be too small to split off: should_split.
        oversize = options.max_split_size_bytes is not None and size >= options.max_split_size_bytes
        whole = size > SMALL_REQUEST_BYTES and (rest <= SMALL_REQUEST_BYTES or oversize)
        return size + rest if whole else size


def pages_of(address: int, size: int) -> range:
    """The driver's pages in a part of an expandable segment."""
    return range(address, address + size, SMALL_SEGMENT_BYTES)


def page_of(address: int) -> int:
    """The driver's page, if this is a place in an expandable segment."""
    return address - address % SMALL_SEGMENT_BYTES


@dataclass
class Allocation:
    """One block that was given out."""

    address: int
    size_bytes: int  # as memory_allocated counts it
    born: int  # the moment from which on it is there; 0 if it was there at the start
    died: int | None = None  # the moment at which its release was requested; None if that did not happen
    frames: Sequence[Mapping[str, Any]] = ()  # the stack at that time, the innermost frame first


@dataclass
class History:
    """What happened on one device."""

    times_us: list[int] = field(default_factory=lambda: [0])  # from the first entry to each moment; 0 is the start
    allocations: list[Allocation] = field(default_factory=list)  # those from before first
    reserved_bytes: list[int] = field(default_factory=list)  # taken from the device at each moment


def read_history(snapshot: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], device: int = 0) -> History:
    """Work out every block of a device, by its index, from a snapshot and the entries recorded after it.

    Where options or entries do not fit, sizes are requests, rounded up.
    """
    history = History()
    try:
        options = recorded_options(snapshot)
    except ValueError:
        options = AllocatorOptions()
    edges = Edges(options)
    live: dict[int, Allocation] = {}
    pages: set[int] = set()  # of expandable segments
    reserved = 0
    for segment in snapshot["segments"]:
        if segment.get("device", device) != device:
            continue
        address = segment["address"]
        reserved += segment["total_size"]
        if segment.get("is_expandable"):
            pages.update(pages_of(address, segment["total_size"]))
        else:
            edges.add(address, address + segment["total_size"])
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                live[address] = Allocation(address, block["size"], 0, frames=block.get("frames") or ())
            if block["state"] != "inactive":
                edges.add(address)
            address += block["size"]
    history.allocations += live.values()
    history.reserved_bytes.append(reserved)
    first_us = entries[0].get("time_us", 0) if entries else 0
    for entry in entries:
        action, address, size = entry["action"], entry.get("addr", 0), entry.get("size", 0)
        moment = len(history.times_us)
        if action == "segment_alloc":
            edges.add(address, address + size)
        elif action == "segment_map":
            pages.update(pages_of(address, size))
        elif action == "segment_free":
            edges.remove(address, address + size)
        elif action == "alloc":
            taken = edges.block_bytes(address, size, page_of(address) in pages) or round_size(size, options)
            edges.add(address)
            live[address] = Allocation(address, taken, moment, frames=entry.get("frames") or ())
            history.allocations.append(live[address])
        elif action == "free_requested" and address in live:
            live.pop(address).died = moment
        elif action == "free_completed":
            edges.remove(address)
        if action in ("free_completed", "oom", *REMARKS):
            continue  # no sum changes
        if action.startswith("segment"):
            reserved += -size if action in GIVES_BACK else size
        history.times_us.append(max(history.times_us[-1], entry.get("time_us", first_us) - first_us))
        history.reserved_bytes.append(reserved)
    return history
