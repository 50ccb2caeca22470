"""Memory snapshots of PyTorch: read safely, turned into events, and compared with the simulated allocator.

A snapshot is what ``torch.cuda.memory._snapshot()`` returns and ``_dump_snapshot()`` pickles. Reading one needs neither
torch nor a GPU, and runs nothing that is in the file.

Source:
    torch/cuda/memory.py (the shape), c10/cuda/CUDACachingAllocator.cpp (record_trace and its callers: the order of the
    entries), both PyTorch 2.13.0.
"""

from __future__ import annotations

import io
import json
import pickle
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from course_utils.memory.allocator import (
    GIVES_BACK,
    KNOWN_OPTIONS,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    Allocate,
    Allocator,
    AllocatorOptions,
    AllocatorRun,
    AllocatorState,
    EmptyCache,
    Event,
    Free,
    FreeCompleted,
    Operation,
    Place,
    Reservation,
    SavedAllocator,
    SavedBlock,
    SavedSegment,
    Ties,
    checked_cap,
    option_pairs,
    options_of,
    round_size,
    run_events,
    short_bytes,
)

_SEGMENT_ACTIONS = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")
_ACTIONS = ("alloc", "free_requested", "free_completed", *_SEGMENT_ACTIONS, "oom", "snapshot")


# Reading


