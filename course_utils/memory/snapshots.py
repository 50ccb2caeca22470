"""Memory snapshots of PyTorch: read safely, turned into events, and compared with the simulated allocator.

A snapshot is what ``torch.cuda.memory._snapshot()`` returns and ``_dump_snapshot()`` pickles. Reading one needs neither
torch nor a GPU, and runs nothing that is in the file.

Source:
    torch/cuda/memory.py (the shape), c10/cuda/CUDACachingAllocator.cpp (record_trace and its callers: the order of the
    entries), both PyTorch 2.13.0.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from course_utils.memory.allocator import (
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
    known_options,
    round_size,
    run_events,
    shown,
)

DEFAULT_LIMIT_BYTES = 2**29
MOST_PARTS = 10_000_000
"""No more lists, dictionaries and tuples are read, nor entries, nor blocks."""
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


def _budget(size: int) -> int:
    """How many lists, dictionaries and tuples a file of a size may hold: more than any recorded history has."""
    return min(size // 8 + 1000, MOST_PARTS)


def _text_keys(keys: Sequence[Any]) -> None:
    """Texts and small numbers: hashing anything else can take for ever, or more stack than there is."""
    for key in keys:
        if key.__class__ is not str and not (key.__class__ is int and -(2**31) <= key < 2**31):
            raise _RefusedError(f"{shown(key)} is a key of a dictionary")


class _RefusedError(Exception):
    """The pickle is not one that a snapshot is written as."""


def _built(data: bytes) -> Any:
    """Build what a pickle holds, if that is lists, dictionaries, tuples, texts and numbers.

    The instructions are carried out here and not by Python's unpickler. Those are missing on purpose that look up or
    call something (GLOBAL, INST, OBJ, REDUCE, BUILD, NEWOBJ, EXT, PERSID and their variants), that build sets, and
    those that protocols 0 and 1 need. What is built takes memory in proportion to the file.

    Raises:
        ValueError: if the pickle could do more, holds too much, or is cut off or damaged.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: list[Any] = []
    push, keep, number = stack.append, memo.append, int.from_bytes
    at, left = 0, _budget(len(data))
    try:
        while True:
            code = data[at]
            at += 1
            # The most frequent ones first.
            if code == 0x6A:  # LONG_BINGET
                push(memo[number(data[at : at + 4], "little")])
                at += 4
            elif code == 0x68:  # BINGET
                push(memo[data[at]])
                at += 1
            elif code == 0x94:  # MEMOIZE
                keep(stack[-1])
            elif code == 0x4B:  # BININT1
                push(data[at])
                at += 1
            elif code == 0x8A:  # LONG1
                size = data[at]
                if size > 32:
                    raise _RefusedError("a number is too long")
                push(number(data[at + 1 : at + 1 + size], "little", signed=True))
                at += 1 + size
            elif code == 0x4A:  # BININT
                push(number(data[at : at + 4], "little", signed=True))
                at += 4
            elif code == 0x4D:  # BININT2
                push(number(data[at : at + 2], "little"))
                at += 2
            elif code == 0x28:  # MARK
                marks.append(len(stack))
                if len(marks) > 100:
                    raise _RefusedError("it is nested too deeply")
            elif code in (0x7D, 0x5D, 0x29):  # EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE
                left -= 1
                push({} if code == 0x7D else [] if code == 0x5D else ())
            elif code in (0x75, 0x65, 0x74):  # SETITEMS, APPENDS, TUPLE
                begin = marks.pop()
                items = stack[begin:]
                del stack[begin:]
                if code == 0x75:
                    if stack[-1].__class__ is not dict or len(items) % 2:
                        raise _RefusedError("it fills something that is no dictionary")
                    _text_keys(items[::2])
                    stack[-1].update(zip(items[::2], items[1::2], strict=True))
                elif code == 0x65:
                    if stack[-1].__class__ is not list:
                        raise _RefusedError("it appends to something that is no list")
                    stack[-1].extend(items)
                else:
                    left -= 1
                    push(tuple(items))
            elif code in (0x85, 0x86, 0x87):  # TUPLE1, TUPLE2, TUPLE3
                left -= 1
                count = code - 0x84
                items = stack[-count:]
                if len(items) < count:
                    raise IndexError
                del stack[-count:]
                push(tuple(items))
            elif code == 0x8C:  # SHORT_BINUNICODE
                size = data[at]
                push(data[at + 1 : at + 1 + size].decode("utf-8", "surrogatepass"))
                at += 1 + size
            elif code == 0x58:  # BINUNICODE
                size = number(data[at : at + 4], "little")
                push(data[at + 4 : at + 4 + size].decode("utf-8", "surrogatepass"))
                at += 4 + size
            elif code in (0x43, 0x42):  # SHORT_BINBYTES, BINBYTES
                width = 1 if code == 0x43 else 4
                size = number(data[at : at + width], "little")
                push(data[at + width : at + width + size])
                at += width + size
            elif code == 0x61:  # APPEND
                value = stack.pop()
                if stack[-1].__class__ is not list:
                    raise _RefusedError("it appends to something that is no list")
                stack[-1].append(value)
            elif code == 0x73:  # SETITEM
                value, key = stack.pop(), stack.pop()
                if stack[-1].__class__ is not dict:
                    raise _RefusedError("it fills something that is no dictionary")
                _text_keys((key,))
                stack[-1][key] = value
            elif code in (0x4E, 0x88, 0x89):  # NONE, NEWTRUE, NEWFALSE
                push(None if code == 0x4E else code == 0x88)
            elif code == 0x47:  # BINFLOAT
                push(struct.unpack(">d", data[at : at + 8])[0])
                at += 8
            elif code in (0x71, 0x72):  # BINPUT, LONG_BINPUT
                width = 1 if code == 0x71 else 4
                if number(data[at : at + width], "little") != len(memo):
                    raise _RefusedError("it numbers its parts out of order")
                keep(stack[-1])
                at += width
            elif code == 0x80:  # PROTO
                at += 1
            elif code == 0x95:  # FRAME
                at += 8
            elif code == 0x2E:  # STOP
                (result,) = stack
                return result
            else:
                raise _RefusedError(
                    f"its instruction {bytes([code])!r} builds more than lists, dictionaries, texts and numbers"
                )
            if left < 0:
                raise _RefusedError("it holds more lists, dictionaries and tuples than a snapshot of its size")
    except _RefusedError as error:
        raise ValueError(
            f"the pickle is refused at byte {at - 1}: {error}. A memory snapshot needs no more; do not load this file"
        ) from None
    except (IndexError, ValueError, struct.error):
        if at >= len(data):
            raise ValueError(f"the pickle is cut off after {len(data)} bytes; copy the file again") from None
        raise ValueError(f"the pickle is damaged at byte {at - 1}; copy the file again") from None


