"""A snapshot's file, read safely: nothing in it runs, and a file that is none is refused with a sentence that helps.

A pickle is a program for a small machine. Before it runs, its instructions are looked through: only those that build
lists, dictionaries, texts and numbers are let by, without the few that can exhaust the memory or the stack.
Source: https://github.com/python/cpython/blob/v3.11.9/Lib/pickletools.py
"""

from __future__ import annotations

import io
import json
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from course_utils.show.formats import format_bytes, listed
from course_utils.show.suggestions import file_in, typed
from own_program.snapshots.replay import ACTIONS, MOST_DEVICE_BYTES

MOST_FILE_BYTES = 160 * 2**20  # read, it takes four to eleven times as much: less than 2 GiB
MOST_ENTRIES = 1_000_000
_MOST_DEVICES = 1024
_MOST_BYTES = 2**62
_RECORD = (
    "record one with torch.cuda.memory._record_memory_history(), run some steps, and write it with "
    'torch.cuda.memory._dump_snapshot("snapshot.pickle")'
)
_FOREIGN = (
    (b"\x89PNG", "a PNG image"),
    (b"PK\x03\x04", "a zip archive, such as a checkpoint of torch.save"),
    (b"\x1f\x8b", f"compressed with gzip: unpack it first (a trace of torch.profiler is for {typed('trace')})"),
    (b"<", "a page in HTML or XML: bring the snapshot that the viewer was given"),
    (b"%PDF", "a PDF"),
    (b"SQLite", "a database, such as Nsight Systems writes"),
)


class SnapshotError(ValueError):
    """A file is no snapshot that can be read; the message says what is missing and how to record it right."""


@dataclass(frozen=True)
class SnapshotFile:
    """What a file holds, checked: every number that is used is one."""

    name: str
    segments: Sequence[Mapping[str, Any]]
    traces: Sequence[Sequence[Mapping[str, Any]]]  # of each device, the oldest entry first
    settings: Mapping[str, Any] | None
    unknown: Mapping[str, int]  # actions of a later PyTorch, left out: how many of each

    @property
    def devices(self) -> list[int]:
        """The devices that have memory or a history."""
        with_history = {device for device, trace in enumerate(self.traces) if trace}
        return sorted(with_history | {segment.get("device", 0) for segment in self.segments})


def read_file(source: str | Path | bytes | Mapping[str, Any]) -> SnapshotFile:
    """Read a snapshot that ``torch.cuda.memory._dump_snapshot`` wrote, the same as JSON, or ``_snapshot()``'s value.

    Raises:
        SnapshotError: if it is none that can be read.
    """
    if isinstance(source, Mapping):
        return _checked(source, "the snapshot")
    name, data = ("the file", source) if isinstance(source, bytes) else (Path(source).name, _bytes_of(Path(source)))
    if len(data) > MOST_FILE_BYTES:
        raise SnapshotError(
            f"{name} has {format_bytes(len(data))}, and at most {format_bytes(MOST_FILE_BYTES)} are read: record a few "
            "steps only, with max_entries=100_000"
        )
    if not data:
        raise SnapshotError(f"{name} is empty: {_RECORD}")
    try:
        value = _unpickled(data) if data[:1] == b"\x80" else _parsed(data)
    except SnapshotError as error:
        raise SnapshotError(f"{name} {error}") from None
    if not isinstance(value, Mapping):
        what = "a checkpoint of torch.save" if isinstance(value, int) else f"a {type(value).__name__}"
        raise SnapshotError(f"{name} holds {what} and no memory snapshot: {_RECORD}")
    return _checked(value, name)


def _bytes_of(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise SnapshotError(file_in(path, "snapshot", (".pickle", ".pkl")))
        if path.stat().st_size > MOST_FILE_BYTES:  # not read at all
            size, most = format_bytes(path.stat().st_size), format_bytes(MOST_FILE_BYTES)
            raise SnapshotError(
                f"{path.name} has {size}, and at most {most} are read: record a few steps only, with "
                "max_entries=100_000"
            )
        return path.read_bytes()
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror}") from None


