"""A recorded history as events, undone back to its beginning, and compared with the simulated allocator.

Source: torch/cuda/memory.py (the shape), c10/cuda/CUDACachingAllocator.cpp (the order of the entries), PyTorch 2.13.0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

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
    FreeCompleted,
    Operation,
    SegmentState,
    Ties,
    run_events,
)
from course_utils.memory.cuda_history import Edges, page_of, pages_of, recorded_options
from own_program.snapshots.files import MOST_DEVICE_BYTES, SEGMENT_ACTIONS


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
    pool: Literal["small", "large"]
    expandable: bool

    @property
    def end(self) -> int:
        return self.address + self.bytes


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

    def undo(self, entry: TraceEntry) -> str | None:
        """Undo one entry. Returns what does not fit, if anything."""
        address, block = entry.address, self.held.get(entry.address)
        match entry.action:
            case "alloc":
                if block is None or entry.bytes > block.bytes:
                    return "nothing is allocated where it allocates, or less"
                del self.held[address]
                self.edges.remove(address)
            case "free_requested":
                if block is None or not block.awaits:
                    return "the block that it frees is not free afterwards"
                self.held[address] = block._replace(awaits=False)
            case "free_completed":
                size = self.edges.block_bytes(address, entry.bytes, page_of(address) in self.pages)
                before = self.edges.before(address)
                inside = before in self.held and before + self.held[before].bytes > address
                if block is not None or size is None or inside:
                    return "the block that it frees is not free afterwards"
                self.held[address] = _Held(size, entry.bytes or size, True)
                self.edges.add(address)
            case "segment_alloc" | "segment_map":
                return self._undo_growth(entry)
            case "segment_free" | "segment_unmap":
                return self._undo_release(entry)
        return None

    def _undo_growth(self, entry: TraceEntry) -> str | None:
        _, address, size, _ = entry
        if entry.action == "segment_map":
            known = size > 0 and all(self.pages.pop(page, None) is not None for page in pages_of(address, size))
        else:
            segment = self.segments.pop(address, None)
            known = segment is not None and segment.bytes == size and self.edges.remove(address, segment.end)
        if not known or address in self.held or self.edges.inside(address, size):
            return "the memory that it takes is not there, or is in use"
        return None

    def _undo_release(self, entry: TraceEntry) -> str | None:
        action, address, size, stream = entry
        if not 0 < size < MOST_DEVICE_BYTES or address in self.segments or address in self.pages:
            return "the memory that it gives back is still there"
        if self.edges.inside(address, size):
            return "the memory that it gives back is in use"
        if action == "segment_free":
            pool = "small" if size == SMALL_SEGMENT_BYTES else "large"
            self.segments[address] = _Piece(address, size, stream, pool, False)
            self.edges.add(address, address + size)
            return None
        pool = "small"
        if size != SMALL_SEGMENT_BYTES and size % self.options.large_segment_bytes == 0:
            beside = (self.pages.get(address - SMALL_SEGMENT_BYTES), self.pages.get(address + size))
            pool = next((pool for own, pool in filter(None, beside) if own == stream), "large")
        if SMALL_SEGMENT_BYTES * len(self.pages) + size > MOST_DEVICE_BYTES:
            return "there was more memory than any device has"
        self.pages |= dict.fromkeys(pages_of(address, size), (stream, pool))
        return None

    def state(self) -> AllocatorState:
        names = {start: f"earlier {number}" for number, start in enumerate(sorted(self.held), 1)}
        starts, placed = list(names), 0
        bases: dict[tuple[int, str], int] = {}  # one reservation for each stream and pool
        segments = []
        for piece in self._pieces():
            inside = starts[bisect_left(starts, piece.address) : bisect_left(starts, piece.end)]
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
            if last is not None and (last.end, last.stream, last.pool) == (address, stream, pool):
                runs[-1] = last._replace(bytes=last.bytes + SMALL_SEGMENT_BYTES)
            else:
                runs.append(_Piece(address, SMALL_SEGMENT_BYTES, stream, pool, True))
        return sorted([*self.segments.values(), *runs])

    def _blocks(self, piece: _Piece, names: Mapping[int, str]) -> Iterator[BlockState]:
        at = piece.address
        for start, name in names.items():
            block = self.held[start]
            if start > at:
                yield BlockState(at, start - at, "free")
            state = "awaiting free" if block.awaits else "allocated"
            yield BlockState(start, block.bytes, state, block.requested, name)
            at = start + block.bytes
        if at < piece.end:
            yield BlockState(at, piece.end - at, "free")


# Forwards


@dataclass(frozen=True, eq=False, repr=False)
class Snapshot:
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


class _Replayer:
    """Lets a history happen to the simulated allocator: what is recorded inside of one call to it belongs together."""

    def __init__(self, snapshot: Snapshot, allocator: Allocator) -> None:
        self.snapshot, self.allocator = snapshot, allocator
        allocator.begin(snapshot.start, snapshot.beyond)
        self.limited = allocator.cap is not None or allocator.device is not None
        self.level = snapshot.start.reserved_bytes  # what was reserved so far, as recorded
        self.differences: list[int] = []
        self.moved = 0
        # Recorded, and not happened yet: calls to the device, and frees that were completed.
        self.operations: list[Operation] = []
        self.completed: list[FreeCompleted] = []

    def replay(self) -> Replay:
        run = run_events(self.allocator, self._events(), stops=False)
        return Replay(run, self.differences, self.moved, self.snapshot.end)

    def _events(self) -> Iterator[tuple[Event, Sequence[Operation]]]:
        """What happens to the simulated allocator, which depends on what it did before."""
        entries, count = self.snapshot.entries, 0
        blocks = [block for segment in self.snapshot.start.segments for block in segment.blocks]
        names: dict[int, Any] = {block.address: block.id for block in blocks if block.state == "allocated"}
        waiting = {block.address: block.id for block in blocks if block.state == "awaiting free"}
        for index, (action, address, size, stream) in enumerate(entries):
            if action in SEGMENT_ACTIONS:
                self.operations.append(Operation(action, address, size))
            elif action == "free_completed" and address in waiting:
                self.completed.append(FreeCompleted(waiting.pop(address)))
            elif action == "free_requested":
                yield from self._given_back()
                name = names.pop(address)
                completes = [entry[:2] for entry in entries[index + 1 : index + 2]] == [("free_completed", address)]
                if not completes:
                    waiting[address] = name
                yield from self._happens(Free(name, completes))
            elif action in ("alloc", "oom"):
                count += 1
                if not _gives_back(self.operations):
                    yield from self._happen(self.completed)
                    self.completed.clear()
                elif action == "alloc" and self.operations[-1].action in GIVES_BACK:
                    yield from self._given_back()  # and then served from the cache: that was another call
                yield from self._request(Allocate(count, size, stream), address if action == "alloc" else None)
                if action == "alloc":
                    names[address] = count
        yield from self._given_back()

    def _given_back(self) -> Iterator[tuple[Event, Sequence[Operation]]]:
        """What is recorded outside of a request, for which nothing but an emptied cache is known."""
        if self.operations:
            yield from self._emptied(self.operations)
        pending = self.allocator.pending
        yield from self._happen(late for late in self.completed if not self.operations or late.id in pending)
        self.operations.clear()
        self.completed.clear()

    def _request(self, request: Allocate, address: int | None) -> Iterator[tuple[Event, Sequence[Operation]]]:
        """A request, and where it was met; None if it failed."""
        recorded, late = tuple(self.operations), tuple(self.completed)
        self.operations.clear()
        self.completed.clear()
        early, empties = self._explained(request, recorded, late)
        yield from self._happen(early)
        if empties:
            recorded = yield from self._emptied(recorded)
        failed = address is None and request.bytes > 0
        if not failed or self.limited:
            yield from self._happens(request, recorded)
        block = self.allocator.live.get(request.id)
        if address is not None:
            self.moved += block is None or block.address != address
        elif failed and block is not None:
            # The record ran out of memory here, and the simulation did not.
            yield from self._happens(Free(request.id))
        yield from self._happen(each for each in late if each.id in self.allocator.pending)

    def _emptied(self, recorded: Sequence[Operation]) -> Iterator[tuple[Event, Sequence[Operation]]]:
        """Let the cache be emptied up to the last call that gave memory back; returns the calls after it."""
        gives_back = [at for at, operation in enumerate(recorded, 1) if operation.action in GIVES_BACK]
        count = max(gives_back, default=len(recorded))
        yield from self._happens(EmptyCache(), tuple(recorded[:count]))
        return recorded[count:]

    def _happen(self, events: Iterable[Event]) -> Iterator[tuple[Event, Sequence[Operation]]]:
        for event in events:
            yield from self._happens(event)

    def _happens(self, event: Event, recorded: Sequence[Operation] = ()) -> Iterator[tuple[Event, Sequence[Operation]]]:
        """Let an event happen, and compare what it did with the record."""
        yield event, () if self.differences else recorded  # once the two part, recorded addresses tell nothing
        self.level += sum(operation.change_bytes for operation in recorded)
        if not _same(recorded, self.allocator.operations) or self.level != self.allocator.reserved:
            self.differences.append(self.level)

    def _explained(
        self, request: Allocate, recorded: Sequence[Operation], late: Sequence[FreeCompleted]
    ) -> tuple[Sequence[FreeCompleted], bool]:
        """The frees that must have been completed before a request, and whether the cache was emptied before it.

        Tried out on copies, until the simulation gives memory back as recorded.
        """
        if not _gives_back(recorded) or not self.limited:
            return (), _gives_back(recorded)

        def tried(*events: Event) -> list[Operation]:
            copy = self.allocator.copy()
            operations: list[Operation] = []
            for event in events:
                copy.apply(event)
                operations += copy.operations
            return operations

        alone = tried(request)
        if _same(recorded, alone):
            return (), False
        early = [each for each in late if each.id in self.allocator.pending]
        if early and _same(recorded, tried(*early, request)):
            return early, False
        return (), _same(recorded, tried(EmptyCache(), request)) or not _gives_back(alone)


def _gives_back(operations: Sequence[Operation]) -> bool:
    return any(operation.action in GIVES_BACK for operation in operations)


def _same(recorded: Sequence[Operation], simulated: Sequence[Operation]) -> bool:
    return [(call.action, call.bytes) for call in recorded] == [(call.action, call.bytes) for call in simulated]


def snapshot_of(
    segments: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]], settings: Mapping[str, Any] | None
) -> Snapshot:
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
    return Snapshot(entries, options, start, end, beyond, segments)


def _undone(past: _Past, entries: Sequence[TraceEntry], entry: int) -> _Past:
    """Go back from the end until right before an entry."""
    for index in range(len(entries) - 1, entry - 1, -1):
        problem = past.undo(entries[index])
        if problem is not None:
            raise ValueError(
                f"the history and the segments contradict each other at trace entry {index} ({entries[index].action}): "
                f"{problem}. Was something left out with skip_actions?"
            )
    return past