def _load(source: Any, limit_bytes: int) -> Any:
    if isinstance(source, Mapping):
        return source
    if not isinstance(source, str | Path):
        raise ValueError(f"a snapshot is a path or what torch.cuda.memory._snapshot() returns, got {shown(source)}")
    if isinstance(limit_bytes, bool) or not isinstance(limit_bytes, int):
        raise ValueError(f"limit_bytes must be a whole number of bytes, got {shown(limit_bytes)}")
    path = Path(source)
    try:
        size = path.stat().st_size if path.is_file() else None
    except (OSError, ValueError):  # no name that a file could have
        size = None
    if size is None:
        raise ValueError(f"there is no file {shown(str(source))}: pass the path of a snapshot, or the snapshot itself")
    if size > limit_bytes:
        raise ValueError(
            f"{path.name} has {_short(size)}, more than the {_short(limit_bytes)} that are read; record fewer entries "
            "(max_entries=, context=None), or pass limit_bytes="
        )
    data = path.read_bytes()
    kind = "pickle" if data[:1] == b"\x80" else "JSON"
    try:
        if kind == "pickle":
            return _built(data)
        if data.count(b"[") + data.count(b"{") > _budget(len(data)):
            raise ValueError("it holds more lists and dictionaries than a snapshot of its size")
        return json.loads(data)
    except ValueError as error:
        raise ValueError(f"{path.name} is no snapshot that can be read ({kind}): {error}") from None
    except (RecursionError, MemoryError) as error:
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
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise ValueError(f"{where} has no usable {key!r}: {shown(value)}")
    return value


def _range(mapping: Mapping[str, Any], address: str, size: str, where: str) -> tuple[int, int]:
    """Where something lies: an address and a size that a device could have."""
    begin, length = _number(mapping, address, where), _number(mapping, size, where)
    if begin + length >= 2**63:
        raise ValueError(f"{where} has no usable {size!r}: it ends at {begin + length:#x}, beyond all memory")
    return begin, length


def _list(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"a snapshot is a dictionary with lists under 'segments' and 'device_traces'; look at {where}")
    return value


def _few(count: int, what: str) -> None:
    if count > MOST_PARTS:
        raise ValueError(f"there are more than {MOST_PARTS} {what}; record fewer entries (max_entries=)")


