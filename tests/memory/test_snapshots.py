"""Memory snapshots: PyTorch's allocator is simulated to the byte wherever a history begins, and files are read."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.memory import allocator as module
from course_utils.memory.allocator import Allocate, Free, FreeCompleted, simulate_allocator
from course_utils.memory.snapshots import read_snapshot
from tests.memory.test_allocator import TRACES, check_state

MIB = 2**20


# PyTorch's own allocator


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.json")), ids=lambda path: path.stem)
def test_recorded_memory_is_simulated_to_the_byte(path: Path) -> None:
    """Recorded from libc10_cuda.so of the version in the name, over a stand-in for the CUDA driver (no GPU)."""
    made = json.loads(path.read_text())["made_with"]
    snapshot = read_snapshot(path)
    assert snapshot.start.segments == ()
    ties = "oldest" if made["torch"].startswith("2.13") else "lowest"
    replay = snapshot.replay(cap_bytes=made["cap_bytes"], device_bytes=made["device_bytes"], ties=ties)
    assert replay.agrees, replay.differences[0]
    assert replay.moved == 0
    assert replay.same_end
    assert replay.blocks > 40
    assert replay.recorded_reserved_bytes == tuple(replay.run.reserved_bytes)
    assert replay.run.reserved_bytes[-1] == snapshot.end.reserved_bytes
    check_state(replay.run, len(replay.run))


def test_the_recordings_hold_what_they_are_for() -> None:
    seen: dict[str, set[str]] = {}
    for path in TRACES.glob("*-2.13.0.json"):
        trace = json.loads(path.read_text())["device_traces"][0]
        seen[path.stem.rpartition("-")[0]] = {entry["action"] for entry in trace}
    everything = set.union(*seen.values())
    assert everything >= {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom"}
    assert {"segment_map", "segment_unmap"} <= seen["expandable_segments_cap"]
    assert "oom" in seen["cap"] & seen["full_device"] & seen["expandable_segments_cap"] & seen["max_split_size"]
    deferred = [event for event in read_snapshot(TRACES / "streams-2.13.0.json").events if type(event) is FreeCompleted]
    assert len(deferred) > 5
    ties = [read_snapshot(TRACES / f"ties_5-{version}.json") for version in ("2.13.0", "2.11.0")]
    assert ties[0].entries != ties[1].entries
    # A snapshot does not say which rule was in force: the one that fits is found, and said.
    for recorded, fits, other in zip(ties, ("oldest", "lowest"), ("lowest", "oldest"), strict=True):
        replays = [recorded.replay(cap_bytes=100 * MIB, ties=asked) for asked in (fits, other)]
        assert all(replay.same_end and replay.ties == fits for replay in replays)
        assert ["ties=" in repr(replay) for replay in replays] == [False, True]


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.json")), ids=lambda path: path.stem)
def test_a_history_may_begin_anywhere(path: Path) -> None:
    recorded = json.loads(path.read_text())
    made, trace = recorded["made_with"], recorded["device_traces"][0]
    ties = "oldest" if made["torch"].startswith("2.13") else "lowest"
    unknown = ("garbage_collection", "ties_5-2.13")  # they depend on how old blocks and segments were
    differs = 0
    for cut in range(0, len(trace) + 1, 3):
        snapshot = read_snapshot({**recorded, "device_traces": [trace[cut:]]})
        replay = snapshot.replay(cap_bytes=made["cap_bytes"], device_bytes=made["device_bytes"], ties=ties)
        if path.stem.startswith(unknown):
            differs += not replay.agrees
        else:
            assert replay.agrees, (cut, replay.differences[0])
            assert replay.same_end, cut
        # The events stand for themselves, under any options.
        begin = [
            event for event in snapshot.events if str(event.id if hasattr(event, "id") else "").startswith("earlier")
        ]
        assert len({event.id for event in begin}) == sum(
            block.state != "free" for segment in snapshot.start.segments for block in segment.blocks
        )
        if cut % 7 == 0:
            for options in (snapshot.options, "expandable_segments:True"):
                run = simulate_allocator(
                    snapshot.events,
                    options=options,
                    cap_bytes=made["cap_bytes"],
                    device_bytes=made["device_bytes"],
                    after_out_of_memory="continue",
                )
                assert len(run) == len(snapshot.events)
    assert differs < 0.1 * len(trace)


def test_blocks_in_use_at_the_beginning_are_asked_for_first() -> None:
    recorded = json.loads((TRACES / "streams-2.13.0.json").read_text())
    trace = recorded["device_traces"][0]
    cut = next(n for n in range(len(trace)) if trace[n]["action"] == "free_requested" and n > 60) + 1
    snapshot = read_snapshot({**recorded, "device_traces": [trace[cut:]]})
    blocks = [block for segment in snapshot.start.segments for block in segment.blocks if block.state != "free"]
    waiting = [block.id for block in blocks if block.state == "awaiting free"]
    assert waiting
    assert [(one.id, one.bytes) for one in snapshot.events[: len(blocks)]] == [
        (block.id, block.requested_bytes) for block in blocks
    ]
    assert snapshot.events[len(blocks) : len(blocks) + len(waiting)] == tuple(Free(name, False) for name in waiting)


def test_wrong_options_are_found_out() -> None:
    path = TRACES / "default-2.13.0.json"
    for options in ("expandable_segments:True", "roundup_power2_divisions:2", "large_segment_size_mb:32"):
        replay = read_snapshot(path).replay(options)
        assert not replay.agrees
        assert replay.differences[0].recorded != replay.differences[0].simulated
        assert "Reserved memory differs at" in repr(replay)
        replay.run.state(len(replay.run))


def test_memory_given_back_without_a_reason_is_said() -> None:
    recorded = json.loads((TRACES / "cap-2.13.0.json").read_text())
    # Without the cap nothing explains why memory was given back before it was taken again.
    replay = read_snapshot(recorded).replay()
    assert replay.unexplained > read_snapshot(recorded).replay(cap_bytes=recorded["made_with"]["cap_bytes"]).unexplained
    assert "taken over from the record" in repr(replay)


@pytest.mark.parametrize("kind", ["empty_cache", "completed"])
def test_memory_given_back_for_two_reasons_is_told_apart(kind: str) -> None:
    """Requests that give memory back by themselves, after something that gave them more to give back.

    Recorded from PyTorch 2.13.0 over the stand-in: a cap of 200 MiB, and garbage_collection_threshold:0.4. Alone, the
    last request would collect the older of two cached segments.
    """
    entries: list[tuple[str, int, int]] = []

    def takes(address: int, size: int) -> None:
        entries.extend((("segment_alloc", address, size), ("alloc", address, size)))

    takes(100, 20)
    takes(200, 30)
    entries.append(("free_requested", 100, 20))
    if kind == "empty_cache":
        entries.append(("free_completed", 100, 20))
    takes(300, 40)
    entries.extend((("free_requested", 200, 30), ("free_completed", 200, 30)))
    if kind == "completed":  # another stream was done in the meantime, and the last request notices
        entries.append(("free_completed", 100, 20))
    entries.extend((("segment_free", 100, 20), ("segment_free", 200, 30)))
    takes(400, 50)
    snapshot = {
        "segments": [
            {
                "address": address * MIB,
                "total_size": size * MIB,
                "stream": 0,
                "segment_type": "large",
                "blocks": [{"size": size * MIB, "requested_size": size * MIB, "state": "active_allocated"}],
            }
            for address, size in ((300, 40), (400, 50))
        ],
        "device_traces": [
            [{"action": what, "addr": at * MIB, "size": size * MIB, "stream": 0} for what, at, size in entries]
        ],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.4"},
    }
    replay = read_snapshot(snapshot).replay(cap_bytes=200 * MIB, device_bytes=400 * MIB)
    assert replay.agrees, replay.differences
    assert replay.same_end
    assert replay.moved == 0
    assert replay.unexplained == (kind == "empty_cache")


def test_the_requests_of_a_snapshot_run_under_any_options() -> None:
    snapshot = read_snapshot(TRACES / "default-2.13.0.json")
    replay = snapshot.replay()
    # With all that was given back, they reserve what was recorded.
    again = simulate_allocator(replay.run.events, options=snapshot.options)
    assert tuple(again.reserved_bytes) == replay.recorded_reserved_bytes
    # Without, they ask for the same; which blocks they get, and so how much of a block is in use, may differ.
    asked = [event for event in replay.run.events if type(event) is Allocate]
    assert [event for event in snapshot.events if type(event) is Allocate] == asked
    assert simulate_allocator(snapshot.events, options="expandable_segments:True").device_allocs[-1] > 0


# Files


@pytest.fixture
def recorded() -> dict:
    return json.loads((TRACES / "default-2.13.0.json").read_text())


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_a_pickle_is_read_as_the_same_in_json(tmp_path: Path, recorded: dict, protocol: int) -> None:
    recorded["device_traces"][0][0]["frames"] = [{"filename": "a\nb.py", "line": 2**70, "name": "é" * 300}]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(recorded, protocol=protocol))
    assert read_snapshot(path).entries == read_snapshot(TRACES / "default-2.13.0.json").entries


class _Hostile:
    def __reduce__(self):
        return os.mkdir, ("hostile",)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [_Hostile()]}, protocol=protocol))
    with pytest.raises(ValueError, match=r"would load \w+\.mkdir, .* do not load this file"):
        read_snapshot(path)
    assert not (tmp_path / "hostile").exists()


def test_a_cut_off_file_is_said_to_be_none(tmp_path: Path, recorded: dict) -> None:
    path = tmp_path / "snapshot.pickle"
    for data in (pickle.dumps(recorded), json.dumps(recorded).encode()):
        for end in (0, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:end])
            with pytest.raises(ValueError, match="is no snapshot that can be read"):
                read_snapshot(path)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_damaged_file_gives_a_value_error_or_a_snapshot(data) -> None:
    content = bytearray(pickle.dumps(json.loads((TRACES / "default_small-2.13.0.json").read_text())))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        path.write_bytes(content)
        with contextlib.suppress(ValueError):
            assert read_snapshot(path).entries is not None


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    for name in (tmp_path / "nothing.pickle", tmp_path):
        with pytest.raises(ValueError, match="there is no file"):
            read_snapshot(name)
    with pytest.raises(ValueError, match="a snapshot is a path or what"):
        read_snapshot(None)


def changed(recorded: dict, what: str) -> dict:
    trace, segments = recorded["device_traces"][0], recorded["segments"]
    if what == "action":
        trace[3]["action"] = "teleport"
    elif what == "size":
        del trace[3]["size"]
    elif what == "list":
        recorded["device_traces"] = 5
    elif what == "grows by nothing":
        trace[0].update(action="segment_map", size=0)
    elif what == "pool":
        trace[3]["pool_id"] = (0, 1)
    elif what == "segment pool":
        segments[0]["segment_pool_id"] = [1, 0]
    elif what == "blocks":
        segments[0]["blocks"][0]["size"] += 512
    elif what == "missing":
        del recorded["segments"]
    elif what == "two devices":
        recorded["device_traces"].append(trace)
    elif what == "left out":
        del trace[len(trace) // 2 :]
    elif what == "option":
        recorded["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
    return recorded


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("action", "trace entry 3 has an unknown action 'teleport'"),
        ("size", "a part of the snapshot is damaged: KeyError: 'size'"),
        ("list", "a part of the snapshot is damaged: TypeError"),
        ("grows by nothing", "contradict each other at trace entry 0"),
        ("pool", r"trace entry 3 belongs to a private pool \(0, 1\) \(a CUDA graph"),
        ("segment pool", r"segment 0 belongs to a private pool \(1, 0\)"),
        ("blocks", "the blocks of segment 0 do not fill it"),
        ("missing", "a snapshot is a dictionary with 'segments' and 'device_traces'"),
        ("two devices", r"histories of the devices \[0, 1\]: choose one with device="),
        ("left out", "the history and the segments contradict each other at trace entry"),
        ("option", "backend:cudaMallocAsync makes another allocator"),
    ],
)
def test_what_is_wrong_with_a_snapshot_is_said(recorded: dict, what: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_snapshot(changed(recorded, what))


def test_an_option_of_a_later_pytorch_is_left_out_and_said(recorded: dict) -> None:
    recorded["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "newest:[1:2,3:4],large_segment_size_mb:32"
    snapshot = read_snapshot(recorded)
    assert snapshot.options.large_segment_bytes == 32 * MIB
    assert "option 'newest' is not known here" in snapshot.notes[0]


def test_a_device_is_chosen_by_number(recorded: dict) -> None:
    trace = recorded["device_traces"][0]
    assert len(read_snapshot({**recorded, "device_traces": [trace, []]}).entries) == len(trace)
    assert read_snapshot({**recorded, "device_traces": [trace, []], "segments": []}, device=1).entries == ()
    with pytest.raises(ValueError, match="has no device 2; it has 1"):
        read_snapshot(recorded, device=2)


def test_frees_that_were_not_recorded_in_full_still_count(recorded: dict) -> None:
    trace = recorded["device_traces"][0]
    whole = read_snapshot(recorded).replay()
    short = [entry for entry in trace if entry["action"] != "free_requested"]
    replay = read_snapshot({**recorded, "device_traces": [short]}).replay()
    assert replay.agrees
    assert replay.recorded_reserved_bytes == whole.recorded_reserved_bytes
    short = [entry for entry in trace if entry["action"] != "free_completed"]
    with pytest.raises(ValueError, match="skip_actions"):
        read_snapshot({**recorded, "device_traces": [short]})


# Form


@pytest.mark.parametrize("name", ["allocator", "snapshots"])
def test_neither_torch_nor_a_plotting_library_is_needed(name: str) -> None:
    tree = ast.parse((Path(module.__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert {one.partition(".")[0] for one in imported} <= {"course_utils", *sys.stdlib_module_names}
    code = f"import sys, course_utils.memory.{name}; assert not {{'torch', 'numpy', 'matplotlib'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(module.__file__).parents[2])
