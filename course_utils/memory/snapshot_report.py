"""Read a memory snapshot: what held the memory at its peak, and which setting of the allocator would need less."""

from __future__ import annotations

from pathlib import Path

from course_utils.show.cards import Shown


class SnapshotError(ValueError):
    """A file is no snapshot that can be read; the message says what is missing and how to record it right."""


def read_snapshot(source: str | Path | bytes, *, device: int | None = None) -> Shown:
    """Read a snapshot of one device or of several."""
    raise NotImplementedError
