"""A snapshot's file, read safely: nothing in it runs, and a file that is none is refused with a sentence that helps.

A pickle is a program for a small machine. Before it runs, its instructions are looked through: only those that build
lists, dictionaries, texts and numbers are let by, without the few that can exhaust the memory or the stack.
Source: https://github.com/python/cpython/blob/v3.11.9/Lib/pickletools.py
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from course_utils.memory.cuda_history import REMARKS
from course_utils.show.formats import format_bytes
from course_utils.show.suggestions import file_in, typed

MOST_FILE_BYTES = 160 * 2**20  # read, it takes four to eleven times as much: less than 2 GiB
MOST_DEVICE_BYTES = 2**42  # more than any device has
MOST_ENTRIES = 1_000_000
SEGMENT_ACTIONS = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")
_ACTIONS = frozenset(("alloc", "free_requested", "free_completed", "oom", *SEGMENT_ACTIONS))
_MOST_DEVICES = 1024
_MOST_BYTES = 2**62
_SHORTER = "record a few steps only, with max_entries=100_000"
_RECORD = (
    "record one with torch.cuda.memory._record_memory_history(), run some steps, and write it with "
    'torch.cuda.memory._dump_snapshot("snapshot.pickle")'
)


class SnapshotError(ValueError):
    """A file is no snapshot that can be read; the message says what is missing and how to record it right."""


@dataclass(frozen=True)
class SnapshotFile:
    """What a file holds, checked: every number that is used is one."""

    name: str
    segments: Sequence[Mapping[str, Any]]
    traces: Sequence[Sequence[Mapping[str, Any]]]  # of each device the entries that take or give memory, oldest first
    settings: Mapping[str, Any] | None
    unknown: Mapping[str, int]  # actions of a later PyTorch, left out: how many of each
    unused: Sequence[int]  # devices that are in the file, without memory and without a request
    trains: bool  # whether an optimizer was called: PyTorch notes that beside the history

    @property
    def devices(self) -> list[int]:
        """The devices that have memory or a history."""
        with_history = {device for device, trace in enumerate(self.traces) if trace}
        return sorted(with_history | {segment.get("device", 0) for segment in self.segments})

    def segments_of(self, device: int) -> list[Mapping[str, Any]]:
        """The memory that a device had taken when the snapshot was made."""
        return [segment for segment in self.segments if segment.get("device", 0) == device]


def read_file(source: str | Path | bytes | Mapping[str, Any] | Sequence[Any]) -> SnapshotFile:
    """Read what ``torch.cuda.memory._dump_snapshot`` wrote, or the value of ``_snapshot()`` or ``memory_snapshot()``.

    A file may be a pickle, JSON, or what ``torch.save`` wrote, with gzip or without.

    Raises:
        SnapshotError: if it is none that can be read.
    """
    if isinstance(source, str | Path):
        name, value = Path(source).name, _bytes_of(Path(source))
    else:
        name, value = "the file" if isinstance(source, bytes) else "the snapshot", source
    try:
        return _checked(_value_of(value) if isinstance(value, bytes) else value, name)
    except SnapshotError as error:
        raise SnapshotError(f"{name} {error}") from None


def _bytes_of(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise SnapshotError(file_in(path, "snapshot", (".pickle", ".pkl")))
        with path.open("rb") as file:
            return file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror}") from None


def _value_of(data: bytes) -> Any:
    try:
        if data[:2] == b"\x1f\x8b":
            unpacking = zlib.decompressobj(wbits=31)
            data = unpacking.decompress(data, MOST_FILE_BYTES + 1)
            if not unpacking.eof and len(data) <= MOST_FILE_BYTES:
                raise SnapshotError("is cut short: copy it again")
        if data[:2] == b"PK":  # of torch.save: tensors lie beside the pickle, and a snapshot has none
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                names = [name for name in archive.namelist() if name.split("/")[-1] == "data.pkl"]
                if not names:
                    raise SnapshotError(f"is a zip archive that torch.save has not written: unpack it, or {_RECORD}")
                data = archive.open(names[0]).read(MOST_FILE_BYTES + 1)
    except SnapshotError:
        raise
    except Exception:  # a damaged archive may raise anything
        raise SnapshotError("is damaged: it cannot be unpacked") from None
    if len(data) > MOST_FILE_BYTES:
        raise SnapshotError(f"has more than {format_bytes(MOST_FILE_BYTES)}, which are not read: {_SHORTER}")
    if not data:
        raise SnapshotError(f"is empty: {_RECORD}")
    return _unpickled(data) if data[:1] == b"\x80" else _parsed(data)


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise SnapshotError("is nested far too deep for a memory snapshot: do not load this file") from None
    except ValueError:
        if data.lstrip()[:1] in (b"{", b"["):
            raise SnapshotError("is damaged or cut short: copy it again") from None
        raise SnapshotError(f"is no memory snapshot, neither a pickle nor JSON: {_RECORD}") from None


# Pickles

# Of an instruction how many bytes tell the length of the text behind it, or follow it.
_TEXTS = dict(zip(b"\x8cX\x8dCB\x8e\x8a", (1, 4, 8, 1, 4, 8, 1), strict=True))
_FIXED = dict(zip(b"KMJGhj\x95\x80", (1, 2, 4, 8, 1, 4, 8, 1), strict=True))
# MARK, NONE, NEWTRUE, NEWFALSE, the empty ones, APPEND, APPENDS, SETITEM, SETITEMS, DICT, LIST.
_FIXED |= dict.fromkeys(b"(N\x88\x89}])aeusdl", 0)
_PUTS = {ord("q"): 1, ord("r"): 4, 0x94: 0}
_NUMBERS = frozenset(b"KMJ\x8a\x88\x89N")
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}  # of a pool's id: two numbers
_LOOK_UPS = frozenset(b"ci\x93ob\x81\x92R\x82\x83\x84PQ")  # would load or call something
_STOP = ord(".")


class _PlainUnpickler(pickle.Unpickler):
    """Looks nothing up."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] in ("torch", "collections", "numpy"):
            raise SnapshotError(f"holds {module}.{name}, as checkpoints do, and so is no memory snapshot: {_RECORD}")
        raise SnapshotError(f"would load {module}.{name}, and a memory snapshot needs no code: do not load this file")


