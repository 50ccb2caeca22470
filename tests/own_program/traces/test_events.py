"""Files that people bring: cut, damaged, foreign, hostile, huge."""

from __future__ import annotations

import gzip
import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from own_program import command
from own_program.traces import text
from own_program.traces.events import KERNEL, OP, TraceError, read_events
from own_program.traces.gpus import Gpu
from own_program.traces.report import read_trace
from tests.own_program.traces.made_up import GEMM, MadeUp, busy_steps

WHOLE = busy_steps().json()
STEP = json.dumps({"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 5, "tid": 1})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (pickle.dumps({"segments": []}), "`course snapshot`"),
        (b"PK\x03\x04 archive.zip", "a zip archive .*, not a trace"),
        (b"SQLite format 3\x00", "Nsight"),
        (b"<!DOCTYPE html><html>", "a page or XML"),
        (b"\x28\xb5\x2f\xfd....", "zstd"),
        (b"\n\x9b\x02\x50\x01\xa2\x01\x05trace", "in Perfetto's own format"),
        (b"\x07report\x00", "binary, not a trace"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (gzip.compress(pickle.dumps([]), mtime=0), "a pickle"),
        (b"step,seconds\n1,2\n", "is not JSON"),
        (b'{"a": 1}', "has no traceEvents"),
        (b'{"device_traces": [], "segments": []}', "looks like a memory snapshot"),
        (b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', "looks like an execution trace"),
        (b'{"traceEvents": []}', "without events"),
        (b'{"traceEvents": [', "breaks off before its first event"),
        (b'{"schemaVersion": 1, "deviceProperties": [{"id"', "breaks off before its first event"),
        (b'{"traceEvents": [' + STEP.encode() + b", ", "ends in the middle, before anything that takes time"),
        (b'[{"ph": "X", "cat": "toplevel", "name": "RunTask", "ts": 1, "dur": 2}]', "not one of torch.profiler"),
        (b'{"traceEvents": [1, "x", null, [], {}]}', "without events"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": NaN, "dur": 1}]}', "has a time"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1e300, "dur": 1}]}', "has a time"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 0}]}', "took any time"),
        (b'{"traceEvents": ' + b"[" * 200_000, "without events|before its first event|nested too deeply"),
        (b'{"traceEvents": [{"args": ' + b"[" * 200_000 + b"]}", "nested too deeply"),
        (b"\x1f\x8b\x08 cut off", "is damaged, and no trace"),
        (gzip.compress(b"", mtime=0)[:12], "is damaged, and no trace"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused_in_one_sentence(content: bytes, message: str, tmp_path: Path):
    path = tmp_path / "brought.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message) as refused:
        read_trace(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("source", [{"traceEvents": []}, [], None, 7, open])
def test_what_is_no_file_is_refused_in_a_sentence(source: object):
    with pytest.raises(TraceError, match=f"path or its bytes, and this is of type {type(source).__name__}"):
        read_trace(source)  # type: ignore[arg-type]


def test_another_tools_report_is_known_by_its_name(tmp_path: Path):
    for name, what in (("a.nsys-rep", "Nsight Systems"), ("a.ncu-rep", "Nsight Compute"), ("a.pftrace", "Perfetto's")):
        (tmp_path / name).write_bytes(b"of any content")
        with pytest.raises(TraceError, match=f"{name} is .*{what}"):
            read_trace(tmp_path / name)
        (tmp_path / name).write_bytes(WHOLE)  # a name alone is no reason
        read_trace(tmp_path / name)


def test_a_missing_file_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(TraceError, match="folder without a trace"):
        read_trace(tmp_path)
    for rank, folder in enumerate(("with 1 trace: read", "with 2 traces: read one at a time, such as")):
        (tmp_path / f"rank{rank}.json").write_bytes(WHOLE)
        with pytest.raises(TraceError, match=rf"is a folder {folder} .*rank0\.json\."):
            read_trace(tmp_path)
    assert command.main(["trace", str(tmp_path / "none.json")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert command.main(["trace", str(tmp_path / "rank0.json")]) == 0
    assert capsys.readouterr().out.startswith("Nothing stands out")


@pytest.mark.parametrize(
    ("content", "flaw"),
    [
        (WHOLE[: len(WHOLE) * 2 // 3], "ends in the middle"),
        (gzip.compress(WHOLE)[:-30], "ends in the middle"),
        (gzip.compress(WHOLE[:-400]), "ends in the middle"),
        (busy_steps(count=400).gz()[:-4] + b"\xff\xff\xff\xff", "is damaged"),  # another length than it has
    ],
    ids=["text", "packed", "text in packed", "damage"],
)
def test_what_stands_before_an_early_end_is_read(content: bytes, flaw: str):
    trace = read_events(content)
    assert len(trace.events[KERNEL]) > 0
    assert flaw in trace.flaws[0]
    assert trace.flaws[0] in read_trace(content).card().warning


def test_a_whole_file_has_no_flaws():
    assert read_events(gzip.compress(WHOLE[:900]) + gzip.compress(WHOLE[900:])).flaws == []


@settings(max_examples=60)
@given(st.integers(0, len(WHOLE)), st.binary(max_size=6))
def test_damage_anywhere_gives_an_answer_or_a_sentence(at: int, what: bytes):
    for content in (WHOLE[:at], WHOLE[:at] + what + WHOLE[at + len(what) :]):
        try:
            repr(read_trace(content))
        except TraceError as error:
            assert "\n" not in str(error)  # noqa: PT017 - not every example fails


def test_damaged_events_are_left_out_and_counted():
    content = WHOLE.replace(b'"name": "ProfilerStep#6"', b'"name": "Profiler\\Step#6"', 1)
    trace = read_events(content)
    assert trace.flaws == ["One event was left out: it is damaged."]
    assert len(trace.events[KERNEL]) == 16


@pytest.mark.parametrize("word", ["inf", "-nan", "Infinity", "NaN"])
def test_numbers_that_json_has_not_are_read_as_versions_of_kineto_wrote_them(word: str):
    trace = read_events(WHOLE.replace(b'"stream": 7', b'"stream": 7, "achieved occupancy %": ' + word.encode()))
    assert (len(trace.events[KERNEL]), trace.flaws) == (16, [])


def test_events_without_a_time_are_counted_and_numbers_in_quotes_are_read():
    made = busy_steps()
    kernels = [event for event in made.events if event.get("cat") == "kernel"]
    kernels[0]["ts"], kernels[1]["dur"], kernels[2]["ts"] = None, -5, 10**400
    kernels[3]["ts"] = str(kernels[3]["ts"])
    trace = read_events(made.json())
    assert trace.flaws == ["3 events were left out: their time is missing, negative or no number."]
    assert len(trace.events[KERNEL]) == 13


def test_the_header_may_stand_after_the_events_and_a_list_of_events_is_a_trace():
    made = busy_steps()
    info = {"deviceProperties": [{"id": 0}, {"id": 1}], "distributedInfo": {"rank": 1, "world_size": 2}}
    assert read_events(json.dumps({"traceEvents": made.events, **info}).encode()).rank == "rank 1 of 2"
    for same in (json.dumps(made.events).encode(), b"\xef\xbb\xbf" + WHOLE, WHOLE.decode().encode("utf-16")):
        assert len(read_events(same).events[KERNEL]) == 16


@pytest.mark.parametrize(
    ("told", "gpu"),
    [
        ({"name": "Tesla V100-SXM2-16GB"}, Gpu("Tesla V100-SXM2-16GB", "NVIDIA", (7, 0))),
        ({"name": "NVIDIA X1", "computeMajor": 13, "computeMinor": 1}, Gpu("NVIDIA X1", "NVIDIA", (13, 1))),
        ({"name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4}, Gpu("AMD Instinct MI300X", "AMD")),
        ({"name": "Intel(R) Arc(TM) B580 Graphics"}, Gpu("Intel(R) Arc(TM) B580 Graphics", "Intel")),
        ({}, Gpu("", "NVIDIA")),  # the calls tell its maker
    ],
)
def test_what_a_gpu_is(told: dict[str, Any], gpu: Gpu):
    assert read_events(busy_steps().json(deviceProperties=[told] if told else [])).gpus == {0: gpu}


@pytest.mark.parametrize(
    ("machine_has_one", "category", "name", "shows"),
    [
        (False, "cpu_op", "aten::cudnn_is_acceptable", False),
        (False, "user_annotation", "copy to cuda: nccl:warm-up", False),
        (False, "user_annotation", "gloo:all_reduce", False),
        (False, "user_annotation", "nccl:all_to_all", True),
        (False, "cuda_runtime", "cudaLaunchKernel", True),
        (True, "cuda_runtime", "cudaDeviceSynchronize", False),  # recorded, and idle
        (True, "cpu_op", "aten::mm", True),  # not recorded
        (False, "kernel", GEMM, True),
    ],
)
def test_a_device_shows_in_what_was_recorded_not_in_words(machine_has_one: bool, category: str, name: str, shows: bool):
    made = MadeUp()
    made.event(category, name, 0, 1)
    listed = [{"id": 0, "name": "NVIDIA H100"}] if machine_has_one else []
    assert read_events(made.json(deviceProperties=listed)).has_gpu_side == shows


def test_other_makers_kernels_are_read():
    made = busy_steps()
    for event in made.events:
        event["cat"] = event.get("cat", "").replace("kernel", "privateuse1_kernel").replace("cuda", "privateuse1")
    assert len(read_events(made.json()).events[KERNEL]) == 16
    for event in made.events:  # as Ascend writes them: without a category, and numbers in quotes
        if event.pop("cat") == "privateuse1_kernel":
            event["ts"], event["args"] = str(event["ts"]), {"Task Type": "AI_CORE", "Stream Id": 2}
    (kernel, *others) = read_events(json.dumps([*made.events, json.loads(STEP)]).encode()).events[KERNEL]
    assert (kernel.stream, kernel.device, len(others)) == (2, 0, 15)


def test_operators_keep_the_shapes_of_their_inputs():
    made = MadeUp()
    made.op("aten::cat", 0, 5, **{"Input Dims": [[[2, 3], [4, 3]], []], "Input type": ["TensorList", "Scalar"]})
    made.op("aten::mm", 6, 5, **{"Input Dims": [[2, 3], [3, 4]], "Sequence number": 8})
    made.op("aten::mm", 12, 5)
    cat, product, unknown = read_events(made.json()).events[OP]
    assert cat.shapes == (((2, 3), (4, 3)), ())
    assert (product.shapes, product.sequence) == (((2, 3), (3, 4)), 8)
    assert unknown.shapes is None


def test_pieces_may_end_anywhere(monkeypatch: pytest.MonkeyPatch):
    made = busy_steps()
    for event in made.events[2::3]:
        event["args"] |= {"of several": [{"rank": 0}, {"rank": 1, "more": [{"a": 1}, {"a": 2}]}], "last": 1}
    content = made.json()
    expected = read_events(content)
    assert len(expected.events[KERNEL]) == 16
    for size in (1, 7, 64, 1001):
        monkeypatch.setattr(text, "_PIECE", size)
        for same in (content, gzip.compress(content), content.replace(b'"last": 1', b'"last": nan')):
            assert read_events(same) == expected


def test_a_long_trace_is_never_held_as_text():
    other = json.dumps({"ph": "f", "cat": "ac2g", "name": "x" * 400, "ts": 1, "id": 1}).encode()
    packed = gzip.compress(WHOLE[:-2] + (b"," + other) * 40_000 + b"]}", 1)
    tracemalloc.start()
    try:
        assert len(read_events(packed).events[KERNEL]) == 16
        assert tracemalloc.get_traced_memory()[1] < 8 << 20  # of 18 MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_too_large_is_refused_early_and_what_is_not_is_read(packed: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text, "_SURE", 1 << 20)
    content = WHOLE[:-2] + (b"," + STEP.encode()) * 60_000 + b"]}"
    brought = gzip.compress(content, 1) if packed else content
    for most in (len(content) // 2, len(content) - 1):
        monkeypatch.setattr(text, "_MOST_TEXT", most)
        seen: list[int] = []
        with pytest.raises(TraceError, match="record fewer steps"):
            seen.extend(map(len, text.RawTrace(brought)))
        assert sum(seen) < 20_000
    monkeypatch.setattr(text, "_MOST_TEXT", len(content))
    assert sum(map(len, text.RawTrace(brought))) > 60_000


def test_a_compressed_file_that_is_cut_is_not_taken_for_a_huge_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text, "_SURE", 1 << 10)
    assert read_events(gzip.compress(WHOLE)[:-60] + b"\xff" * 4).flaws  # its last bytes tell of 4 GiB


HUGE = ("1" + "0" * 400, "9" * 5000, "-1" + "0" * 350, "1e999", "[" * 800 + "]" * 800, '"\\ud800"', "{}", "null", "NaN")


@pytest.mark.parametrize("field", ["ts", "dur", "tid", "pid", "name", "args", "correlation", "device", "Input Dims"])
def test_no_value_ends_in_anything_but_a_sentence_or_a_card(field: str):
    for value in HUGE:
        made = busy_steps()
        made.op("aten::mm", 10, 20)
        for event in made.events:
            place = event if field in event else event["args"]
            place[field] = "@"
        text = made.json(
            deviceProperties=[{"id": "@", "name": "@", "computeMajor": "@"}], distributedInfo={"rank": "@"}
        )
        try:
            report = read_trace(text.replace(b'"@"', value.encode()))
            assert (repr(report) + report._repr_html_()).encode()
        except TraceError as error:
            assert error.__cause__ is None  # foreseen  # noqa: PT017 - not every value fails
