"""PyTorch's own history of the CUDA caching allocator, as blocks over time.

Pure Python on what ``torch.cuda.memory._snapshot()`` returns: a state to begin with, and the entries recorded after it.

An entry tells the requested size, and ``torch.cuda.memory_allocated`` counts the block that was given out. Which block
was taken follows from the address and from what lies behind it, without knowing how the allocator chose.

Source (torch 2.13.0 and 2.11.0):
    c10/cuda/CUDACachingAllocator.cpp: ``alloc_found_block``, ``free``, ``should_split``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from course_utils.memory.allocator import GIVES_BACK, round_size
from course_utils.memory.snapshots import REMARKS, Edges, page_of, pages_of, recorded_options


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


def read_history(snapshot: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], device: int = 0) -> History:
    """Work out every block of a device from a state and what was recorded after it.

    Args:
        snapshot: taken right before the first entry.
        entries: of this device's trace, the oldest first.
        device: the index of the device.
    """
    options, _ = recorded_options(snapshot)
    edges, history = Edges(options), History()
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
            history.exact &= edges.remove(address, address + size)
        elif action == "alloc":
            taken = edges.block_bytes(address, size, page_of(address) in pages)
            history.exact &= taken is not None
            edges.add(address)
            mark, frames = entry.get("user_metadata", ""), entry.get("frames") or ()
            live[address] = Allocation(address, taken or round_size(size, options), moment, None, mark, frames)
            history.allocations.append(live[address])
        elif action == "free_requested":
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
