"""Files that people bring: traces of several writers, and what is none."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

from own_program import command
from own_program.traces.events import KERNEL, TraceFileError, read_events
from own_program.traces.trace_report import read_trace
from tests.own_program.traces.made_up import busy_steps

WHOLE = busy_steps().json()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (pickle.dumps({"segments": []}), "`course snapshot`"),
        (b"step,seconds\n1,2\n", "is not JSON"),
        (b'[{"ph": "X", "cat": "toplevel", "name": "RunTask", "ts": 1, "dur": 2}]', "has no event of torch.profiler"),
        (WHOLE[: len(WHOLE) * 2 // 3], "ends in the middle: copy or export it again"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused_in_one_sentence(content: bytes, message: str, tmp_path: Path):
    path = tmp_path / "brought.json"
    path.write_bytes(content)
    with pytest.raises(TraceFileError, match=message) as refused:
        read_trace(path)
    assert "\n" not in str(refused.value)


def test_the_command_reads_a_file_and_says_which_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "rank0.json").write_bytes(WHOLE)
    assert command.main(["trace", str(tmp_path / "none.json")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert command.main(["trace", str(tmp_path / "rank0.json")]) == 0
    assert capsys.readouterr().out.startswith("Nothing stands out")


def test_the_header_may_stand_after_the_events_and_a_list_of_events_is_a_trace():
    made = busy_steps()
    info = {"deviceProperties": [{"id": 0}, {"id": 1}], "distributedInfo": {"rank": 1, "world_size": 2}}
    assert read_events(json.dumps({"traceEvents": made.events, **info}).encode()).rank == "rank 1 of 2"
    for same in (json.dumps(made.events).encode(), gzip.compress(WHOLE)):
        assert len(read_events(same).events[KERNEL]) == 16