def _parsed(data: bytes) -> Any:
    for start, what in _FOREIGN:
        if data.startswith(start):
            raise SnapshotError(f"is no memory snapshot but {what}; {_RECORD}")
    try:
        return json.loads(data)
    except RecursionError:
        raise SnapshotError("is nested far too deep for a memory snapshot: do not load this file") from None
    except ValueError as error:
        if data.lstrip()[:1] in (b"{", b"["):
            raise SnapshotError(f"is damaged or cut short ({error}): copy it again") from None
        raise SnapshotError(f"is no memory snapshot, neither a pickle nor JSON: {_RECORD}") from None


# Pickles

_TEXTS = {ord("\x8c"): 1, ord("X"): 4, ord("\x8d"): 8, ord("C"): 1, ord("B"): 4, ord("\x8e"): 8, ord("\x8a"): 1}
_FIXED = {ord("K"): 1, ord("M"): 2, ord("J"): 4, ord("G"): 8, ord("h"): 1, ord("\x95"): 8, ord("\x80"): 1}
_NUMBERS = frozenset(b"KMJ\x8a\x88\x89N")
_PUTS = {ord("q"): 1, ord("r"): 4}
# MARK, NONE, NEWTRUE, NEWFALSE, the empty ones, APPEND, APPENDS, SETITEM, SETITEMS, DICT, LIST, MEMOIZE and STOP.
_BARE = frozenset(b"(N\x88\x89}])aeusdl\x94.")
_TUPLES = {ord("\x85"): 1, ord("\x86"): 2, ord("\x87"): 3}  # of a pool's id: two numbers
_LOOK_UPS = frozenset(b"ci\x93ob\x81\x92R\x82\x83\x84PQ")  # would load or call something


