"""Snapshots to be replayed, and whether a replay ends as they do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from course_utils.memory.allocator import AllocatorState
from own_program.snapshots.replay import DeviceSnapshot, Replay, snapshot_of
from own_program.snapshots.snapshot_file import read_file


def load_snapshot(source: str | Path | Mapping[str, Any], device: int = 0) -> DeviceSnapshot:
    """A device of a memory snapshot without private pools."""
    file = read_file(source)
    return snapshot_of(file.segments_of(device), file.traces[device], file.settings)


def same_end(replay: Replay) -> bool:
    """Whether segments and blocks at the end are those of the snapshot, but for names and reservations."""
    return _shape(replay.run.state(len(replay.run))) == _shape(replay.end)


def _shape(state: AllocatorState) -> list[Any]:
    return [
        (
            segment.stream,
            segment.pool,
            [(block.address, block.bytes, block.state != "free") for block in segment.blocks],
        )
        for segment in state.segments
    ]
