"""`memory_snapshots`: its stand-in for CUDA's history, its code to paste, and two snapshots subtracted."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from course_utils.lessons.memory_snapshots.stand_in import memory_history
from own_program import command
from tests.lessons.pasted import pasted

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "allocator_traces" / "memory_snapshots-2.13.0.json"
DUMP = """
import sys
from course_utils.lessons.memory_snapshots import cases, stand_in
with stand_in.memory_history() as dump:
    cases.train_and_evaluate()
    dump(sys.argv[1], int(sys.argv[2]))
"""


def test_a_snapshot_made_without_a_gpu_has_the_entries_of_pytorchs_own_allocator(tmp_path: Path) -> None:
    """In a process of its own: tensors that other tests left alive would take room in the first segments."""
    theirs = json.loads(RECORDED.read_text(encoding="utf-8"))
    path = tmp_path / "snapshot.pickle"
    command = [sys.executable, "-c", DUMP, str(path), str(theirs["made_with"]["cap_bytes"])]
    subprocess.run(command, check=True, env=os.environ | {"COURSE_SIZE": "smoke"}, cwd=ROOT)
    ours = pickle.loads(path.read_bytes())

    def entries(snapshot: dict) -> list[tuple[str, int, int]]:
        trace = snapshot["device_traces"][0]
        first = min(entry["addr"] for entry in trace if entry.get("addr"))
        return [(entry["action"], entry.get("addr", first) - first, entry["size"]) for entry in trace]

    assert entries(ours) == entries(theirs)
    blocks = [[(b["size"], b["state"]) for s in each["segments"] for b in s["blocks"]] for each in (ours, theirs)]
    assert blocks[0] == blocks[1]
    assert ours["device_traces"][0][-1]["action"] == "oom"
    assert ours["device_traces"][0][-1]["size"] == 2**24


@pytest.fixture
def two_dumps(tmp_path: Path) -> list[Path]:
    """Of a program whose second half keeps five tensors more, of 4 MiB."""
    files, kept = [tmp_path / "early.pickle", tmp_path / "late.pickle"], []
    with memory_history() as dump:
        for file, count in zip(files, (2, 7), strict=True):
            while len(kept) < count:
                kept.append(torch.ones(2**20))
                torch.ones(2**18)
            dump(file)
    return files


def test_what_grew_is_found_by_the_code_to_paste(two_dumps: list[Path]) -> None:
    """It needs no history, as of a ring that has lost its beginning."""
    code = pasted("memory_snapshots", "def held", re=re, Counter=Counter, Path=Path)
    early, late = (pickle.loads(file.read_bytes()) | {"device_traces": []} for file in two_dumps)
    grown = code["held"](late) - code["held"](early)
    assert list(grown.values()) == [5 * 2**22]
    assert next(iter(grown)).startswith(f"{Path(__file__).name}:")
    assert code["where"]([]) == "no Python frame"
    # `stacks="all"` puts C++ between Python's frames; torch.compile puts a file of Inductor's before them.
    stack = [("/me/model.py", 7, "forward"), ("/x/module.py", 1, "_call_impl")]
    stack += [("??", 0, "call"), ("/tmp/torchinductor_me/c3/c33.py", 109, "call"), ("/me/train.py", 3, "evaluate")]
    frames = [dict(zip(("filename", "line", "name"), each, strict=True)) for each in stack]
    assert code["where"](frames) == "train.py:3 evaluate"
    assert code["where"](frames[2:4]) == "not in your files"


def test_the_command_line_says_what_grew(two_dumps: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    early, late = map(str, two_dumps)
    assert command.main(["snapshot", early, late]) == 0
    shown = capsys.readouterr().out
    assert "In use: 8.00 MiB in early.pickle, 28.0 MiB in late.pickle." in shown
    assert any(
        f"{Path(__file__).name}:" in line and "+20.0 MiB" in line and line.endswith("+5") for line in shown.splitlines()
    )
    assert command.main(["snapshot", late, early]) == 1
    assert "early.pickle is older than late.pickle: name the earlier file first" in capsys.readouterr().err