class _PlainUnpickler(pickle.Unpickler):
    """Looks nothing up."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "torch":
            raise SnapshotError(f"holds {module}.{name}, so it is a checkpoint and no memory snapshot: {_RECORD}")
        raise SnapshotError(f"would load {module}.{name}, and a memory snapshot needs no code: do not load this file")


def _look_through(data: bytes) -> None:
    """Refuse a pickle whose instructions are not those of a snapshot, before any of them is followed.

    Tuples may hold numbers alone: one in another as a key, many times over, would overrun the interpreter's stack. A
    number in the memo must not be over that of the entries before it: its array would be made that long.
    """
    at, end, puts, numbers = 1 + 1, len(data), 0, 0
    while at < end:
        code = data[at]
        at += 1
        if code in _BARE:
            if code == 0x2E:  # STOP
                return
            puts += code == 0x94
        elif code in _FIXED:
            at += _FIXED[code]
        elif code == 0x6A:  # LONG_BINGET
            at += 4
        elif code in _TEXTS:
            width = _TEXTS[code]
            length = int.from_bytes(data[at : at + width], "little")
            if length > end:
                raise SnapshotError("is cut short: copy it again, or write it again with _dump_snapshot")
            at += width + length
        elif code in _PUTS:
            if int.from_bytes(data[at : at + _PUTS[code]], "little") > puts:
                raise SnapshotError("is a damaged pickle, or one that is made to fill the memory: do not load it")
            at += _PUTS[code]
            puts += 1
        elif code in _TUPLES:
            if numbers < _TUPLES[code]:
                raise SnapshotError("holds tuples of other things than numbers, which no memory snapshot does")
        elif code in _LOOK_UPS:
            return  # the unpickler stops there, and says what it would load
        else:
            raise SnapshotError(f"is no pickle of a memory snapshot (instruction {code:#04x}): {_RECORD}")
        numbers = numbers + 1 if code in _NUMBERS else 0
    raise SnapshotError("is cut short: copy it again, or write it again with _dump_snapshot")


def _unpickled(data: bytes) -> Any:
    _look_through(data)
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except SnapshotError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise SnapshotError(f"is damaged ({type(error).__name__}): copy it again") from None


# What is in it


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64


def _checked(value: Mapping[str, Any], name: str) -> SnapshotFile:
    if "traceEvents" in value:
        raise SnapshotError(f"{name} is a trace of torch.profiler, no memory snapshot: read it with {typed('trace')}")
    segments, traces = value.get("segments"), value.get("device_traces", [])
    if not _rows(segments) or not isinstance(traces, list | tuple):
        raise SnapshotError(f"{name} has no list of segments, so it is no memory snapshot: {_RECORD}")
    # Counted before any is looked at: a small pickle may name one list many times.
    entries, blocks = _count(traces), _count([segment.get("blocks") for segment in segments])
    if max(entries, blocks, len(segments)) > MOST_ENTRIES or len(traces) > _MOST_DEVICES:
        raise SnapshotError(
            f"{name} has {entries} entries and {blocks} blocks, and at most {MOST_ENTRIES} are read: record with "
            "max_entries=100_000"
        )
    if not all(map(_rows, traces)):
        raise SnapshotError(f"{name} is damaged: its history is no list of entries")
    for index, segment in enumerate(segments):
        if not _segment(segment):
            raise SnapshotError(
                f"{name} is damaged: segment {index} has no address, size or blocks as PyTorch has them"
            )
    sizes: Counter[int] = Counter()
    for each in segments:
        sizes[each.get("device", 0)] += each["total_size"]
    if max(sizes.values(), default=0) > MOST_DEVICE_BYTES:
        raise SnapshotError(f"{name} is damaged: it has more memory than any device")
    spans = sorted((each.get("device", 0), each["address"], each["total_size"]) for each in segments)
    if any(one[0] == other[0] and one[1] + one[2] > other[1] for one, other in pairwise(spans)):
        raise SnapshotError(f"{name} is damaged: segments overlap, which no device's memory does")
    unknown: dict[str, int] = {}
    kept = []
    for device, trace in enumerate(traces):
        kept.append([])
        for index, entry in enumerate(trace):
            action = entry.get("action")
            if not isinstance(action, str):
                raise SnapshotError(f"{name} is damaged: entry {index} of device {device} has no action")
            if action not in ACTIONS:
                unknown[action] = unknown.get(action, 0) + 1
                continue
            sizes = (entry.get("size", 0), entry.get("addr", 0), entry.get("stream", 0), entry.get("time_us", 0))
            if not all(map(_whole, sizes)) or entry.get("size", 0) >= _MOST_BYTES:
                raise SnapshotError(f"{name} is damaged: entry {index} of device {device} has a size that is none")
            kept[-1].append(entry)
    settings = value.get("allocator_settings")
    return SnapshotFile(name, segments, kept, settings if isinstance(settings, Mapping) else None, unknown)


def _count(lists: Sequence[Any]) -> int:
    return sum(len(each) for each in lists if isinstance(each, list | tuple))


def _rows(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(row, Mapping) for row in value)


def _segment(segment: Mapping[str, Any]) -> bool:
    numbers = (segment.get("address"), segment.get("total_size"), segment.get("stream", 0), segment.get("device", 0))
    blocks = segment.get("blocks")
    return (
        all(map(_whole, numbers))
        and segment.get("device", 0) < _MOST_DEVICES
        and segment.get("segment_type") in ("small", "large")
        and _rows(blocks)
        and all(_whole(block.get("size")) and isinstance(block.get("state"), str) for block in blocks)
    )


def pool_of(thing: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """The private pool that a segment or an entry belongs to; empty for the common one."""
    pool = thing.get(key)
    return tuple(pool) if isinstance(pool, list | tuple) and any(pool) else ()


def unknown_words(unknown: Mapping[str, int]) -> str:
    """What a reader must know of actions that were left out; empty if there were none."""
    if not unknown:
        return ""
    words = [f"{count} entr{'y' if count == 1 else 'ies'} named {action[:40]}" for action, count in unknown.items()]
    return f"Left out, as this reader does not know it: {listed(words[:3])}."
