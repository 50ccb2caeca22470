"""Read a trace of torch.profiler: where a step's time goes, and what to change first."""

from __future__ import annotations

from pathlib import Path

from course_utils.show.cards import Shown


class TraceError(ValueError):
    """A file is no trace that can be read; the message says what is missing and how to record it right."""


def read_trace(source: str | Path | bytes, other: str | Path | bytes | None = None) -> Shown:
    """Read one trace, or compare two."""
    raise NotImplementedError
