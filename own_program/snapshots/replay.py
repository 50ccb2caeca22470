"""A recorded history as events, undone back to its beginning, and compared with the simulated allocator.

Source: torch/cuda/memory.py (the shape), c10/cuda/CUDACachingAllocator.cpp (the order of the entries), PyTorch 2.13.0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from course_utils.memory.allocator import (
    GIVES_BACK,
    SMALL_SEGMENT_BYTES,
    Allocate,
    Allocator,
    AllocatorOptions,
    AllocatorRun,
    AllocatorState,
    BlockState,
    EmptyCache,
    Event,
    Free,
    Operation,
    SegmentState,
    Ties,
    run_events,
)
from course_utils.memory.cuda_history import Edges, page_of, pages_of, recorded_options
from own_program.snapshots.snapshot_file import SEGMENT_ACTIONS


class TraceEntry(NamedTuple):
    """One line of the history that PyTorch records."""

    action: str
    address: int  # 0 for ``oom``
    bytes: int  # for a tensor what was asked for, for a segment its size
    stream: int


# Backwards


class _Piece(NamedTuple):
    """A segment, or pages of an expandable one that touch."""

    address: int
    bytes: int
    stream: int
    pool: str
    expandable: bool


class _Held(NamedTuple):
    """A block that is not free."""

    bytes: int
    requested: int
    awaits: bool  # freed, and another stream may still use it


class _Past:
    """Goes backwards through the history, from the segments of the snapshot to those at its beginning."""

    def __init__(self, listed: Sequence[Mapping[str, Any]], options: AllocatorOptions) -> None:
        self.options = options
        self.segments: dict[int, _Piece] = {}  # those that are not expandable
        self.pages: dict[int, tuple[int, str]] = {}  # those of expandable segments: stream, pool
        self.held: dict[int, _Held] = {}
        self.edges = Edges(options)
        for index, segment in enumerate(listed):
            at, size, pool = segment["address"], segment["total_size"], segment["segment_type"]
            end, stream = at + size, segment.get("stream", 0)
            if segment.get("is_expandable", False):
                self.pages |= dict.fromkeys(pages_of(at, size), (stream, pool))
            else:
                self.segments[at] = _Piece(at, size, stream, pool, False)
                self.edges.add(at, end)
            for block in segment["blocks"]:
                if block["state"] != "inactive":
                    requested = block.get("requested_size") or block["size"]
                    self.held[at] = _Held(block["size"], requested, block["state"] != "active_allocated")
                    self.edges.add(at)
                at += block["size"]
            if at != end:
                raise ValueError(f"the blocks of segment {index} do not fill it: {at + size - end} of {size} bytes")

    def undo(self, entry: TraceEntry) -> None:
        """Undo one entry; a KeyError if it does not fit what came after it."""
        action, address, size, stream = entry
        match action:
            case "alloc":
                if self.held.pop(address).bytes < size:
                    raise KeyError(address)
                self.edges.remove(address)
            case "free_requested":
                self.held[address] = self.held[address]._replace(awaits=False)
            case "free_completed":
                taken = self.edges.block_bytes(address, size, page_of(address) in self.pages)
                if taken is None or address in self.held:
                    raise KeyError(address)
                self.held[address] = _Held(taken, size or taken, True)
                self.edges.add(address)
            case "segment_map":
                for page in pages_of(address, size):
                    del self.pages[page]
            case "segment_alloc":
                del self.segments[address]
                self.edges.remove(address, address + size)
            case "segment_free":
                pool = "small" if size == SMALL_SEGMENT_BYTES else "large"
                self.segments[address] = _Piece(address, size, stream, pool, False)
                self.edges.add(address, address + size)
            case "segment_unmap":
                self.pages |= dict.fromkeys(pages_of(address, size), (stream, self._pool_of_pages(entry)))
        if action in SEGMENT_ACTIONS and self.edges.inside(address, size):  # blocks where there was no memory
            raise KeyError(address)

    def _pool_of_pages(self, entry: TraceEntry) -> str:
        _, address, size, stream = entry
        if size == SMALL_SEGMENT_BYTES or size % self.options.large_segment_bytes:
            return "small"
        beside = (self.pages.get(address - SMALL_SEGMENT_BYTES), self.pages.get(address + size))
        return next((pool for own, pool in filter(None, beside) if own == stream), "large")

    def state(self) -> AllocatorState:
        names = {start: f"earlier {number}" for number, start in enumerate(sorted(self.held), 1)}
        starts, placed = list(names), 0
        bases: dict[tuple[int, str], int] = {}  # one reservation for each stream and pool
        segments = []
        for piece in self._pieces():
            inside = starts[bisect_left(starts, piece.address) : bisect_left(starts, piece.address + piece.bytes)]
            placed += len(inside)
            base = bases.setdefault((piece.stream, piece.pool), piece.address) if piece.expandable else piece.address
            blocks = tuple(self._blocks(piece, {start: names[start] for start in inside}))
            segments.append(SegmentState(*piece, blocks, base))
        if placed < len(starts):
            raise ValueError("the history and the segments contradict each other: blocks lie outside of all segments")
        return AllocatorState(tuple(segments))

    def _pieces(self) -> list[_Piece]:
        runs: list[_Piece] = []
        for address, (stream, pool) in sorted(self.pages.items()):
            last = runs[-1] if runs else None
            if last is not None and (last.address + last.bytes, last.stream, last.pool) == (address, stream, pool):
                runs[-1] = last._replace(bytes=last.bytes + SMALL_SEGMENT_BYTES)
            else:
                runs.append(_Piece(address, SMALL_SEGMENT_BYTES, stream, pool, True))
        return sorted([*self.segments.values(), *runs])

    def _blocks(self, piece: _Piece, names: Mapping[int, str]) -> Iterator[BlockState]:
        at, end = piece.address, piece.address + piece.bytes
        for start, name in names.items():
            block = self.held[start]
            if start > at:
                yield BlockState(at, start - at, "free")
            state = "awaiting free" if block.awaits else "allocated"
            yield BlockState(start, block.bytes, state, block.requested, name)
            at = start + block.bytes
        if at < end:
            yield BlockState(at, end - at, "free")


# Forwards


@dataclass(frozen=True, eq=False, repr=False)
class DeviceSnapshot:
    """A memory snapshot of one device; :meth:`replay` simulates its history."""

    entries: tuple[TraceEntry, ...]
    options: AllocatorOptions  # those that were in force, as the snapshot states them
    start: AllocatorState  # the segments when the history begins; empty if nothing was cached then
    end: AllocatorState
    beyond: int  # an address that the record does not reach
    _listed: Sequence[Mapping[str, Any]]  # the segments of the file

    def state_before(self, entry: int) -> AllocatorState:
        """The segments right before an entry of the history, as recorded: undone from the end, not simulated."""
        return _undone(_Past(self._listed, self.options), self.entries, entry).state()

    def replay(self, *, cap_bytes: int | None = None, device_bytes: int | None = None, ties: Ties = "oldest") -> Replay:
        """Let the recorded requests happen to the simulated allocator, and compare its memory with the recorded.

        Args:
            cap_bytes: how much the process was allowed to take, if it was limited.
            device_bytes: the device's memory, if it was full.
            ties: which of several cached blocks of the same size is used: that in the ``oldest`` segment, as in PyTorch
                2.13, or with the ``lowest`` address, as in 2.11. Where one does not fit, the other is tried as well.
        """
        tried = []
        for each in (ties, "lowest" if ties == "oldest" else "oldest"):
            tried.append(_Replayer(self, Allocator(self.options, cap_bytes, device_bytes, each)).replay())
            if tried[-1].agrees and not tried[-1].moved:
                return tried[-1]
        return min(tried, key=lambda replay: (len(replay.differences), replay.moved))

    def begin(self, allocator: Allocator) -> None:
        """Let an allocator begin with the segments of the start."""
        # The entries say when a block is free again, also where another stream used it.
        taken = [
            replace(
                segment,
                blocks=tuple(b if b.state == "free" else replace(b, state="allocated") for b in segment.blocks),
            )
            for segment in self.start.segments
        ]
        allocator.begin(AllocatorState(tuple(taken)), self.beyond)


@dataclass(frozen=True, eq=False, repr=False)
class Replay:
    """Recorded against simulated memory.

    Memory given back that no request under the given limits explains (``empty_cache()``, or a full device) is taken
    over from the record, not predicted.
    """

    run: AllocatorRun  # the simulation of the recorded requests
    # What was recorded as reserved, for each event at which the calls to the device or the reserved memory differ.
    differences: Sequence[int]
    moved: int  # how many requests were met at another address than recorded
    end: AllocatorState  # as recorded

    @property
    def agrees(self) -> bool:
        """Whether reserved memory is the recorded one, to the byte, after every call to the device and every event."""
        return not self.differences


_Happens = Iterator[tuple[Event, Sequence[Operation]]]


class _Replayer:
    """Lets a history happen to the simulated allocator: what is recorded inside of one call to it belongs together."""

    def __init__(self, snapshot: DeviceSnapshot, allocator: Allocator) -> None:
        self.snapshot, self.allocator = snapshot, allocator
        snapshot.begin(allocator)
        self.limited = allocator.cap is not None or allocator.device is not None
        self.level = snapshot.start.reserved_bytes  # what was reserved so far, as recorded
        self.differences: list[int] = []
        self.moved = 0
        self.operations: list[Operation] = []  # recorded calls to the device that have not happened yet

    def replay(self) -> Replay:
        run = run_events(self.allocator, self._events(), stops=False)
        return Replay(run, self.differences, self.moved, self.snapshot.end)

    def _events(self) -> _Happens:
        """What happens to the simulated allocator, which depends on what it did before."""
        blocks = [block for segment in self.snapshot.start.segments for block in segment.blocks]
        names: dict[int, Any] = {block.address: block.id for block in blocks if block.state != "free"}
        count = 0
        for action, address, size, stream in self.snapshot.entries:
            if action in SEGMENT_ACTIONS:
                self.operations.append(Operation(action, address, size))
            elif action == "free_completed":
                yield from self._emptied(len(self.operations))
                yield from self._happens(Free(names.pop(address)))
            elif action in ("alloc", "oom"):
                count += 1
                yield from self._request(Allocate(count, size, stream), address if action == "alloc" else None)
                if action == "alloc":
                    names[address] = count
        yield from self._emptied(len(self.operations))

    def _request(self, request: Allocate, address: int | None) -> _Happens:
        """A request, and where it was met; None if it failed."""
        gave_back = [at for at, call in enumerate(self.operations, 1) if call.action in GIVES_BACK]
        if gave_back and not (self.limited and self._gives_back_itself(request)):
            yield from self._emptied(gave_back[-1])
        recorded = tuple(self.operations)
        self.operations.clear()
        failed = address is None and request.bytes > 0
        if not failed or self.limited:
            yield from self._happens(request, recorded)
        block = self.allocator.live.get(request.id)
        if address is not None:
            self.moved += block is None or block.address != address
        elif failed and block is not None:
            # The record ran out of memory here, and the simulation did not.
            yield from self._happens(Free(request.id))

    def _gives_back_itself(self, request: Allocate) -> bool:
        """Whether a request gives memory back as recorded, to be tried again: tried out on a copy."""
        copy = self.allocator.copy()
        copy.apply(request)
        return _same(self.operations, copy.operations)

    def _emptied(self, count: int) -> _Happens:
        """Memory given back outside of a request, for which nothing but an emptied cache is known."""
        if count:
            recorded = tuple(self.operations[:count])
            del self.operations[:count]
            yield from self._happens(EmptyCache(), recorded)

    def _happens(self, event: Event, recorded: Sequence[Operation] = ()) -> _Happens:
        """Let an event happen, and compare what it did with the record."""
        yield event, () if self.differences else recorded  # once the two part, recorded addresses tell nothing
        self.level += sum(operation.change_bytes for operation in recorded)
        if not _same(recorded, self.allocator.operations) or self.level != self.allocator.reserved:
            self.differences.append(self.level)


def _same(recorded: Sequence[Operation], simulated: Sequence[Operation]) -> bool:
    return [(call.action, call.bytes) for call in recorded] == [(call.action, call.bytes) for call in simulated]


def snapshot_of(
    segments: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]], settings: Mapping[str, Any] | None
) -> DeviceSnapshot:
    """A device's segments and history, with the segments at its beginning reconstructed from those at its end.

    How old cached blocks were then is not known.

    Raises:
        ValueError: if the two contradict each other.
    """
    entries = tuple(TraceEntry(e["action"], e.get("addr", 0), e["size"], e.get("stream", 0)) for e in trace)
    options = recorded_options({"allocator_settings": settings})
    past = _Past(segments, options)
    end = past.state()
    start = _undone(past, entries, 0).state()
    beyond = max((entry.address + entry.bytes for entry in entries), default=0) + SMALL_SEGMENT_BYTES
    beyond = max([beyond, *(segment.address + segment.bytes for segment in start.segments)])
    return DeviceSnapshot(entries, options, start, end, beyond, segments)


def _undone(past: _Past, entries: Sequence[TraceEntry], entry: int) -> _Past:
    """Go back from the end until right before an entry."""
    for index in range(len(entries) - 1, entry - 1, -1):
        try:
            past.undo(entries[index])
        except KeyError:
            raise ValueError(
                f"the history and the segments contradict each other at trace entry {index} ({entries[index].action}). "
                "Was something left out with skip_actions?"
            ) from None
    return past
