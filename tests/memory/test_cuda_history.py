"""PyTorch's own recorded histories as blocks over time, without a GPU."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from course_utils.memory.cuda_history import History, read_history

TRACES = sorted((Path(__file__).parents[1] / "allocator_traces").glob("*.json"))


def _totals(history: History) -> list[int]:
    changes = [0] * (len(history.times_us) + 1)
    for allocation in history.allocations:
        changes[allocation.born] += allocation.size_bytes
        if allocation.died is not None:
            changes[allocation.died] -= allocation.size_bytes
    return list(itertools.accumulate(changes[:-1]))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_sizes_are_those_of_pytorchs_allocator(path: Path) -> None:
    recorded = json.loads(path.read_text(encoding="utf-8"))
    history = read_history({**recorded, "segments": []}, recorded["device_traces"][0])
    totals = _totals(history)
    assert max(totals) == recorded["stats"]["allocated_peak"]
    assert max(history.reserved_bytes) == recorded["stats"]["reserved_peak"]
    end = read_history(recorded, [])  # the segments as they were listed after the last entry
    assert totals[-1] == _totals(end)[0]
    assert history.reserved_bytes[-1] == end.reserved_bytes[0]