class _PlainUnpickler(pickle.Unpickler):
    """Builds lists, dictionaries, texts and numbers, and looks nothing up, so that nothing in the file can run."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"it would load {module}.{name}, and a memory snapshot needs no code: do not load this file")


def _load(source: Any) -> Any:
    if isinstance(source, Mapping):
        return source
    if not isinstance(source, str | Path):
        raise ValueError(f"a snapshot is a path or what torch.cuda.memory._snapshot() returns, got {source!r:.60}")
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"there is no file {path}: pass the path of a snapshot, or the snapshot itself")
    data = path.read_bytes()
    kind = "pickle" if data[:1] == b"\x80" else "JSON"
    try:
        return _PlainUnpickler(io.BytesIO(data)).load() if kind == "pickle" else json.loads(data)
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(
            f"{path.name} is no snapshot that can be read ({kind}): {error}. If it was copied, copy it again"
        ) from None


class TraceEntry(NamedTuple):
    """One line of the history that PyTorch records."""

    action: str  # one of _ACTIONS
    address: int  # 0 for ``oom``
    bytes: int  # for a tensor what was asked for, for a segment its size
    stream: int


def _default_pool(pool: Any, where: str) -> None:
    if pool is not None and any(pool):
        raise ValueError(
            f"{where} belongs to a private pool ({pool[0]}, {pool[1]}) (a CUDA graph, or torch.cuda.MemPool), which is "
            "not simulated; record a snapshot without it"
        )


def _entries(trace: Sequence[Mapping[str, Any]]) -> tuple[TraceEntry, ...]:
    entries = []
    for index, entry in enumerate(trace):
        action = entry["action"]
        if action not in _ACTIONS:
            raise ValueError(f"trace entry {index} has an unknown action {action!r}; there are {', '.join(_ACTIONS)}")
        _default_pool(entry.get("pool_id"), f"trace entry {index}")
        if action == "snapshot":
            entries.append(TraceEntry(action, 0, 0, 0))
        else:
            entries.append(TraceEntry(action, entry.get("addr", 0), entry["size"], entry["stream"]))
    return tuple(entries)


def recorded_options(snapshot: Mapping[str, Any]) -> tuple[AllocatorOptions, list[str]]:
    """The options that a snapshot says were in force, and what a reader must know of them."""
    settings = snapshot.get("allocator_settings")
    if not settings:
        return AllocatorOptions(), ["The snapshot does not say which options were in force; the defaults are assumed."]
    changes: dict[str, Any] = {}
    notes, known = [], []
    for name, word in option_pairs(settings.get("PYTORCH_CUDA_ALLOC_CONF") or ""):
        if name not in KNOWN_OPTIONS:
            notes.append(f"The snapshot's option {name!r} is not known here and is left out.")
        elif not word.startswith("["):  # what such a list means is told below
            known.append(f"{name}:{word}")
    if "roundup_power2_divisions" in settings:
        divisions = settings["roundup_power2_divisions"]
        changes["roundup_power2_divisions"] = tuple(divisions[key] for key in sorted(divisions, key=int))
    if "max_split_size" in settings:
        largest = settings["max_split_size"]
        changes["max_split_size_bytes"] = largest if 0 < largest < 2**62 else None
    for name in ("expandable_segments", "garbage_collection_threshold"):
        if name in settings:
            changes[name] = settings[name]
    return replace(AllocatorOptions.parse(",".join(known)), **changes), notes


@dataclass
class _Piece:
    """A segment while the history is undone."""

    address: int
    bytes: int
    stream: int
    pool: Literal["small", "large"]
    expandable: bool

    @property
    def end(self) -> int:
        return self.address + self.bytes


class _Held(NamedTuple):
    """A block that is not free, while the history is undone."""

    bytes: int
    requested: int
    stream: int
    awaits: bool  # freed, and another stream may still use it


def _segments(listed: Sequence[Mapping[str, Any]], device: int) -> tuple[list[_Piece], dict[int, _Held]]:
    """The segments at the moment of the snapshot, and the blocks in them that are not free."""
    pieces, held = [], {}
    for index, segment in enumerate(listed):
        if segment.get("device", 0) != device:
            continue
        where = f"segment {index}"
        _default_pool(segment.get("segment_pool_id"), where)
        expandable = bool(segment.get("is_expandable", False))
        piece = _Piece(
            segment["address"], segment["total_size"], segment["stream"], segment["segment_type"], expandable
        )
        pieces.append(piece)
        at = piece.address
        for block in segment["blocks"]:
            size = block["size"]
            if block["state"] != "inactive":
                requested = block.get("requested_size") or size
                held[at] = _Held(size, requested, piece.stream, block["state"] != "active_allocated")
            at += size
        if at != piece.end:
            raise ValueError(f"the blocks of {where} do not fill it: {at - piece.address} of {piece.bytes} bytes")
    return sorted(pieces, key=lambda piece: piece.address), held


# Backwards


class _Undo:
    """Goes backwards through the history, from the segments of the snapshot to those at its beginning.

    Neither segments nor blocks overlap, so what lies at an address is found in the sorted beginnings.
    """

    def __init__(
        self, pieces: list[_Piece], held: dict[int, _Held], options: AllocatorOptions, entries: Sequence[TraceEntry]
    ) -> None:
        self.pieces = {piece.address: piece for piece in pieces}
        self.held, self.options = dict(held), options
        # Where requests to free were not recorded, a block is in use until its free is completed.
        self.awaits = any(entry.action == "free_requested" for entry in entries)
        self.piece_starts, self.held_starts = sorted(self.pieces), sorted(self.held)

    def _add(self, piece: _Piece) -> None:
        self.pieces[piece.address] = piece
        insort(self.piece_starts, piece.address)

    def _remove(self, piece: _Piece) -> None:
        del self.pieces[piece.address]
        del self.piece_starts[bisect_left(self.piece_starts, piece.address)]

    def _last_before(self, address: int) -> _Piece | None:
        """The piece that begins before an address, the nearest of them."""
        at = bisect_left(self.piece_starts, address)
        return self.pieces[self.piece_starts[at - 1]] if at else None

    def _unused(self, address: int, size: int) -> _Piece | None:
        """The piece that a range lies in, if nothing in it is held."""
        piece = self._last_before(address + 1)
        if piece is None or address + size > piece.end:
            return None
        at = bisect_left(self.held_starts, address + size)
        start = self.held_starts[at - 1] if at else None
        return piece if start is None or start + self.held[start].bytes <= address else None

    def entry(self, entry: TraceEntry) -> str | None:
        """Undo one entry. Returns what does not fit, if anything."""
        match entry.action:
            case "alloc":
                block = self.held.pop(entry.address, None)
                if block is None or entry.bytes > block.bytes:
                    return "nothing is allocated where it allocates, or less"
                del self.held_starts[bisect_left(self.held_starts, entry.address)]
            case "free_requested":
                block = self.held.get(entry.address)
                if block is None or not block.awaits:
                    return "the block that it frees is not free afterwards"
                self.held[entry.address] = block._replace(awaits=False)
            case "free_completed":
                return self._undo_free(entry)
            case "segment_alloc" | "segment_map":
                return self._undo_growth(entry.address, entry.bytes)
            case "segment_free" | "segment_unmap":
                return self._undo_release(entry)
        return None

    def _undo_free(self, entry: TraceEntry) -> str | None:
        address, length = entry.address, round_size(entry.bytes, self.options)
        piece = self._unused(address, length)
        if piece is None:
            return "the block that it frees is not free afterwards"
        at = bisect_left(self.held_starts, address + length)
        end = min([piece.end, *self.held_starts[at : at + 1]])
        rest = end - address - length
        # What was left of the block may have been too small to split off: should_split.
        limit = self.options.max_split_size_bytes
        if not (piece.pool == "small" or self.options.expandable_segments) and (
            rest <= SMALL_REQUEST_BYTES or (limit is not None and length >= limit)
        ):
            length += rest
        self.held[address] = _Held(length, entry.bytes or length, entry.stream, self.awaits)
        insort(self.held_starts, address)
        return None

    def _undo_growth(self, address: int, size: int) -> str | None:
        piece = self._unused(address, size)
        if piece is None or not size:
            return "the memory that it takes is not there, or is in use"
        self._remove(piece)
        before, after = address - piece.address, piece.end - address - size
        if (before or after) and not piece.expandable:
            return "it takes a part of a segment that cannot grow"
        if before:
            self._add(replace(piece, bytes=before))
        if after:
            self._add(replace(piece, address=address + size, bytes=after))
        return None

    def _undo_release(self, entry: TraceEntry) -> str | None:
        _, address, size, stream = entry
        before, after = self._last_before(address + size), self.pieces.get(address + size)
        if not size or (before is not None and address < before.end):
            return "the memory that it gives back is still there"
        expandable = entry.action == "segment_unmap"
        neighbours = [
            piece
            for piece in (before, after)
            if piece is not None and expandable and piece.expandable and piece.stream == stream
            if address in (piece.end, piece.address - size)
        ]
        if size == SMALL_SEGMENT_BYTES or (expandable and size % self.options.large_segment_bytes):
            pool = "small"
        else:
            pool = neighbours[0].pool if neighbours else "large"
        joined = [piece for piece in neighbours if piece.pool == pool]
        for piece in joined:
            self._remove(piece)
        begin = min([address, *(piece.address for piece in joined)])
        total = size + sum(piece.bytes for piece in joined)
        self._add(_Piece(begin, total, stream, pool, expandable))
        return None

    def saved(self, beyond: int = 0) -> tuple[SavedAllocator, dict[int, str], dict[int, str]]:
        """The beginning, as the simulated allocator takes it.

        Args:
            beyond: memory that the record has no place for is put behind this address, and behind all segments.

        Returns:
            The state, the names of the allocated blocks by address, and those of the blocks that await a free.
        """
        names: dict[int, str] = {}
        waiting: dict[int, str] = {}
        segments: list[SavedSegment] = []
        last: dict[tuple[int, str], int] = {}  # of the expandable ones, by stream and pool
        for address in self.piece_starts:
            piece = self.pieces[address]
            blocks = self._blocks(piece, names, waiting)
            key = (piece.stream, piece.pool)
            if piece.expandable and key in last:
                # One reservation for each stream and pool: between its pages lie addresses without memory.
                earlier = segments[last[key]].blocks
                end = earlier[-1].address + earlier[-1].size
                earlier += [SavedBlock(end, address - end, mapped=False), *blocks]
                continue
            reservation = None
            if piece.expandable:
                page = SMALL_SEGMENT_BYTES if piece.pool == "small" else self.options.large_segment_bytes
                reservation = Reservation(address, page)
                last[key] = len(segments)
            segments.append(SavedSegment(piece.stream, piece.pool == "small", len(segments) + 1, reservation, blocks))
        for index in last.values():
            blocks, (base, page) = segments[index].blocks, segments[index].reservation
            end = blocks[-1].address + blocks[-1].size
            blocks.append(SavedBlock(end, -(-(end - base + 2**40) // page) * page + base - end, mapped=False))
        beyond = max([beyond, *(piece.end for piece in self.pieces.values())])
        state = SavedAllocator(segments, beyond, tuple(waiting.values()), segment_count=len(segments))
        return state, names, waiting

    def _blocks(self, piece: _Piece, names: dict[int, str], waiting: dict[int, str]) -> list[SavedBlock]:
        """The blocks of a segment, free ones included; what is held gets a name."""
        blocks, at = [], piece.address
        first, end = (bisect_left(self.held_starts, address) for address in (piece.address, piece.end))
        for start in self.held_starts[first:end]:
            block, name = self.held[start], f"earlier {len(names) + len(waiting) + 1}"
            if start > at:
                blocks.append(SavedBlock(at, start - at))
            state = "awaiting free" if block.awaits else "allocated"
            blocks.append(SavedBlock(start, block.bytes, state, name, block.requested, block.awaits))
            (waiting if block.awaits else names)[start] = name
            at = start + block.bytes
        if at < piece.end:
            blocks.append(SavedBlock(at, piece.end - at))
        return blocks


# Forwards


class _Step(NamedTuple):
    """An event with what was recorded along with it."""

    event: Event | None  # None: memory was given back, and nothing else is known
    operations: Sequence[Operation] = ()
    late: Sequence[FreeCompleted] = ()  # frees that were completed while memory was given back
    address: int | None = None  # where the block was put; None if it failed, or if nothing was allocated


def _steps(entries: Sequence[TraceEntry], names: dict[int, Any], waiting: dict[int, Any]) -> list[_Step]:
    """Group the entries: what happens inside of one call to the allocator belongs together.

    Args:
        entries: the history.
        names: what is allocated at the beginning, by address.
        waiting: what was freed before the beginning, and had not been completed then.
    """
    names, waiting = dict(names), dict(waiting)
    steps: list[_Step] = []
    count = 0
    operations: list[Operation] = []
    completed: list[FreeCompleted] = []

    def flush() -> None:
        if operations:
            steps.append(_Step(None, tuple(operations), tuple(completed)))
        else:
            steps.extend(_Step(event) for event in completed)
        operations.clear()
        completed.clear()

    def take(items: list[Any]) -> tuple[Any, ...]:
        taken = tuple(items)
        items.clear()
        return taken

    requests = any(entry.action == "free_requested" for entry in entries)
    for index, (action, address, size, stream) in enumerate(entries):
        if action in _SEGMENT_ACTIONS:
            operations.append(Operation(action, address, size))
        elif action == "free_completed" and address in waiting:
            completed.append(FreeCompleted(waiting.pop(address)))
        elif action == "free_completed" and not requests:
            flush()
            steps.append(_Step(Free(names.pop(address))))
        elif action in ("alloc", "oom"):
            count += 1
            gives_back = any(operation.action in GIVES_BACK for operation in operations)
            own, late = (), ()
            # Given back and then served from the cache: that was another call.
            if not (gives_back and action == "alloc" and operations[-1].action in GIVES_BACK):
                own, late = take(operations), take(completed) if gives_back else ()
            flush()
            steps.append(_Step(Allocate(count, size, stream), own, late, address if action == "alloc" else None))
            if action == "alloc":
                names[address] = count
        elif action == "free_requested":
            flush()
            name = names.pop(address)
            at_once = entries[index + 1 : index + 2]
            completes = bool(at_once) and at_once[0][:2] == ("free_completed", address)
            if not completes:
                waiting[address] = name
            steps.append(_Step(Free(name, completes)))
        elif action == "snapshot":
            flush()
    flush()
    return steps


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A memory snapshot of one device, read by :func:`read_snapshot`.

    Attributes:
        events: the requests and frees, for :func:`course_utils.simulate_allocator` under any options. They begin with a
            request for each block that was in use when the history begins. Memory that was given back is an
            :class:`EmptyCache`, unless new memory was taken right after it: the allocator does that by itself at a
            limit.
        options: the options that were in force, as the snapshot states them.
        start: the segments when the history begins; empty if nothing was cached then.
        end: the segments at the moment of the snapshot.
        notes: what a reader must know, in words.
    """

    device: int
    entries: tuple[TraceEntry, ...]
    events: tuple[Event, ...]
    options: AllocatorOptions
    start: AllocatorState
    end: AllocatorState
    notes: tuple[str, ...]
    _steps: Sequence[_Step] = field(repr=False)
    _saved: SavedAllocator = field(repr=False)

    def __repr__(self) -> str:
        lines = [f"device {self.device}: {len(self.entries)} entries, options: {self.options.text or 'defaults'}"]
        for when, state in (("beginning", self.start), ("end", self.end)):
            reserved, allocated = short_bytes(state.reserved_bytes), short_bytes(state.allocated_bytes)
            lines.append(f"at the {when} {reserved} reserved, {allocated} allocated")
        return "\n".join((*lines, *self.notes))

    def replay(
        self,
        options: AllocatorOptions | str | None = None,
        *,
        cap_bytes: int | None = None,
        device_bytes: int | None = None,
        ties: Ties = "oldest",
    ) -> Replay:
        """Let the recorded requests happen to the simulated allocator, and compare its memory with the recorded.

        Args:
            options: the options; by default those of the snapshot.
            cap_bytes: how much the process was allowed to take, if it was limited.
            device_bytes: the device's memory, if it was full.
            ties: ``oldest`` as in PyTorch 2.13, ``lowest`` as in 2.11; see :func:`course_utils.simulate_allocator`. A
                snapshot does not say which version it is from: where this rule does not fit, the other one is tried.

        Returns:
            The comparison, by the rule that fits better; its ``ties`` says which.

        Raises:
            ValueError: if a limit makes no sense.

        Example:
            >>> alloc = {"action": "alloc", "addr": 2**21, "size": 100, "stream": 0}
            >>> segment = {"action": "segment_alloc", "addr": 2**21, "size": 2**21, "stream": 0}
            >>> blocks = [{"size": 512, "state": "active_allocated"}, {"size": 2**21 - 512, "state": "inactive"}]
            >>> end = {"address": 2**21, "total_size": 2**21, "stream": 0, "segment_type": "small", "blocks": blocks}
            >>> read_snapshot({"segments": [end], "device_traces": [[segment, alloc]]}).replay().agrees
            True
        """
        chosen = self.options if options is None else options_of(options)
        if cap_bytes is None and device_bytes is None:
            chosen = replace(chosen, per_process_memory_fraction=1.0)
        cap_bytes = checked_cap(chosen, cap_bytes, device_bytes, ties)
        asked = _Replayer(self, chosen, cap_bytes, device_bytes, ties).replay()
        if asked.agrees and not asked.moved:
            return asked
        other = _Replayer(self, chosen, cap_bytes, device_bytes, "lowest" if ties == "oldest" else "oldest").replay()
        if (len(asked.differences), asked.moved) <= (len(other.differences), other.moved):
            return asked
        note = f"Of cached blocks of one size, ties={other.ties!r} fits this record better than {ties!r} does."
        return replace(other, notes=(*other.notes, note))


