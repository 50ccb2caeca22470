"""`memory_snapshots`: its snapshots and its code to paste; facts about torch are in its lesson.yml."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from course_utils.lessons.memory_snapshots import cases
from course_utils.memory.snapshots import load_snapshot
from course_utils.records.lessons import find_lesson

NOTEBOOK = find_lesson("memory_snapshots").path
RECORDED = Path(__file__).parents[1] / "allocator_traces" / "memory_snapshots-2.13.0.json"


def _pasted() -> dict[str, Any]:
    """The lesson's code to paste."""
    pasted: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and re.search("def (held|live_after)", source):
            exec(source, pasted)
        elif "def by_line" in source:
            exec(re.search(r"```python\n(import pickle\n)", source)[1], pasted)
            exec(re.search(r"```python\n(from collections.*?def by_line.*?\n)\nprint", source, re.DOTALL)[1], pasted)
        elif "def show_largest" in source:
            exec(re.search(r"```python\n(import gc, torch.*?)show_largest\(\)\n```", source, re.DOTALL)[1], pasted)
    return pasted


DUMP = """
import sys
from functools import partial
from course_utils.lessons.memory_snapshots import cases
cases.dump_at_out_of_memory(partial(cases.train_and_evaluate, "cpu"), sys.argv[1], "cpu", int(sys.argv[2]))
"""


def test_a_snapshot_made_without_a_gpu_has_the_entries_of_pytorchs_own_allocator(tmp_path: Path) -> None:
    """The failing request included; where the device puts the first segment is its own affair.

    In a process of its own: tensors that other tests left alive would take room in the first segments.
    """
    theirs = json.loads(RECORDED.read_text(encoding="utf-8"))
    path = tmp_path / "snapshot.pickle"
    command = [sys.executable, "-c", DUMP, str(path), str(theirs["made_with"]["cap_bytes"])]
    subprocess.run(command, check=True, env=os.environ | {"COURSE_SIZE": "smoke"}, cwd=NOTEBOOK.parents[1])
    ours = pickle.loads(path.read_bytes())

    def entries(snapshot: dict) -> list[tuple[str, int, int]]:
        trace = snapshot["device_traces"][0]
        first = min(entry["addr"] for entry in trace if entry.get("addr"))
        return [(entry["action"], entry.get("addr", first) - first, entry["size"]) for entry in trace]

    assert entries(ours) == entries(theirs)
    assert ours["device_traces"][0][-1]["action"] == "oom"
    blocks = [[(b["size"], b["state"]) for s in each["segments"] for b in s["blocks"]] for each in (ours, theirs)]
    assert blocks[0] == blocks[1]
    assert ours["device_traces"][0][-1]["size"] == 2**24


def test_a_snapshot_made_without_a_gpu_is_read_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    with cases.memory_history("cpu") as dump:
        kept = [torch.ones(2**18) * 2 for _ in range(3)]
        dump(str(path))
    assert len(kept) == 3
    snapshot = load_snapshot(path)
    assert snapshot.end.allocated_bytes >= 3 * 2**20
    frames = [e["frames"] for e in pickle.loads(path.read_bytes())["device_traces"][0] if e["action"] == "alloc"]
    assert all(any(Path(__file__).name in frame["filename"] for frame in stack) for stack in frames)


def test_a_slow_leak_is_found_where_the_history_has_lost_its_beginning(tmp_path: Path) -> None:
    """By the lesson's code to paste: what is in use, subtracted by line. The history's own search finds nothing."""
    pasted = _pasted()
    pasted["OWN"] = Path(__file__).name
    ring, kept, lost = 30, [], []
    with cases.memory_history("cpu") as dump:
        for step in range(1, 41):
            kept.append(torch.ones(2**20))
            for _ in range(20):
                torch.ones(2**18)
            if step % 20 == 0:
                path = tmp_path / f"{step}.pickle"
                dump(str(path))
                snapshot = pickle.loads(path.read_bytes())
                snapshot["device_traces"][0] = snapshot["device_traces"][0][-ring:]
                path.write_bytes(pickle.dumps(snapshot))
                lost.append(pasted["held"](pasted["live_after"](snapshot["device_traces"][0])))
    first, second = (pasted["by_line"](str(tmp_path / name), 0) for name in ("20.pickle", "40.pickle"))
    assert list((second - first).values()) == [20 * 2**22]
    assert lost[0] == lost[1] == []


def test_the_peak_counts_what_was_there_before_the_history_began() -> None:
    """100 bytes at 9, until they are freed; the list of blocks has only those of the history."""
    history = (("alloc", 1, 50), ("free_completed", 9, 100), ("alloc", 9, 40), ("free_completed", 1, 50))
    trace = [{"action": action, "addr": address, "size": size} for action, address, size in history]
    pasted = _pasted()
    assert pasted["peak_of"](trace) == 1
    assert [entry["size"] for entry in pasted["live_after"](trace, 3)] == [50, 40]


