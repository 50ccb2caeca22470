"""The simulated allocator shown: the form for JupyterLab and the frames for the book."""

from __future__ import annotations

from course_utils.memory.allocator import (
    Allocate,
    AllocatorRun,
    EmptyCache,
    Event,
    Free,
    simulate_allocator,
)
from course_utils.memory.allocator_explorer import allocator_explorer, allocator_frames, rows_of
from tests.html_checks import content_of

MIB = 2**20


def growing_requests() -> list[Event]:
    """Two pools, two streams, cached blocks, and a request that only fits after a release."""
    events: list[Event] = []
    for step, size in enumerate((30, 33, 29, 36)):
        events += [Allocate(f"x{step}", size * MIB), Allocate(f"s{step}", 300 * 1024), Free(f"x{step}")]
    events += [Allocate("<b>", 3 * MIB, stream=3), Free("<b>"), Allocate("last", 90 * MIB)]
    return events


def run_of(options: str) -> AllocatorRun:
    return simulate_allocator(growing_requests(), options=options, cap_bytes=110 * MIB)


def test_pages_of_one_expandable_segment_share_a_row() -> None:
    events = [Allocate(n, 20 * MIB, stream=7) for n in "abc"] + [Free("b"), EmptyCache()]
    state = simulate_allocator(events, options="expandable_segments:True").state(len(events))
    ((label, segments),) = rows_of(state, "large")
    assert label == "expandable, stream 7"
    assert [offset for offset, _ in segments] == [0, 40 * MIB]
    ((label, _),) = rows_of(simulate_allocator([Allocate("a", 20 * MIB)]).state(1), "large")
    assert label == "20.0 MiB"  # the default stream goes without saying


def test_every_frame_holds_its_state() -> None:
    for options in ("", "expandable_segments:True"):
        run = run_of(options)
        (state,) = content_of(allocator_frames({"run": run})._repr_html_())["states"]
        assert len(state["frames"]) == len(run) + 1
        width = {pool["name"]: pool["bytes"] for pool in state["pools"]}
        for after in range(len(run) + 1):
            frame = state["frames"][str(after)]
            drawn = [(pool, block) for pool, rows in frame["rows"].items() for _, blocks in rows for block in blocks]
            blocks = [block for segment in run.state(after).segments for block in segment.blocks]
            assert sorted(block[1] for _, block in drawn) == sorted(block.bytes for block in blocks)
            assert all(offset + size <= width[pool] for pool, (offset, size, *_) in drawn)
            assert run.words(after - 1) in frame["words"] if after else frame["words"] == "Before the first event."


def test_the_explorer_has_a_field_for_every_option() -> None:
    viewer = allocator_explorer(growing_requests(), cap_bytes=110 * MIB)
    changes = {
        "expandable_segments": True,
        "max_split_size_mb": 32,
        "roundup_power2_divisions": 4,
        "large_segment_size_mb": 32,
    }
    assert [field["key"] for field in viewer.form] == [*changes, "cap"]
    for name, value in changes.items():
        viewer.chosen = {**viewer.chosen, name: value}
        assert f"{name}:{value}" in viewer.message
    options = ",".join(f"{name}:{value}" for name, value in changes.items())
    assert viewer.state["reserved"][1:] == list(run_of(options).reserved_bytes)
    viewer.chosen = {**viewer.chosen, "cap": 40}
    assert "out of memory" in viewer.state["end"]
    assert viewer.state["frames"][str(viewer.state["events"])]["words"].startswith("Event")
    before = viewer.state
    viewer.chosen = {**viewer.chosen, "large_segment_size_mb": 64}  # larger than max_split_size_mb
    assert "max_split_size_mb must be at least 64" in viewer.message
    assert viewer.state == before