def _default_pool(pool: Any, where: str) -> None:
    if pool is None:
        return
    numbers = _list(pool, where)
    if len(numbers) != 2 or not all(isinstance(one, int) for one in numbers):
        raise ValueError(f"{where} has no usable pool: {shown(pool)}")
    if any(numbers):
        raise ValueError(
            f"{where} belongs to a private pool ({shown(numbers[0])}, {shown(numbers[1])}) (a CUDA graph, or "
            "torch.cuda.MemPool), which is not simulated; record a snapshot without it"
        )


def _entries(trace: Sequence[Any]) -> tuple[TraceEntry, ...]:
    _few(len(trace), "entries")
    found = []
    for index, entry in enumerate(trace):
        where = f"trace entry {index}"
        action = entry.get("action") if isinstance(entry, Mapping) else entry
        if not isinstance(action, str) or action not in _ACTIONS or not isinstance(entry, Mapping):
            raise ValueError(f"{where} has an unknown action {shown(action)}; there are {', '.join(_ACTIONS)}")
        if action == "snapshot":
            found.append(TraceEntry(action, 0, 0, 0))
            continue
        _default_pool(entry.get("pool_id"), where)
        if action == "oom":  # it has no address
            address, size = 0, _number(entry, "size", where)
        else:
            address, size = _range(entry, "addr", "size", where)
        found.append(TraceEntry(action, address, size, _number(entry, "stream", where)))
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
    _few(len(listed), "segments")
    found: list[tuple[_Piece, Sequence[Any], str]] = []
    for index, segment in enumerate(listed):
        where = f"segment {index}"
        if not isinstance(segment, Mapping):
            raise ValueError(f"{where} is no dictionary")
        if segment.get("device", 0) != device:
            continue
        _default_pool(segment.get("segment_pool_id"), where)
        kind = segment.get("segment_type")
        if not isinstance(kind, str) or kind not in ("small", "large"):
            raise ValueError(f"{where} has an unknown segment_type {shown(kind)}")
        address, size = _range(segment, "address", "total_size", where)
        stream = _number(segment, "stream", where)
        piece = _Piece(address, size, stream, kind, bool(segment.get("is_expandable", False)))
        found.append((piece, _list(segment.get("blocks"), where), where))
    found.sort(key=lambda one: one[0].address)
    for (before, _, _), (after, _, where) in pairwise(found):
        if after.address < before.address + before.bytes:
            raise ValueError(f"{where} overlaps another at {after.address:#x}")
    _few(sum(len(blocks) for _, blocks, _ in found), "blocks")
    held = {}
    for piece, blocks, where in found:
        at = piece.address
        for block in blocks:
            state = block.get("state") if isinstance(block, Mapping) else None
            if not isinstance(state, str) or state not in _BLOCK_STATES:
                raise ValueError(f"{where} has a block in an unknown state: {shown(state)}")
            length = _number(block, "size", where)
            if not length:
                raise ValueError(f"{where} has a block of 0 bytes")
            if _BLOCK_STATES[state] != "free":
                requested = length if block.get("requested_size") is None else _number(block, "requested_size", where)
                if requested > length:
                    raise ValueError(f"{where} has a block of {length} bytes for which {requested} were asked")
                held[at] = _Held(length, requested or length, piece.stream, _BLOCK_STATES[state])
            at += length
        if at != piece.address + piece.bytes:
            raise ValueError(f"the blocks of {where} do not fill it: {at - piece.address} of {piece.bytes} bytes")
    return [piece for piece, _, _ in found], held