@dataclass(frozen=True)
class Difference:
    """Where the simulation and the record part: in calls to the device, or in the memory that is reserved then."""

    event: int  # the index in the replay's run
    recorded: tuple[Operation, ...]
    simulated: tuple[Operation, ...]
    recorded_reserved_bytes: int
    simulated_reserved_bytes: int


@dataclass(frozen=True, eq=False)
class Replay:
    """Recorded against simulated memory.

    Attributes:
        run: the simulation of the recorded requests.
        recorded_reserved_bytes: reserved memory after each of its events, as recorded.
        differences: every event at which the calls to the device or the reserved memory differ.
        blocks: number of requests that were met.
        moved: how many of them were put at another address than recorded. Where an expandable segment began whose
            first pages the full device refused is not recorded, so blocks after that may count as moved.
        unexplained: how often memory was given back that no request under the given limits explains: calls of
            ``empty_cache()``, or a full device. They are taken over from the record, not predicted.
        same_end: whether the segments and blocks at the end are those of the snapshot.
        notes: what a reader must know, in words.
    """

    run: AllocatorRun
    recorded_reserved_bytes: tuple[int, ...]
    differences: tuple[Difference, ...]
    blocks: int
    moved: int
    unexplained: int
    same_end: bool
    notes: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether reserved memory is the recorded one, to the byte, after every call to the device and every event."""
        return not self.differences

    @property
    def ties(self) -> Ties:
        """Which of several cached blocks of the same size was used."""
        return self.run.ties

    def __repr__(self) -> str:
        points = sum(map(len, self.run.operations.values())) + len(self.run)
        if self.agrees:
            lines = [f"Reserved memory is simulated as recorded, to the byte, at all {points} points."]
        else:
            first = self.differences[0]
            lines = [
                f"Reserved memory differs at {len(self.differences)} of {len(self.run)} events, first at event "
                f"{first.event}: recorded {short_bytes(first.recorded_reserved_bytes)}, simulated "
                f"{short_bytes(first.simulated_reserved_bytes)}."
            ]
        lines.append(f"{self.blocks - self.moved} of {self.blocks} blocks lie where they were recorded.")
        if self.unexplained:
            lines.append(
                f"{self.unexplained} times memory was given back without a request that explains it (empty_cache(), or "
                "a limit that was not given): taken over from the record."
            )
        return "\n".join((*lines, *self.notes))


class _Replayer:
    """One replay of a snapshot."""

    def __init__(
        self,
        snapshot: Snapshot,
        options: AllocatorOptions,
        cap_bytes: int | None,
        device_bytes: int | None,
        ties: Ties,
    ) -> None:
        self.snapshot = snapshot
        self.limited = cap_bytes is not None or device_bytes is not None
        self.observed: list[Sequence[Operation]] = []  # of each event, the recorded calls to the device
        self.parted: int | None = None  # the first event whose calls differ
        self.blocks = self.moved = self.unexplained = 0
        self.place_now = self.place(0)
        self.allocator = Allocator(
            options, cap_bytes, device_bytes, lambda action, size: self.place_now(action, size), ties
        )
        self.allocator.restore(snapshot._saved)

    def place(self, index: int) -> Place:
        """Where the device put the memory that it gave for an event, for as long as the simulation keeps to it."""
        kept = self.parted is None or index <= self.parted
        left = list(self.observed[index]) if index < len(self.observed) and kept else []

        def address(action: str, size: int) -> int | None:
            for position, operation in enumerate(left):
                if operation.action == action and (action == "segment_map" or operation.bytes == size):
                    return left.pop(position).address
            return None

        return address

    def before(self, index: int) -> None:
        """Compares the event before, and gets ready for the next one."""
        if self.parted is None and index and not _same(self.observed[index - 1], self.allocator.operations):
            self.parted = index - 1
        self.place_now = self.place(index)

    def events(self) -> Iterator[Event]:
        """What happens to the simulated allocator, which depends on what it did before."""
        for step in self.snapshot._steps:
            recorded = step.operations
            early, empties = self._explained(step)
            for late in early:
                yield self._observe(late)
            if empties:
                self.unexplained += 1
                gives_back = [at for at, operation in enumerate(recorded, 1) if operation.action in GIVES_BACK]
                count = max(gives_back, default=len(recorded))
                yield self._observe(EmptyCache(), recorded[:count])
                recorded = recorded[count:]
            if step.event is not None:
                yield from self._event(step, recorded)
            for late in step.late:
                if late.id in self.allocator.pending:
                    yield self._observe(late)

    def _observe(self, event: Event, recorded: Sequence[Operation] = ()) -> Event:
        """Keeps what was recorded along with an event."""
        self.observed.append(recorded)
        return event

    def _event(self, step: _Step, recorded: Sequence[Operation]) -> Iterator[Event]:
        failed = isinstance(step.event, Allocate) and step.address is None and step.event.bytes > 0
        if not failed or self.limited:
            yield self._observe(step.event, recorded)
        block = self.allocator.live.get(step.event.id)
        if step.address is not None:
            self.blocks += 1
            self.moved += block is None or block.address != step.address
        elif failed and block is not None:
            # The record ran out of memory here, and the simulation did not.
            yield self._observe(Free(step.event.id))

    def _explained(self, step: _Step) -> tuple[Sequence[FreeCompleted], bool]:
        """What must have happened before an event so that the simulation gives memory back as recorded.

        Tried out on copies: nothing; that frees were completed first; that the cache was emptied first.

        Returns:
            The completions, and whether the cache is to be emptied.
        """
        if step.event is None:
            return (), True
        if not any(operation.action in GIVES_BACK for operation in step.operations):
            return (), False
        if not self.limited:
            return (), True
        saved = self.allocator.export()

        def tried(*events: Event) -> list[Operation]:
            copy = Allocator(
                self.allocator.options, self.allocator.cap, self.allocator.device, ties=self.allocator.ties
            )
            copy.restore(saved)
            operations: list[Operation] = []
            for event in events:
                copy.apply(event)
                operations += copy.operations
            return operations

        alone = tried(step.event)
        if _same(step.operations, alone):
            return (), False
        early = [late for late in step.late if late.id in self.allocator.pending]
        if early and _same(step.operations, tried(*early, step.event)):
            return early, False
        empties = _same(step.operations, tried(EmptyCache(), step.event))
        return (), empties or not any(operation.action in GIVES_BACK for operation in alone)

    def replay(self) -> Replay:
        run = run_events(self.allocator, self.events(), stops=False, place=self.place, before=self.before)
        level, levels, differences = self.snapshot.start.reserved_bytes, [], []
        for index, recorded in enumerate(self.observed):
            simulated, reserved = run.operations.get(index, ()), run.reserved_bytes[index]
            level += sum(operation.change_bytes for operation in recorded)
            levels.append(level)
            if not _same(recorded, simulated) or level != reserved:
                differences.append(Difference(index, tuple(recorded), simulated, level, reserved))
        return Replay(
            run,
            tuple(levels),
            tuple(differences),
            self.blocks,
            self.moved,
            self.unexplained,
            _shape(run.state(len(run))) == _shape(self.snapshot.end),
            self.snapshot.notes,
        )


def _same(recorded: Sequence[Operation], simulated: Sequence[Operation]) -> bool:
    return [(one.action, one.bytes) for one in recorded] == [(one.action, one.bytes) for one in simulated]


def _shape(state: AllocatorState) -> list[Any]:
    """What two states have in common that are the same but for names and reservations."""
    return [
        (
            segment.address,
            segment.stream,
            segment.pool,
            [(block.address, block.bytes, block.state) for block in segment.blocks],
        )
        for segment in state.segments
    ]


def read_snapshot(source: str | Path | Mapping[str, Any], *, device: int | None = None) -> Snapshot:
    """Read a memory snapshot, without running anything that is in the file.

    A history that begins while memory is cached already is handled: the segments at its beginning are reconstructed
    from those at its end. What cannot be known then (how old cached blocks are) is said in ``notes``.

    Args:
        source: a file that ``torch.cuda.memory._dump_snapshot`` wrote, the same as JSON, or what
            ``torch.cuda.memory._snapshot()`` returns.
        device: the index of the device; by default the only one with a history.

    Returns:
        History, events and segments.

    Raises:
        ValueError: if the file is damaged, cut off, no snapshot, or a pickle that would load code; if the history and
            the segments contradict each other; if a private pool is in it. The message says which.

    Example:
        >>> read_snapshot({"segments": [], "device_traces": [[]]}).events
        ()
    """
    snapshot = _load(source)
    if not isinstance(snapshot, Mapping) or "segments" not in snapshot or "device_traces" not in snapshot:
        raise ValueError(
            "a snapshot is a dictionary with 'segments' and 'device_traces'; record one with "
            "torch.cuda.memory._record_memory_history() and torch.cuda.memory._dump_snapshot()"
        )
    try:
        return _read(snapshot, device)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"a part of the snapshot is damaged: {type(error).__name__}: {error}") from None


def _device(traces: Sequence[Sequence[Any]], device: int | None) -> int:
    if device is None:
        used = [index for index, trace in enumerate(traces) if trace]
        if len(used) > 1:
            raise ValueError(f"the snapshot has histories of the devices {used}: choose one with device=")
        return used[0] if used else 0
    if not 0 <= device < max(len(traces), 1):
        raise ValueError(f"the snapshot has no device {device}; it has {len(traces)}")
    return device


def _read(snapshot: Mapping[str, Any], device: int | None) -> Snapshot:
    traces = snapshot["device_traces"]
    device = _device(traces, device)
    entries = _entries(traces[device]) if traces else ()
    options, notes = recorded_options(snapshot)
    undo = _Undo(*_segments(snapshot["segments"], device), options, entries)
    end = _state_of(undo.saved()[0], options)
    for index in range(len(entries) - 1, -1, -1):
        problem = undo.entry(entries[index])
        if problem is not None:
            raise ValueError(
                f"the history and the segments contradict each other at trace entry {index} ({entries[index].action}): "
                f"{problem}. Was something changed while the snapshot was taken, or left out with skip_actions?"
            )
    last = max((entry.address + entry.bytes for entry in entries), default=0)
    saved, names, waiting = undo.saved(beyond=last + SMALL_SEGMENT_BYTES)
    start = _state_of(saved, options)
    if start.segments:
        notes.append(
            f"The history begins with {short_bytes(start.reserved_bytes)} reserved and "
            f"{short_bytes(start.allocated_bytes)} allocated: reconstructed backwards from the end. How old blocks and "
            "segments were then is not known."
        )
    steps = _steps(entries, names, waiting)
    earlier = sorted({**names, **waiting}.items())
    events = (
        *(Allocate(name, undo.held[at].requested, undo.held[at].stream) for at, name in earlier),
        *(Free(name, completes=False) for name in waiting.values()),
        *(event for step in steps for event in (EmptyCache() if step.event is None else step.event, *step.late)),
    )
    return Snapshot(device, entries, events, options, start, end, tuple(notes), steps, saved)


def _state_of(saved: SavedAllocator, options: AllocatorOptions) -> AllocatorState:
    allocator = Allocator(options)
    allocator.restore(saved)
    return allocator.state(0)