def test_a_block_that_another_stream_may_still_use_counts_until_its_free_is_completed() -> None:
    history = [("alloc", 1, 100), ("alloc", 2, 1000), ("free_requested", 2, 1000), ("alloc", 3, 500)]
    history += [("free_completed", 2, 1000)]
    trace = [{"action": action, "addr": address, "size": size} for action, address, size in history]
    pasted = _pasted()
    assert pasted["peak_of"](trace) == 4
    assert sum(entry["size"] for entry in pasted["live_after"](trace, 4)) == 1600
    assert pasted["held"](pasted["live_after"](trace)) == [{"line": "no Python frame", "blocks": 2, "bytes": 600}]


def test_the_request_that_failed_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = [{"filename": "planted.py", "line": 3, "name": "f"}]
    request = {"action": "oom", "size": 64, "device_free": 8, "frames": frames}
    (tmp_path / "file").write_bytes(pickle.dumps({"device_traces": [[{"action": "alloc"}, request]]}))
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    blocks = (
        re.search(r"```python\n(import pickle\n\nsnapshot.*?)```", "".join(c["source"]), re.DOTALL) for c in cells
    )
    exec(next(filter(None, blocks))[1], _pasted() | {"path": tmp_path / "file"})
    assert capsys.readouterr().out == "planted.py:3 f 64 bytes; free: 8\n"


def test_a_picture_of_a_history_has_its_peak_and_its_end() -> None:
    history = [("alloc", 1, 10), ("alloc", 2, 30), ("free_completed", 2, 30), ("free_completed", 9, 99), ("oom", 0, 50)]
    trace = [{"action": what, "addr": n, "size": size, "time_us": 7, "frames": []} for what, n, size in history]
    drawn = cases.picture(trace, "cpu", _pasted()["where"], label="a program")
    assert (drawn.peak_bytes, drawn.end_bytes) == (40, 10)
    assert drawn.by_module()["no Python frame"] == (0, 10, 40, 10)


def test_the_largest_tensors_are_listed_with_their_holders(capsys: pytest.CaptureFixture[str]) -> None:
    """By name, a storage once. One that only autograd keeps has none, and what ``exp`` keeps is not listed."""
    batched = []
    torch.func.vmap(lambda row: (batched.append(row), row)[1])(torch.ones(2, 3))  # as a compiled program leaves one
    weight, sparse = torch.ones(2**21, 2, requires_grad=True), torch.eye(3).to_sparse()
    kept = {"held": torch.ones(2**21, 4), "loss": (weight * 2).view(1, 2**21, 2).square().sum()}
    kept["other"] = weight.view(2, 1, 2**21).exp().sum()
    unread = torch.ones(3, 2**20, requires_grad=True)
    unread.sum().backward()
    with FakeTensorMode():
        nowhere = [torch.empty(5, 2**21)]
    nowhere += [torch.empty(5, 2**21, device="meta")]
    _pasted()["show_largest"]()
    lines = capsys.readouterr().out.splitlines()
    assert sparse.is_sparse
    assert batched
    assert any(line.startswith("(2097152, 4)") and line.endswith("['held']") for line in lines)
    assert any(line.startswith("(1, 2097152, 2)") and line.endswith("[]") for line in lines)
    assert not any(line.startswith("(2, 1, 2097152)") for line in lines)
    assert sum(line.startswith("(3, 1048576)") for line in lines) == 1  # the weight, not its gradient
    assert not any(line.startswith("(5, 2097152)") for line in lines)
    assert nowhere
    assert sum(line.startswith("(2097152, 2)") for line in lines) == 1  # the weight, and not the view's base


def test_an_observer_keeps_three_files_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    source = next("".join(c["source"]) for c in cells if "def dump_at_out_of_memory" in "".join(c["source"]))
    pasted: dict[str, Any] = {}
    exec(source[: source.index("\nif torch.cuda.is_available")], pasted)
    recorded, observers, dumped = [], [], []
    memory = torch.cuda.memory
    monkeypatch.setattr(memory, "_record_memory_history", lambda enabled, **_: recorded.append(enabled))
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", observers.append, raising=False)
    monkeypatch.setattr(memory, "_dump_snapshot", lambda path: dumped.append(Path(path).write_bytes(b"")))
    pasted["dump_at_out_of_memory"](f"{tmp_path}/snapshot", enabled="state")
    for _ in range(5):
        observers[0](0, 1, 2, 3)
    assert recorded == ["state"]
    assert len(dumped) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"snapshot_{n}.pickle" for n in range(3)]

    def full(path: str) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(memory, "_dump_snapshot", full)
    observers[0](0, 1, 2, 3)
    assert "No space left" in capsys.readouterr().out
