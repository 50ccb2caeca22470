"""A reader's own files: whichever of the course's readers a file is for, and its answer for the book's page.

It runs in a browser as well (``book/_static/own_program.js``), so it needs the standard library and jinja2 alone.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Literal

from course_utils.show.cards import Shown
from own_program.snapshots.report import SnapshotError, read_snapshot
from own_program.traces.example import example_trace
from own_program.traces.report import TraceError, read_trace

_LOOKED_AT_BYTES = 2**20
_GZIP, _PICKLE, _ZIP = b"\x1f\x8b", b"\x80", b"PK"
_KEYS = re.compile(rb'"(traceEvents|device_traces|segments)"\s*:')
_BARE_EVENTS = re.compile(rb'(?:\xef\xbb\xbf)?\s*\[\s*\{\s*"')  # Chrome's format without its frame
_RECORD = (
    "Record a trace with torch.profiler and export_chrome_trace, or a snapshot with torch.cuda.memory._dump_snapshot."
)


class FileError(ValueError):
    """A file is for none of the readers; the message says what it looks like, and what to record."""


def read_file(source: str | Path, other: str | Path | None = None) -> Shown:
    """Read a trace of torch.profiler, two of them, or a memory snapshot of PyTorch: its content says which it is.

    Args:
        source: a trace in Chrome's format (JSON, with gzip or without), or a snapshot (a pickle, or JSON).
        other: a second trace, to compare with the first.

    Returns:
        What the file says: a card, with a plan of what to change first.

    Raises:
        FileError: it is neither, or the second file is no trace.
        TraceError: it is a trace that cannot be read.
        SnapshotError: it is a snapshot that cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "of any name")
        ...     _ = path.write_bytes(example_trace())
        ...     print(read_file(path).plan[0].change)
        compute in 16 bits (autocast to bfloat16)
    """
    kinds = [_kind(Path(each)) for each in (source, other) if each is not None]
    if "snapshot" not in kinds:
        return read_trace(source, other)
    if other is None:
        return read_snapshot(source)
    snapshot = Path(source if kinds[0] == "snapshot" else other).name
    raise FileError(f"Two traces can be compared, and {snapshot} is a memory snapshot: read each file by itself.")


def _kind(path: Path) -> Literal["trace", "snapshot"]:
    start = _start(path)
    if start.startswith(_PICKLE):
        return "snapshot"
    if key := _KEYS.search(start):
        return "trace" if key[1] == b"traceEvents" else "snapshot"
    if _BARE_EVENTS.match(start) or start.startswith(_GZIP):
        return "trace"  # what cannot be unpacked, too: the reader of traces says so
    if not start:
        raise FileError(f"{path.name} is empty. {_RECORD}")
    if start.startswith(_ZIP):
        raise FileError(
            f"{path.name} is a zip archive, as checkpoints of torch.save are: unpack a trace first. {_RECORD}"
        )
    raise FileError(f"{path.name} is neither a trace nor a memory snapshot. {_RECORD}")


def _start(path: Path) -> bytes:
    """The beginning of a file, unpacked if that is possible."""
    with path.open("rb") as file:
        start = file.read(_LOOKED_AT_BYTES)
    if not start.startswith(_GZIP):
        return start
    try:
        return zlib.decompressobj(wbits=31).decompress(start, _LOOKED_AT_BYTES) or start
    except zlib.error:
        return start


def html(report: Shown, lessons: str) -> str:
    """What a report shows in a page that finds a lesson at ``lessons``, with ``{}`` for its name."""
    whole = getattr(report, "html", None)  # a report of several devices has a card for each
    return whole(lessons=lessons) if whole else report.card().html(lessons=lessons)


def answer(lessons: str, *files: str) -> str:
    """The answer to one file or two, as the page takes it: JSON with ``html`` and ``text``, or with a ``sentence``.

    Args:
        lessons: where the page finds a lesson, with ``{}`` for its name.
        files: paths of one file or of two.

    Returns:
        A JSON object. No file makes it raise: a page has nobody to catch that.

    Example:
        >>> answer("{}.html", "no/such/file.json")
        '{"sentence": "file.json could not be read: FileNotFoundError: No such file or directory."}'
    """
    try:
        report = read_file(*files)
        return json.dumps({"html": html(report, lessons), "text": repr(report)})
    except (FileError, SnapshotError, TraceError) as error:
        sentence = str(error)
    except MemoryError:
        sentence = "This file needs more memory than a page has. On the command line: make trace ARGS=FILE, "
        sentence += "or make snapshot ARGS=FILE."
    except Exception as error:
        names = " and ".join(Path(file).name for file in files)
        reason = error.strerror if isinstance(error, OSError) else str(error)
        sentence = f"{names} could not be read: {type(error).__name__}: {reason}."
    return json.dumps({"sentence": sentence})


def example() -> Shown:
    """What the reader of traces says of a training step that was made up, with several things to mend."""
    return read_trace(example_trace())
