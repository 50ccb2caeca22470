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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from course_utils.allocator import (
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    Allocate,
    AllocatorOptions,
    AllocatorRun,
    AllocatorState,
    EmptyCache,
    Event,
    Free,
    FreeCompleted,
    Operation,
    Ties,
    _Allocator,
    _check_ties,
    _settings,
    _short,
    apply_or_fail,
    round_size,
    run_events,
)

DEFAULT_LIMIT_BYTES = 2**29
_SEGMENT_ACTIONS = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")
_GIVES_BACK = ("segment_free", "segment_unmap")
_ACTIONS = ("alloc", "free_requested", "free_completed", *_SEGMENT_ACTIONS, "oom", "snapshot")
_BLOCK_STATES = {
    "active_allocated": "allocated",
    "active_pending_free": "awaiting free",
    "active_awaiting_free": "awaiting free",
    "inactive": "free",
}


# Reading


def _arguments() -> dict[int, int | str]:
    """How many bytes follow each opcode of a pickle that only builds containers, texts and numbers.

    A text says how the number of bytes is written in front of them. Everything that looks up or calls something
    (GLOBAL, INST, OBJ, REDUCE, BUILD, NEWOBJ, EXT, PERSID and their variants) is missing on purpose.
    """
    plain = "(.0]})aelstu2N\x85\x86\x87\x88\x89\x8f\x90\x91\x94"  # marks, containers, None, truth values, memoize
    numbers = {"J": 4, "K": 1, "M": 2, "G": 8, "h": 1, "q": 1, "j": 4, "r": 4, "\x80": 1, "\x95": 8}
    counted = {"U": "1", "X": "4", "\x8c": "1", "\x8d": "8", "\x8a": "1", "\x8b": "4", "C": "1", "B": "4", "T": "4"}
    lines = dict.fromkeys("ILFSVgp", "line")
    counted["\x8e"] = "8"
    return {ord(k): v for k, v in {**dict.fromkeys(plain, 0), **numbers, **counted, **lines}.items()}


_ARGUMENTS = _arguments()
_PUTS = {ord("p"), ord("q"), ord("r")}


def _check_pickle(data: bytes) -> None:
    """Look at every opcode before anything is built.

    Raises:
        ValueError: if the pickle could do more than build containers, or is cut off.
    """
    at, end, count = 0, len(data), 0
    arguments = _ARGUMENTS
    while at < end:
        opcode = data[at]
        size = arguments.get(opcode)
        count += 1
        at += 1
        if size is None:
            raise ValueError(
                f"the pickle is refused: its instruction {bytes([opcode])!r} at byte {at - 1} builds more than lists, "
                "dictionaries, texts and numbers. A memory snapshot needs no more; do not load this file"
            )
        if opcode == 0x2E:  # STOP
            return
        if size.__class__ is int:
            value = data[at : at + size]
            at += size
        elif size == "line":
            found = data.find(b"\n", at)
            value = data[at:found]
            at = end + 1 if found < 0 else found + 1
        else:
            width = int(size)
            value = b""
            at += width + int.from_bytes(data[at : at + width], "little")
        # The memo is an array: a large index would take gigabytes without a byte of content.
        if opcode in _PUTS:
            index = int(value) if opcode == 0x70 and value.isdigit() else int.from_bytes(value, "little")
            if index > count:
                raise ValueError(f"the pickle is refused: it numbers its parts out of order (byte {at})")
    raise ValueError(f"the pickle is cut off after {end} bytes; copy the file again")


