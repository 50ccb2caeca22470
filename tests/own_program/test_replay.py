"""Memory snapshots: PyTorch's allocator is simulated to the byte wherever a history begins."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from course_utils.memory.allocator import AllocatorOptions
from tests.memory.test_allocator import TRACES
from tests.replays import load_snapshot, same_end

MIB = 2**20


@pytest.mark.parametrize("name", ["default-2.13.0", "expandable_segments-2.13.0"])
def test_a_history_may_begin_anywhere(name: str) -> None:
    recorded = json.loads((TRACES / f"{name}.json").read_text())
    origin, trace = recorded["made_with"], recorded["device_traces"][0]
    for cut in range(0, len(trace) + 1, 25):
        snapshot = load_snapshot({**recorded, "device_traces": [trace[cut:]]})
        replay = snapshot.replay(cap_bytes=origin["cap_bytes"], device_bytes=origin["device_bytes"])
        assert replay.agrees, cut
        assert same_end(replay), cut


def test_wrong_options_are_found_out() -> None:
    snapshot = load_snapshot(TRACES / "default-2.13.0.json")
    for options in ("expandable_segments:True", "roundup_power2_divisions:2", "large_segment_size_mb:32"):
        assert not replace(snapshot, options=AllocatorOptions.parse(options)).replay().agrees


def test_a_history_that_contradicts_itself_is_refused() -> None:
    recorded = json.loads((TRACES / "default-2.13.0.json").read_text())
    recorded["device_traces"][0].pop()
    with pytest.raises(ValueError, match=r"contradict each other at trace entry \d+ .* skip_actions\?"):
        load_snapshot(recorded)
