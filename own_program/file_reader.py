"""A reader's own files: whichever of the readers a file is for, and its answer for the book's page.

It runs in a browser as well (``own_program/page``), so it needs the standard library and jinja2 alone.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from pathlib import Path

from course_utils.show.cards import Shown
from own_program.snapshots.snapshot_report import SnapshotError, read_snapshot
from own_program.traces.example import example_trace
from own_program.traces.trace_report import TraceFileError, read_trace


def read_file(source: str | Path, other: str | Path | None = None) -> Shown:
    """Read a trace of torch.profiler, a memory snapshot of PyTorch, or two of a kind: the content says which it is.

    Args:
        source: a trace in Chrome's format (JSON, with gzip or without), or a snapshot (a pickle).
        other: a later one, to compare with the first.

    Raises:
        TraceFileError: the first is a trace, or something else, and one of them cannot be read as such.
        SnapshotError: the first is a snapshot, and one of them cannot be read as such.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "of any name")
        ...     _ = path.write_bytes(example_trace())
        ...     print(read_file(path).plan[0].change)
        compute in 16 bits (autocast)
    """
    return (read_snapshot if _is_snapshot(Path(source)) else read_trace)(source, other)


def _is_snapshot(path: Path) -> bool:
    """Whether it is a pickle, or what torch.save writes; the reader of traces says of other files what they are."""
    with path.open("rb") as file:
        start = file.read(2)
    if start == b"\x1f\x8b":
        with contextlib.suppress(EOFError, OSError, zlib.error), gzip.open(path) as file:
            start = file.read(2)
    return start.startswith((b"\x80", b"PK"))


def html(report: Shown, lessons: str) -> str:
    """What a report shows in a page that finds a lesson at ``lessons``, with ``{}`` for its name."""
    whole = getattr(report, "html", None)  # a report of several devices has a card for each
    return whole(lessons=lessons) if whole else report.card().html(lessons=lessons)


def answer(lessons: str, *files: str) -> str:
    """The answer to one file or two, as the page takes it: JSON with ``html`` and ``text``, or with a ``sentence``.

    No file makes it raise: a page has nobody to catch that.

    Example:
        >>> answer("{}.html", "no/such/file.json")
        '{"sentence": "file.json could not be read: No such file or directory."}'
    """
    try:
        report = read_file(*files)
        return json.dumps({"html": html(report, lessons), "text": repr(report)})
    except (SnapshotError, TraceFileError) as error:
        sentence = str(error)
    except MemoryError:
        sentence = "This file needs more memory than a page has. On the command line: make trace ARGS=FILE, "
        sentence += "or make snapshot ARGS=FILE."
    except Exception as error:
        names = " and ".join(Path(file).name for file in files)
        reason = f": {error.strerror}" if isinstance(error, OSError) else ""
        sentence = f"{names} could not be read{reason}."
    return json.dumps({"sentence": sentence})


def example() -> Shown:
    """What the reader of traces says of a training step that was made up, with several things to mend."""
    return read_trace(example_trace())
