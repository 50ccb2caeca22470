"""A snapshot's file, read safely: nothing in it runs, and a file that is none is refused with a sentence that helps."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils.show.formats import format_bytes
from course_utils.show.suggestions import file_in, typed

MOST_FILE_BYTES = 160 * 2**20  # read, it takes four to eleven times as much: less than 2 GiB
MOST_ENTRIES = 1_000_000
SEGMENT_ACTIONS = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")
_ACTIONS = frozenset(("alloc", "free_requested", "free_completed", "oom", *SEGMENT_ACTIONS))
_SHORTER = "record a few steps only, with max_entries=100_000"
_RECORD = (
    "record one with torch.cuda.memory._record_memory_history(), run some steps, and write it with "
    'torch.cuda.memory._dump_snapshot("snapshot.pickle")'
)


class SnapshotError(ValueError):
    """A file is no snapshot that can be read; the message says what is missing and how to record it right."""


@dataclass(frozen=True)
class SnapshotFile:
    """What a file holds."""

    name: str
    segments: Sequence[Mapping[str, Any]]
    traces: Sequence[Sequence[Mapping[str, Any]]]  # of each device the entries that take or give memory, oldest first
    settings: Mapping[str, Any] | None
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
    except (AttributeError, LookupError, TypeError, ValueError):
        raise SnapshotError(f"{name} is damaged: its segments or entries are not those of PyTorch") from None


def _bytes_of(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise SnapshotError(file_in(path, "snapshot", (".pickle", ".pkl")))
        with path.open("rb") as file:
            return file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror}") from None


class _PlainUnpickler(pickle.Unpickler):
    """Looks nothing up, so that nothing can be called: a snapshot holds lists, dictionaries, texts and numbers."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] in ("torch", "collections", "numpy"):
            raise SnapshotError(f"holds {module}.{name}, as checkpoints do, and so is no memory snapshot: {_RECORD}")
        raise SnapshotError(f"would load {module}.{name}, and a memory snapshot needs no code: do not load this file")


def _value_of(data: bytes) -> Any:
    try:
        if data[:2] == b"\x1f\x8b":
            data = zlib.decompressobj(wbits=31).decompress(data, MOST_FILE_BYTES + 1)
        if data[:2] == b"PK":  # of torch.save: tensors lie beside the pickle, and a snapshot has none
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                names = [name for name in archive.namelist() if name.split("/")[-1] == "data.pkl"]
                if not names:
                    raise SnapshotError(f"is a zip archive that torch.save has not written: unpack it, or {_RECORD}")
                data = archive.open(names[0]).read(MOST_FILE_BYTES + 1)
        if len(data) > MOST_FILE_BYTES:
            raise SnapshotError(f"has more than {format_bytes(MOST_FILE_BYTES)}, which are not read: {_SHORTER}")
        if data[:1] == b"\x80":
            return _PlainUnpickler(io.BytesIO(data)).load()
        if data.lstrip()[:1] in (b"{", b"["):
            return json.loads(data)
    except SnapshotError:
        raise
    except Exception:  # a damaged archive or pickle may raise anything
        raise SnapshotError("is damaged or cut short: copy it again, or write it again with _dump_snapshot") from None
    if not data:
        raise SnapshotError(f"is empty: {_RECORD}")
    raise SnapshotError(f"is no memory snapshot, neither a pickle nor JSON: {_RECORD}")


def _checked(value: Any, name: str) -> SnapshotFile:
    if isinstance(value, list) and value and isinstance(value[0], Mapping) and "total_size" in value[0]:
        value = {"segments": value}  # of torch.cuda.memory_snapshot()
    if not isinstance(value, Mapping):
        raise SnapshotError(f"holds a {type(value).__name__} and no memory snapshot: {_RECORD}")
    if "traceEvents" in value:
        raise SnapshotError(f"is a trace of torch.profiler, no memory snapshot: read it with {typed('trace')}")
    if not isinstance(value.get("segments"), list | tuple):
        raise SnapshotError(f"has no list of segments, so it is no memory snapshot: {_RECORD}")
    segments, traces = value["segments"], value.get("device_traces", [])
    if (count := sum(map(len, traces))) > MOST_ENTRIES:
        raise SnapshotError(f"has {count} entries, and at most {MOST_ENTRIES} are read: {_SHORTER}")
    # Not remarks, nor what a later PyTorch may add.
    kept = [[entry for entry in trace if entry["action"] in _ACTIONS] for trace in traces]
    noted = value.get("external_annotations", ())
    trains = any(str(each.get("name", "")).startswith("Optimizer.") for each in noted)
    return SnapshotFile(name, segments, kept, value.get("allocator_settings"), trains)


def pool_of(thing: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """The private pool that a segment or an entry belongs to; empty for the common one."""
    pool = thing.get(key)
    return tuple(pool) if isinstance(pool, list | tuple) and any(pool) else ()