class _Undo:
    """Goes backwards through the history, from the segments of the snapshot to those at its beginning.

    Neither segments nor blocks overlap, so what lies at an address is found in the sorted beginnings.
    """

    def __init__(
        self,
        pieces: list[_Piece],
        held: dict[int, _Held],
        options: AllocatorOptions,
        freed_state: str = "awaiting free",
    ) -> None:
        self.pieces = {piece.address: piece for piece in pieces}
        self.held, self.options, self.beyond = dict(held), options, 0
        self.freed_state = freed_state  # of a block before its free was completed
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

    def _containing(self, address: int, size: int) -> _Piece | None:
        piece = self._last_before(address + 1)
        return piece if piece is not None and address + size <= piece.address + piece.bytes else None

    def _empty(self, address: int, size: int) -> bool:
        at = bisect_left(self.held_starts, address + size)
        return not at or self.held_starts[at - 1] + self.held[self.held_starts[at - 1]].bytes <= address

    def entry(self, entry: TraceEntry) -> str | None:
        """Undo one entry. Returns what does not fit, if anything."""
        action, address, size, stream = entry
        if action == "alloc":
            block = self.held.pop(address, None)
            if block is None or size > block.bytes:
                return "nothing is allocated where it allocates, or less"
            del self.held_starts[bisect_left(self.held_starts, address)]
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
        at = bisect_left(self.held_starts, address + length)
        end = self.held_starts[at] if at < len(self.held_starts) else piece.address + piece.bytes
        rest = min(end, piece.address + piece.bytes) - address - length
        # What was left of the block may have been too small to split off: should_split.
        limit = self.options.max_split_size_bytes
        if not (piece.pool == "small" or self.options.expandable_segments) and (
            rest <= SMALL_REQUEST_BYTES or (limit is not None and length >= limit)
        ):
            length += rest
        self.held[address] = _Held(length, size or length, stream, self.freed_state)
        insort(self.held_starts, address)
        return None

    def _undo_growth(self, address: int, size: int) -> str | None:
        piece = self._containing(address, size)
        if piece is None or not size or not self._empty(address, size):
            return "the memory that it takes is not there, or is in use"
        self._remove(piece)
        before, after = address - piece.address, piece.address + piece.bytes - address - size
        if (before or after) and not piece.expandable:
            return "it takes a part of a segment that cannot grow"
        if before:
            self._add(replace(piece, bytes=before))
        if after:
            self._add(replace(piece, address=address + size, bytes=after))
        return None

    def _undo_release(self, entry: TraceEntry) -> str | None:
        _, address, size, stream = entry
        nearest = self._last_before(address + size)
        if not size or (nearest is not None and address < nearest.address + nearest.bytes):
            return "the memory that it gives back is still there"
        expandable = entry.action == "segment_unmap"
        before, after = (
            one if expandable and one is not None and one.expandable and one.stream == stream else None
            for one in (nearest, self.pieces.get(address + size))
        )
        if before is not None and before.address + before.bytes != address:
            before = None
        if size == SMALL_SEGMENT_BYTES or (expandable and size % self.options.large_segment_bytes):
            pool = "small"
        else:
            pool = (before or after).pool if before or after else "large"
        piece = _Piece(address, size, stream, pool, expandable)
        if before is not None and before.pool == pool:
            piece.address, piece.bytes = before.address, before.bytes + piece.bytes
            self._remove(before)
        if after is not None and after.pool == pool:
            piece.bytes += after.bytes
            self._remove(after)
        self._add(piece)
        return None

    def exported(self) -> tuple[Any, ...]:
        """The beginning, as the simulated allocator takes it, and the names of the blocks by address.

        Returns:
            The state, the names of the allocated blocks, and those of the blocks that await a free.
        """
        names, waiting, count = {}, {}, 0
        chains, last = [], {}
        for piece in map(self.pieces.__getitem__, self.piece_starts):
            chain, at = [], piece.address
            first, last_one = (bisect_left(self.held_starts, end) for end in (at, at + piece.bytes))
            for start in self.held_starts[first:last_one]:
                block = self.held[start]
                if start > at:
                    chain.append((at, start - at, 0, True, None, 0, False, 0))
                count += 1
                name = f"earlier {count}"
                waits = block.state != "allocated"
                (waiting if waits else names)[start] = name
                chain.append((start, block.bytes, 2 if waits else 1, True, name, block.requested, waits, 0))
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
            size = -(-(end - base + 2**40) // page) * page
            entry[2] = (base, size, page)
            entry[3].append((end, base + size - end, 0, False, None, 0, False, 0))
        reserved_end = max((piece.address + piece.bytes for piece in self.pieces.values()), default=0)
        beyond = max(reserved_end, self.beyond), len(chains)
        state = [tuple(entry) for entry in chains], (0, 0), beyond, tuple(waiting.values()), ()
        return state, names, waiting


class _Step(NamedTuple):
    """An event with what was recorded along with it."""

    event: Event | None  # None: memory was given back, and nothing else is known
    operations: tuple[Operation, ...]
    late: tuple[FreeCompleted, ...]  # frees that were completed while memory was given back
    address: int | None  # where the block was put; None if it failed, or if nothing was allocated


def _steps(
    entries: Sequence[TraceEntry], names: dict[int, Any], waiting: dict[int, Any]
) -> tuple[list[_Step], list[str]]:
    """Group the entries: what happens inside of one call to the allocator belongs together.

    Args:
        entries: the history.
        names: what is allocated at the beginning, by address.
        waiting: what was freed before the beginning, and had not been completed then.
    """
    actions = {entry.action for entry in entries}
    notes = []
    requests, completions = "free_requested" in actions, "free_completed" in actions
    if requests and not completions:
        notes.append("The trace has no free_completed entries: every free is taken as completed at once.")
    names, waiting, steps, count = dict(names), dict(waiting), [], 0
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
            early, empties = _explained(allocator, step) if gives_back else ((), False)
            for late in early:
                observed.append(())
                yield late
            if step.event is None or empties:
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


def _explained(allocator: _Allocator, step: _Step) -> tuple[tuple[FreeCompleted, ...], bool]:
    """What must have happened before an event so that the simulation gives memory back as recorded.

    Tried out on copies: nothing; that frees were completed first; that the cache was emptied first.

    Returns:
        The completions, and whether the cache is to be emptied.
    """
    if step.event is None:
        return (), True
    limited = allocator.cap is not None or allocator.device is not None
    if not limited:
        return (), True
    exported = allocator.export()

    def tried(*events: Event) -> list[Operation]:
        copy = _Allocator(allocator.options, allocator.cap, allocator.device, ties=allocator.ties)
        copy.restore(exported)
        done: list[Operation] = []
        for one in events:
            apply_or_fail(copy, one)
            done += copy.operations
        return done

    alone = tried(step.event)
    if _same(step.operations, alone):
        return (), False
    early = tuple(one for one in step.late if one.id in allocator.pending)
    if early and _same(step.operations, tried(*early, step.event)):
        return early, False
    empties = _same(step.operations, tried(EmptyCache(), step.event))
    return (), empties or not any(one.action in _GIVES_BACK for one in alone)


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
    text = settings.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    if not isinstance(text, str) or len(text) > 10_000:
        raise ValueError(f"the snapshot's PYTORCH_CUDA_ALLOC_CONF cannot be read: {shown(text)}")
    known, unknown = known_options(text)
    options = AllocatorOptions.parse(known)
    notes = [f"The snapshot's option {shown(one)} is not known here and is left out." for one in unknown]
    changes: dict[str, Any] = {}
    if isinstance(settings.get("expandable_segments"), bool):
        changes["expandable_segments"] = settings["expandable_segments"]
    largest = settings.get("max_split_size")
    if isinstance(largest, int):
        changes["max_split_size_bytes"] = largest if 0 < largest < 2**62 else None
    if isinstance(settings.get("garbage_collection_threshold"), int | float):
        changes["garbage_collection_threshold"] = settings["garbage_collection_threshold"]
    divisions = settings.get("roundup_power2_divisions")
    if isinstance(divisions, Mapping) and len(divisions) == len(options.roundup_power2_divisions):
        changes["roundup_power2_divisions"] = tuple(divisions[key] for key in sorted(divisions, key=int))
    return replace(options, **changes), notes


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
    _few(len(traces), "devices")
    if device is None:
        used = [index for index, trace in enumerate(traces) if len(_list(trace, "device_traces"))]
        if len(used) > 1:
            raise ValueError(f"the snapshot has histories of the devices {used}: choose one with device=")
        device = used[0] if used else 0
    if isinstance(device, bool) or not isinstance(device, int):
        raise ValueError(f"device must be a number, got {shown(device)}")
    if traces and not 0 <= device < len(traces):
        raise ValueError(f"the snapshot has no device {device}; it has {len(traces)}")
    entries = _entries(_list(traces[device], f"device_traces[{device}]")) if traces else ()
    options, notes = _options(snapshot)
    pieces, held = _segments(_list(snapshot["segments"], "segments"), device)
    # Where requests to free were not recorded, a block is in use until its free is completed.
    requests = any(entry.action == "free_requested" for entry in entries)
    undo = _Undo(pieces, held, options, "awaiting free" if requests else "allocated")
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
    exported, names, waiting = undo.exported()
    start = _state_of(undo, options)
    if start.segments:
        notes.append(
            f"The history begins with {_short(start.reserved_bytes)} reserved and {_short(start.allocated_bytes)} "
            "allocated: reconstructed backwards from the end. How old blocks and segments were then is not known."
        )
    steps, more = _steps(entries, names, waiting)
    earlier = sorted({**names, **waiting}.items())
    events = (
        *(Allocate(name, undo.held[at].requested, undo.held[at].stream) for at, name in earlier),
        *(Free(name, completes=False) for name in waiting.values()),
        *(event for step in steps for event in (EmptyCache() if step.event is None else step.event, *step.late)),
    )
    return Snapshot(device, entries, events, options, start, end, (*notes, *more), steps, exported)


def _state_of(undo: _Undo, options: AllocatorOptions) -> AllocatorState:
    allocator = _Allocator(options, None, None)
    allocator.restore(undo.exported()[0])
    return allocator.state(0)