class _PlainUnpickler(pickle.Unpickler):
    """Builds containers only. The check above refuses earlier; this refuses again."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is refused")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a persistent object is refused")


def _load(source: Any, limit_bytes: int) -> Any:
    if isinstance(source, Mapping):
        return source
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"there is no file {str(source)!r}: pass the path of a snapshot, or the snapshot itself")
    size = path.stat().st_size
    if size > limit_bytes:
        raise ValueError(
            f"{path.name} has {_short(size)}, more than the {_short(limit_bytes)} that are read; record fewer entries "
            "(max_entries=, context=None), or pass limit_bytes="
        )
    data = path.read_bytes()
    try:
        if data[:1] == b"\x80":
            _check_pickle(data)
            return _PlainUnpickler(io.BytesIO(data)).load()
        return json.loads(data)
    except ValueError as error:
        kind = "pickle" if data[:1] == b"\x80" else "JSON"
        raise ValueError(f"{path.name} is no snapshot that can be read ({kind}): {error}") from None
    except (
        *(pickle.UnpicklingError, EOFError, LookupError, TypeError, AttributeError),
        *(RecursionError, OverflowError, MemoryError),
    ) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from None


class TraceEntry(NamedTuple):
    """One line of the history that PyTorch records.

    Attributes:
        action: ``alloc``, ``free_requested``, ``free_completed``, ``segment_alloc``, ``segment_free``, ``segment_map``,
            ``segment_unmap``, ``oom`` or ``snapshot``.
        address: where; 0 for ``oom``.
        bytes: for a tensor what was asked for, for a segment its size.
        stream: the stream.
    """

    action: str
    address: int
    bytes: int
    stream: int


def _number(mapping: Mapping[str, Any], key: str, where: str) -> int:
    value = mapping.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{where} has no usable {key!r}: {str(value)[:60]!r}")
    return value


def _list(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"a snapshot is a dictionary with lists under 'segments' and 'device_traces'; look at {where}")
    return value


def _default_pool(pool: Any, where: str) -> None:
    if pool is not None and tuple(_list(pool, where)) != (0, 0):
        raise ValueError(
            f"{where} belongs to a private pool {tuple(pool)} (a CUDA graph, or torch.cuda.MemPool), which is not "
            "simulated; record a snapshot without it"
        )


def _entries(trace: Sequence[Any]) -> tuple[TraceEntry, ...]:
    found = []
    for index, entry in enumerate(trace):
        where = f"trace entry {index}"
        if not isinstance(entry, Mapping) or entry.get("action") not in _ACTIONS:
            action = entry.get("action") if isinstance(entry, Mapping) else entry
            raise ValueError(f"{where} has an unknown action {str(action)[:60]!r}; there are {', '.join(_ACTIONS)}")
        action = entry["action"]
        if action == "snapshot":
            found.append(TraceEntry(action, 0, 0, 0))
            continue
        _default_pool(entry.get("pool_id"), where)
        address = 0 if action == "oom" else _number(entry, "addr", where)
        found.append(TraceEntry(action, address, _number(entry, "size", where), _number(entry, "stream", where)))
    return tuple(found)


@dataclass
class _Piece:
    """A segment while the history is undone."""

    address: int
    bytes: int
    stream: int
    pool: str
    expandable: bool


class _Held(NamedTuple):
    """A block that is not free, while the history is undone."""

    bytes: int
    requested: int
    stream: int
    state: str


def _segments(listed: Sequence[Any], device: int) -> tuple[list[_Piece], dict[int, _Held]]:
    """The segments at the moment of the snapshot, and the blocks in them that are not free."""
    pieces, held = [], {}
    for index, segment in enumerate(listed):
        where = f"segment {index}"
        if not isinstance(segment, Mapping):
            raise ValueError(f"{where} is no dictionary")
        if segment.get("device", 0) != device:
            continue
        _default_pool(segment.get("segment_pool_id"), where)
        if segment.get("segment_type") not in ("small", "large"):
            raise ValueError(f"{where} has an unknown segment_type {str(segment.get('segment_type'))[:60]!r}")
        address, size = _number(segment, "address", where), _number(segment, "total_size", where)
        stream = _number(segment, "stream", where)
        pieces.append(_Piece(address, size, stream, segment["segment_type"], bool(segment.get("is_expandable", False))))
        at = address
        for block in _list(segment.get("blocks"), where):
            if not isinstance(block, Mapping) or block.get("state") not in _BLOCK_STATES:
                raise ValueError(f"{where} has a block in an unknown state")
            state, length = _BLOCK_STATES[block["state"]], _number(block, "size", where)
            if state != "free":
                held[at] = _Held(length, block.get("requested_size") or length, stream, state)
            at += length
        if at != address + size:
            raise ValueError(f"the blocks of {where} do not fill it: {at - address} of {size} bytes")
    return sorted(pieces, key=lambda piece: piece.address), held


class _Undo:
    """Goes backwards through the history, from the segments of the snapshot to those at its beginning."""

    def __init__(self, pieces: list[_Piece], held: dict[int, _Held], options: AllocatorOptions) -> None:
        self.pieces = {piece.address: piece for piece in pieces}
        self.held, self.options, self.beyond = dict(held), options, 0

    def _containing(self, address: int, size: int) -> _Piece | None:
        starts = [start for start in self.pieces if start <= address]
        piece = self.pieces[max(starts)] if starts else None
        return piece if piece is not None and address + size <= piece.address + piece.bytes else None

    def _empty(self, address: int, size: int) -> bool:
        return not any(start < address + size and address < start + one.bytes for start, one in self.held.items())

    def entry(self, entry: TraceEntry) -> str | None:
        """Undo one entry. Returns what does not fit, if anything."""
        action, address, size, stream = entry
        if action == "alloc":
            if self.held.pop(address, None) is None:
                return "nothing is allocated where it allocates"
        elif action == "free_requested":
            block = self.held.get(address)
            if block is None or block.state == "allocated":
                return "the block that it frees is not free afterwards"
            self.held[address] = block._replace(state="allocated")
        elif action == "free_completed":
            return self._undo_free(address, size, stream)
        elif action in ("segment_alloc", "segment_map"):
            return self._undo_growth(address, size)
        elif action in _GIVES_BACK:
            return self._undo_release(entry)
        return None

    def _undo_free(self, address: int, size: int, stream: int) -> str | None:
        length = round_size(size, self.options)
        piece = self._containing(address, length)
        if piece is None or not self._empty(address, length):
            return "the block that it frees is not free afterwards"
        end = min((start for start in self.held if start >= address + length), default=piece.address + piece.bytes)
        rest = min(end, piece.address + piece.bytes) - address - length
        # What was left of the block may have been too small to split off: should_split.
        limit = self.options.max_split_size_bytes
        if not (piece.pool == "small" or self.options.expandable_segments) and (
            rest <= SMALL_REQUEST_BYTES or (limit is not None and length >= limit)
        ):
            length += rest
        self.held[address] = _Held(length, size, stream, "awaiting free")
        return None

    def _undo_growth(self, address: int, size: int) -> str | None:
        piece = self._containing(address, size)
        if piece is None or not self._empty(address, size):
            return "the memory that it takes is not there, or is in use"
        del self.pieces[piece.address]
        before, after = address - piece.address, piece.address + piece.bytes - address - size
        if (before or after) and not piece.expandable:
            return "it takes a part of a segment that cannot grow"
        if before:
            self.pieces[piece.address] = replace(piece, bytes=before)
        if after:
            self.pieces[address + size] = replace(piece, address=address + size, bytes=after)
        return None

    def _undo_release(self, entry: TraceEntry) -> str | None:
        _, address, size, stream = entry
        if any(one.address < address + size and address < one.address + one.bytes for one in self.pieces.values()):
            return "the memory that it gives back is still there"
        expandable = entry.action == "segment_unmap"
        neighbours = [one for one in self.pieces.values() if one.expandable and one.stream == stream]
        before = next((one for one in neighbours if one.address + one.bytes == address), None) if expandable else None
        after = next((one for one in neighbours if one.address == address + size), None) if expandable else None
        if size == SMALL_SEGMENT_BYTES or (expandable and size % self.options.large_segment_bytes):
            pool = "small"
        else:
            pool = (before or after).pool if before or after else "large"
        piece = _Piece(address, size, stream, pool, expandable)
        if before is not None and before.pool == pool:
            piece.address, piece.bytes = before.address, before.bytes + piece.bytes
        if after is not None and after.pool == pool:
            piece.bytes += after.bytes
            del self.pieces[after.address]
        self.pieces[piece.address] = piece
        return None

    def exported(self) -> tuple[Any, ...]:
        """The beginning, as the simulated allocator takes it, and the names of the blocks by address."""
        names, count = {}, 0
        chains, last = [], {}
        pending = []
        for piece in sorted(self.pieces.values(), key=lambda one: one.address):
            chain, at = [], piece.address
            for start in sorted(one for one in self.held if piece.address <= one < piece.address + piece.bytes):
                block = self.held[start]
                if start > at:
                    chain.append((at, start - at, 0, True, None, 0, False, 0))
                count += 1
                names[start] = f"earlier {count}"
                waits = block.state != "allocated"
                if waits:
                    pending.append(names[start])
                chain.append((start, block.bytes, 2 if waits else 1, True, names[start], block.requested, waits, 0))
                at = start + block.bytes
            if at < piece.address + piece.bytes:
                chain.append((at, piece.address + piece.bytes - at, 0, True, None, 0, False, 0))
            key = (piece.stream, piece.pool)
            if piece.expandable and key in last:
                # One reservation for each stream and pool: between its pages lie addresses without memory.
                earlier = last[key]
                end = earlier[3][-1][0] + earlier[3][-1][1]
                earlier[3].append((end, piece.address - end, 0, False, None, 0, False, 0))
                earlier[3].extend(chain)
                continue
            entry = [piece.stream, piece.pool == "small", None, chain, len(chains) + 1]
            if piece.expandable:
                last[key] = entry
            chains.append(entry)
        for (_, pool), entry in last.items():
            page = SMALL_SEGMENT_BYTES if pool == "small" else self.options.large_segment_bytes
            base, end = entry[3][0][0], entry[3][-1][0] + entry[3][-1][1]
            size = -(-(2**40) // page) * page
            entry[2] = (base, size, page)
            entry[3].append((end, base + size - end, 0, False, None, 0, False, 0))
        reserved_end = max((piece.address + piece.bytes for piece in self.pieces.values()), default=0)
        beyond = max(reserved_end, self.beyond), len(chains)
        state = [tuple(entry) for entry in chains], (0, 0), beyond, tuple(pending), ()
        return state, names


class _Step(NamedTuple):
    """An event with what was recorded along with it."""

    event: Event | None  # None: memory was given back, and nothing else is known
    operations: tuple[Operation, ...]
    late: tuple[FreeCompleted, ...]  # frees that were completed while memory was given back
    address: int | None  # where the block was put; None if it failed, or if nothing was allocated


def _steps(entries: Sequence[TraceEntry], names: dict[int, Any]) -> tuple[list[_Step], list[str]]:
    """Group the entries: what happens inside of one call to the allocator belongs together."""
    actions = {entry.action for entry in entries}
    notes = []
    requests, completions = "free_requested" in actions, "free_completed" in actions
    if requests and not completions:
        notes.append("The trace has no free_completed entries: every free is taken as completed at once.")
    names, steps, count = dict(names), [], 0
    waiting: dict[int, Any] = {}
    operations: list[Operation] = []
    completed: list[FreeCompleted] = []

    def flush() -> None:
        if operations:
            steps.append(_Step(None, tuple(operations), tuple(completed), None))
        else:
            steps.extend(_Step(one, (), (), None) for one in completed)
        operations.clear()
        completed.clear()

    for index, entry in enumerate(entries):
        action, address, size, stream = entry
        if action in _SEGMENT_ACTIONS:
            operations.append(Operation(action, address, size))
            continue
        if action == "free_completed":
            if address in waiting:
                completed.append(FreeCompleted(waiting.pop(address)))
            elif not requests:
                flush()
                steps.append(_Step(Free(_taken(names, address, index)), (), (), None))
            continue
        if action in ("alloc", "oom"):
            count += 1
            taken = [one for one in operations if one.action in _GIVES_BACK]
            if not taken or (action == "alloc" and operations[-1].action in _GIVES_BACK):
                # Given back and then served from the cache: that was another call.
                own = [] if taken else list(operations)
                if not taken:
                    operations.clear()
                flush()
                late = ()
            else:
                own, late = list(operations), tuple(completed)
                operations.clear()
                completed.clear()
            steps.append(_Step(Allocate(count, size, stream), tuple(own), late, address if action == "alloc" else None))
            if action == "alloc":
                names[address] = count
            continue
        flush()
        if action == "free_requested":
            name = _taken(names, address, index)
            following = entries[index + 1] if index + 1 < len(entries) else None
            at_once = not completions or (
                following is not None and following.action == "free_completed" and following.address == address
            )
            if not at_once:
                waiting[address] = name
            steps.append(_Step(Free(name, at_once), (), (), None))
    flush()
    return steps, notes


def _taken(names: dict[int, Any], address: int, index: int) -> Any:
    if address not in names:
        raise ValueError(f"trace entry {index} frees {address:#x}, where nothing is allocated")
    return names.pop(address)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A memory snapshot of one device, read by :func:`read_snapshot`.

    Attributes:
        device: the index of the device.
        entries: the recorded history.
        events: the requests and frees, for :func:`course_utils.simulate_allocator` under any options. Memory that was
            given back is an :class:`EmptyCache`, unless new memory was taken right after it: the allocator does that by
            itself at a limit.
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
    _exported: tuple[Any, ...] = field(repr=False)

    def __repr__(self) -> str:
        lines = [
            f"device {self.device}: {len(self.entries)} entries, options: {self.options.text or 'defaults'}",
            f"at the beginning {_short(self.start.reserved_bytes)} reserved, "
            f"{_short(self.start.allocated_bytes)} allocated",
            f"at the end {_short(self.end.reserved_bytes)} reserved, {_short(self.end.allocated_bytes)} allocated",
        ]
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
            ties: ``oldest`` for snapshots of PyTorch 2.13, ``lowest`` for those of 2.11; see
                :func:`course_utils.simulate_allocator`. It can move blocks, and rarely changes what is reserved.

        Returns:
            The comparison.

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
        chosen = self.options if options is None else options
        if not isinstance(chosen, AllocatorOptions):
            chosen = AllocatorOptions.parse(chosen)
        if chosen.per_process_memory_fraction < 1 and cap_bytes is None and device_bytes is None:
            chosen = replace(chosen, per_process_memory_fraction=1.0)
        chosen, cap_bytes = _settings(chosen, cap_bytes, device_bytes)
        _check_ties(ties)
        return _replay(self, chosen, cap_bytes, device_bytes, ties)


@dataclass(frozen=True)
class Difference:
    """Where the simulation and the record part.

    Attributes:
        event: the index in the replay's run.
        recorded: the calls to the device that were recorded for it.
        simulated: those that the simulation made.
        recorded_reserved_bytes: reserved memory after it, as recorded.
        simulated_reserved_bytes: and as simulated.
    """

    event: int
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
        moved: how many of them were put at another address than recorded.
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

    def __repr__(self) -> str:
        points = sum(map(len, self.run.operations.values())) + len(self.run)
        if self.agrees:
            lines = [f"Reserved memory is simulated as recorded, to the byte, at all {points} points."]
        else:
            first = self.differences[0]
            lines = [
                f"Reserved memory differs at {len(self.differences)} of {len(self.run)} events, first at event "
                f"{first.event}: recorded {_short(first.recorded_reserved_bytes)}, simulated "
                f"{_short(first.simulated_reserved_bytes)}."
            ]
        lines.append(f"{self.blocks - self.moved} of {self.blocks} blocks lie where they were recorded.")
        if self.unexplained:
            lines.append(
                f"{self.unexplained} times memory was given back without a request that explains it (empty_cache(), or "
                "a limit that was not given): taken over from the record."
            )
        return "\n".join((*lines, *self.notes))


def _replay(
    snapshot: Snapshot, options: AllocatorOptions, cap_bytes: int | None, device_bytes: int | None, ties: Ties
) -> Replay:
    observed: list[tuple[Operation, ...]] = []
    parted: int | None = None
    counts = {"blocks": 0, "moved": 0, "unexplained": 0}

    def place(index: int) -> Any:
        """Where the device put the memory that it gave for an event, for as long as the simulation keeps to it."""
        kept = parted is None or index <= parted
        left = list(observed[index]) if index < len(observed) and kept else []

        def address(action: str, size: int) -> int | None:
            for position, one in enumerate(left):
                if one.action == action and (action == "segment_map" or one.bytes == size):
                    return left.pop(position).address
            return None

        return address

    current = [0, place(0)]

    def before(index: int) -> None:
        nonlocal parted
        if parted is None and index and not _same(observed[index - 1], tuple(allocator.operations)):
            parted = index - 1
        current[:] = [index, place(index)]

    allocator = _Allocator(options, cap_bytes, device_bytes, lambda action, size: current[1](action, size), ties)
    allocator.restore(snapshot._exported)

    def events() -> Iterator[Event]:
        for step in snapshot._steps:
            recorded = step.operations
            gives_back = any(one.action in _GIVES_BACK for one in recorded)
            if step.event is None or (gives_back and not _gives_back(allocator, step.event)):
                counts["unexplained"] += 1
                last = max(
                    (at for at, one in enumerate(recorded) if one.action in _GIVES_BACK), default=len(recorded) - 1
                )
                observed.append(recorded[: last + 1])
                recorded = recorded[last + 1 :]
                yield EmptyCache()
            if step.event is not None:
                failed = isinstance(step.event, Allocate) and step.address is None and step.event.bytes > 0
                if not failed or cap_bytes is not None or device_bytes is not None:
                    observed.append(recorded)
                    yield step.event
                if step.address is not None:
                    block = allocator.live.get(step.event.id)
                    counts["blocks"] += 1
                    counts["moved"] += block is None or block.address != step.address
                elif failed and step.event.id in allocator.live:
                    # The record ran out of memory here, and the simulation did not.
                    observed.append(())
                    yield Free(step.event.id)
            for late in step.late:
                if late.id in allocator.pending:
                    observed.append(())
                    yield late

    run = run_events(allocator, events(), stops=False, place=place, before=before)
    level, levels, differences = snapshot.start.reserved_bytes, [], []
    for index in range(len(run)):
        recorded, simulated = observed[index], run.operations.get(index, ())
        level += sum(one.change_bytes for one in recorded)
        levels.append(level)
        if not _same(recorded, simulated) or level != run.reserved_bytes[index]:
            differences.append(Difference(index, recorded, simulated, level, run.reserved_bytes[index]))
    same_end = _shape(run.state(len(run))) == _shape(snapshot.end)
    return Replay(run, tuple(levels), tuple(differences), **counts, same_end=same_end, notes=snapshot.notes)


def _gives_back(allocator: _Allocator, event: Event) -> bool:
    """Whether the simulation gives memory back at this event by itself. Tried out on a copy."""
    if allocator.cap is None and allocator.device is None:
        return False
    copy = _Allocator(allocator.options, allocator.cap, allocator.device, ties=allocator.ties)
    copy.restore(allocator.export())
    apply_or_fail(copy, event)
    return any(one.action in _GIVES_BACK for one in copy.operations)


def _same(recorded: Sequence[Operation], simulated: Sequence[Operation]) -> bool:
    return [(one.action, one.bytes) for one in recorded] == [(one.action, one.bytes) for one in simulated]


def _shape(state: AllocatorState) -> list[Any]:
    return [
        (
            one.address,
            one.bytes,
            one.stream,
            one.pool,
            [(block.address, block.bytes, block.state) for block in one.blocks],
        )
        for one in state.segments
    ]


def _options(snapshot: Mapping[str, Any]) -> tuple[AllocatorOptions, list[str]]:
    """The options that a snapshot says were in force."""
    settings = snapshot.get("allocator_settings")
    if not isinstance(settings, Mapping):
        return AllocatorOptions(), ["The snapshot does not say which options were in force; the defaults are assumed."]
    options = AllocatorOptions.parse(str(settings.get("PYTORCH_CUDA_ALLOC_CONF") or ""))
    changes: dict[str, Any] = {}
    if isinstance(settings.get("expandable_segments"), bool):
        changes["expandable_segments"] = settings["expandable_segments"]
    largest = settings.get("max_split_size")
    if isinstance(largest, int):
        changes["max_split_size_bytes"] = largest if 0 < largest < 2**62 else None
    if isinstance(settings.get("garbage_collection_threshold"), int | float):
        changes["garbage_collection_threshold"] = float(settings["garbage_collection_threshold"])
    divisions = settings.get("roundup_power2_divisions")
    if isinstance(divisions, Mapping) and len(divisions) == len(options.roundup_power2_divisions):
        changes["roundup_power2_divisions"] = tuple(divisions[key] for key in sorted(divisions, key=int))
    return replace(options, **changes), []


def read_snapshot(
    source: str | Path | Mapping[str, Any], *, device: int | None = None, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> Snapshot:
    """Read a memory snapshot, without running anything that is in the file.

    A history that begins while memory is cached already is handled: the segments at its beginning are reconstructed
    from those at its end. What cannot be known then (how old cached blocks are) is said in ``notes``.

    Args:
        source: a file that ``torch.cuda.memory._dump_snapshot`` wrote, the same as JSON, or what
            ``torch.cuda.memory._snapshot()`` returns.
        device: the index of the device; by default the only one with a history.
        limit_bytes: larger files are refused.

    Returns:
        History, events and segments.

    Raises:
        ValueError: if the file is damaged, cut off, too large, no snapshot, or a pickle that would build more than
            containers, texts and numbers; if the history and the segments contradict each other; if a private pool
            is in it. The message says which.

    Source:
        torch/cuda/memory.py:1027 (``_snapshot``, the shape), PyTorch 2.13.0.

    Example:
        >>> read_snapshot({"segments": [], "device_traces": [[]]}).events
        ()
    """
    snapshot = _load(source, limit_bytes)
    if not isinstance(snapshot, Mapping) or "segments" not in snapshot or "device_traces" not in snapshot:
        raise ValueError(
            "a snapshot is a dictionary with 'segments' and 'device_traces'; record one with "
            "torch.cuda.memory._record_memory_history() and torch.cuda.memory._dump_snapshot()"
        )
    traces = _list(snapshot["device_traces"], "device_traces")
    if device is None:
        used = [index for index, trace in enumerate(traces) if len(_list(trace, "device_traces"))]
        if len(used) > 1:
            raise ValueError(f"the snapshot has histories of the devices {used}: choose one with device=")
        device = used[0] if used else 0
    if traces and not 0 <= device < len(traces):
        raise ValueError(f"the snapshot has no device {device}; it has {len(traces)}")
    entries = _entries(_list(traces[device], f"device_traces[{device}]")) if traces else ()
    options, notes = _options(snapshot)
    pieces, held = _segments(_list(snapshot["segments"], "segments"), device)
    undo = _Undo(pieces, held, options)
    end = _state_of(undo, options)
    # Memory that the record has no place for is put behind all that it has.
    undo.beyond = max((entry.address + entry.bytes for entry in entries), default=0) + SMALL_SEGMENT_BYTES
    for index in range(len(entries) - 1, -1, -1):
        problem = undo.entry(entries[index])
        if problem is not None:
            raise ValueError(
                f"the history and the segments contradict each other at trace entry {index} ({entries[index].action}): "
                f"{problem}. Was something changed while the snapshot was taken, or left out with skip_actions?"
            )
    exported, names = undo.exported()
    start = _state_of(undo, options)
    if start.segments:
        notes.append(
            f"The history begins with {_short(start.reserved_bytes)} reserved and {_short(start.allocated_bytes)} "
            "allocated: reconstructed backwards from the end. How old blocks and segments were then is not known."
        )
    steps, more = _steps(entries, names)
    events = tuple(
        event for step in steps for event in (EmptyCache() if step.event is None else step.event, *step.late)
    )
    return Snapshot(device, entries, events, options, start, end, (*notes, *more), steps, exported)


def _state_of(undo: _Undo, options: AllocatorOptions) -> AllocatorState:
    allocator = _Allocator(options, None, None)
    allocator.restore(undo.exported()[0])
    return allocator.state(0)
