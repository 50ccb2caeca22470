"""Memory traces on CUDA, without a GPU: PyTorch's own recorded histories, and a stand-in that writes one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from course_utils.measure.machine import environment
from course_utils.memory import trace as memory
from course_utils.memory.cuda_history import History, read_history
from course_utils.results.memory_trace import MemoryTrace
from tests.scripted_history import ScriptedHistory

MIB = 2**20
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
    entries = recorded["device_traces"][0]
    history = read_history({**recorded, "segments": []}, entries)
    assert history.exact
    totals = _totals(history)
    assert max(totals) == recorded["stats"]["allocated_peak"]
    assert max(history.reserved_bytes) == recorded["stats"]["reserved_peak"]
    end = read_history(recorded, [])  # the segments as they were listed after the last entry
    assert totals[-1] == _totals(end)[0]
    assert history.reserved_bytes[-1] == end.reserved_bytes[0]


def _run(gpu: ScriptedHistory, fn: Callable[[], Any]) -> MemoryTrace:
    with gpu:
        found, error = memory.on_cuda(fn, None, torch.device("cpu"), gpu)
    if error is not None:
        raise error
    return MemoryTrace.from_blocks(**found, label="step", environment=environment(), worked_by="gpu")


def _training(gpu: ScriptedHistory) -> Callable[[], None]:
    model = nn.Sequential(nn.Linear(128, 128, bias=False), nn.ReLU(), nn.Linear(128, 128, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    x = torch.randn(64, 128)
    gpu.adopt(*model.parameters(), x)

    def step() -> None:
        y = model(x)
        y.backward(torch.ones_like(y))
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_a_step_is_told_apart_by_kind_module_and_line() -> None:
    gpu = ScriptedHistory()
    step = _training(gpu)
    trace = _run(gpu, step)
    weights, batch = 2 * 128 * 128 * 4, 64 * 128 * 4
    kinds = trace.by_kind()
    assert set(kinds["weights"]) == {weights}
    assert set(kinds["other"]) == {batch}
    assert (max(kinds["gradients"]), kinds["gradients"][-1]) == (weights, 0)
    assert (kinds["optimizer state"][0], kinds["optimizer state"][-1]) == (0, weights)
    assert max(kinds["activations"]) >= 2 * batch
    # The meter is the allocator itself.
    assert trace.meter_bytes == trace.metered_bytes == trace.extra_peak_bytes
    assert trace.scratch_bytes == 0
    assert max(trace.reserved_bytes) == trace.peak_bytes  # each block has a segment of its own here
    assert [phase.name for phase in trace.phases] == ["forward", "backward", "optimizer step"]
    back = {block.module for block in trace.blocks if block.line.endswith(", backward")}
    assert {"Sequential.0", "Sequential.1", "Sequential.2"} <= back
    assert all("test_cuda_history.py:" in block.line for block in trace.blocks if block.born)
    assert [call for call in gpu.calls if call != "synchronize"] == ["record all", "record None"]


def test_scratch_memory_of_an_operation_is_seen_and_named() -> None:
    gpu = ScriptedHistory("mm", 8 * MIB)
    step = _training(gpu)
    trace = _run(gpu, step)
    scratch = [block for block in trace.blocks if block.size_bytes == 8 * MIB]
    assert len(scratch) == 5  # two forward, three backward
    assert {(block.kind, block.op) for block in scratch} == {("temporaries", "mm")}
    assert {block.module for block in scratch} == {"Sequential.0", "Sequential.2"}
    assert trace.extra_peak_bytes >= 8 * MIB
    assert trace.scratch_bytes == 0


def test_a_failing_call_stops_the_recording_and_keeps_the_trace() -> None:
    gpu = ScriptedHistory()

    def code() -> None:
        gpu.take(1 << 60, 3 * MIB)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    found, error = memory.on_cuda(code, None, torch.device("cpu"), gpu)
    assert isinstance(error, torch.OutOfMemoryError)
    assert [block.size_bytes for block in found["blocks"]] == [3 * MIB]
    assert gpu.calls[-1] == "record None"