def _unpickled(data: bytes) -> Any:
    _look_through(data)
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except SnapshotError:
        raise
    except Exception:  # a damaged pickle may raise anything
        raise SnapshotError("is damaged: copy it again") from None


def _look_through(data: bytes) -> None:
    """Refuse a pickle whose instructions are not those of a snapshot, before any of them is followed.

    Tuples may hold numbers alone: one in another as a key, many times over, would overrun the interpreter's stack. A
    number in the memo must not be over that of the entries before it: its array would be made that long.
    """
    at, puts, numbers = 0, 0, 0
    while at < len(data):
        code = data[at]
        at += 1
        if code in _FIXED:
            at += _FIXED[code]
        elif code in _TEXTS:
            width = _TEXTS[code]
            at += width + int.from_bytes(data[at : at + width], "little")
        elif code in _PUTS:
            if int.from_bytes(data[at : at + _PUTS[code]], "little") > puts:
                raise SnapshotError("is a damaged pickle, or one that is made to fill the memory: do not load it")
            at += _PUTS[code]
            puts += 1
        elif code in _TUPLES:
            if numbers < _TUPLES[code]:
                raise SnapshotError("holds tuples of other things than numbers, which no memory snapshot does")
        elif code == _STOP or code in _LOOK_UPS:
            return  # at a look-up the unpickler stops as well, and says what it would load
        else:
            raise SnapshotError(f"is no pickle of a memory snapshot (instruction {code:#04x}): {_RECORD}")
        numbers = numbers + 1 if code in _NUMBERS else 0
    raise SnapshotError("is cut short: copy it again, or write it again with _dump_snapshot")


# What is in it


def _checked(value: Any, name: str) -> SnapshotFile:
    if isinstance(value, list) and value and _rows(value) and "total_size" in value[0]:
        value = {"segments": value}  # of torch.cuda.memory_snapshot()
    if not isinstance(value, Mapping):
        raise SnapshotError(f"holds a {type(value).__name__} and no memory snapshot: {_RECORD}")
    if "traceEvents" in value:
        raise SnapshotError(f"is a trace of torch.profiler, no memory snapshot: read it with {typed('trace')}")
    segments, traces = value.get("segments"), value.get("device_traces", [])
    if not _rows(segments) or not isinstance(traces, list | tuple):
        raise SnapshotError(f"has no list of segments, so it is no memory snapshot: {_RECORD}")
    # Counted before any is looked at: a small pickle may name one list many times.
    entries, blocks = _count(traces), _count([segment.get("blocks") for segment in segments])
    if max(entries, blocks, len(segments)) > MOST_ENTRIES or len(traces) > _MOST_DEVICES:
        most = f"at most {MOST_ENTRIES} are read"
        raise SnapshotError(f"has {entries} entries and {blocks} blocks, and {most}: {_SHORTER}")
    if not all(map(_rows, traces)):
        raise SnapshotError("is damaged: its history is no list of entries")
    _check_segments(segments)
    unknown: Counter[str] = Counter()
    kept = []
    for device, trace in enumerate(traces):
        kept.append([])
        for index, entry in enumerate(trace):
            action = entry.get("action")
            if not isinstance(action, str) or (action in _ACTIONS and not _is_entry(entry)):
                raise SnapshotError(f"is damaged: entry {index} of device {device} has no action or size as PyTorch's")
            if action in _ACTIONS:
                kept[-1].append(entry)
            elif action not in REMARKS:
                unknown[action] += 1
    settings = value.get("allocator_settings")
    used = {segment.get("device", 0) for segment in segments}
    unused = [device for device, trace in enumerate(traces) if trace and not kept[device] and device not in used]
    settings = settings if isinstance(settings, Mapping) else None
    noted = value.get("external_annotations", ())
    trains = _rows(noted) and any(str(each.get("name", "")).startswith("Optimizer.") for each in noted)
    return SnapshotFile(name, segments, kept, settings, unknown, unused, trains)


def _check_segments(segments: Sequence[Mapping[str, Any]]) -> None:
    sizes: Counter[int] = Counter()
    for index, segment in enumerate(segments):
        if not _is_segment(segment):
            raise SnapshotError(f"is damaged: segment {index} has no address, size or blocks as PyTorch has them")
        sizes[segment.get("device", 0)] += segment["total_size"]
    if max(sizes.values(), default=0) > MOST_DEVICE_BYTES:
        raise SnapshotError("is damaged: it has more memory than any device")
    spans = sorted((each.get("device", 0), each["address"], each["total_size"]) for each in segments)
    if any(one[0] == other[0] and one[1] + one[2] > other[1] for one, other in pairwise(spans)):
        raise SnapshotError("is damaged: segments overlap, which no device's memory does")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64


def _count(lists: Sequence[Any]) -> int:
    return sum(len(each) for each in lists if isinstance(each, list | tuple))


def _rows(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(row, Mapping) for row in value)


def _is_entry(entry: Mapping[str, Any]) -> bool:
    numbers = (entry.get("size"), entry.get("addr", 0), entry.get("stream", 0), entry.get("time_us", 0))
    return all(map(_whole, numbers)) and entry["size"] < _MOST_BYTES


def _is_segment(segment: Mapping[str, Any]) -> bool:
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
