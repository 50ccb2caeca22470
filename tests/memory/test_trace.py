"""Traces of memory on a CPU: every byte against arithmetic and the profiler, and each kind of tensor in its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import _get_current_dispatch_mode

from course_utils.materials.models import GPT, MLP
from course_utils.measure.devices import profiled_peak
from course_utils.memory.trace import MemoryTraceError, trace_memory
from course_utils.results.memory_trace import MemoryTrace

KIB = 1024


def _kib(count: float) -> torch.Tensor:
    """A tensor of so many KiB that nobody has written to."""
    return torch.empty(int(count * KIB), dtype=torch.uint8)


def _once(fn: Callable[[], Any]) -> MemoryTrace:
    return trace_memory(fn, device="cpu")


def test_bytes_over_time_are_those_of_the_storages() -> None:
    def code() -> torch.Tensor:
        a = _kib(10)
        b = _kib(20)
        del a
        c = _kib(4)
        del b
        return c

    trace = _once(code)
    assert [total // KIB for total in trace.totals_bytes] == [0, 10, 30, 20, 24, 4, 0, 0]
    assert trace.peak_bytes == trace.extra_peak_bytes == 30 * KIB
    assert {(block.kind, block.op) for block in trace.blocks} == {("temporaries", "empty")}
    assert trace.allocations == 3


def test_views_in_place_operations_and_shared_storages_add_nothing() -> None:
    def code() -> None:
        a = torch.zeros(KIB)
        views = [a.view(32, 32), a[:10], a.view(32, 32).t(), a.expand(3, KIB), a.detach(), *a.split(100)]
        a.add_(1).mul_(2)
        views[0].relu_()
        torch.add(a, 1, out=a)
        a.data.zero_()
        torch._foreach_add_([a], 1.0)
        b = torch.empty(0)
        b.set_(a.untyped_storage(), 0, (KIB,))

    assert _once(code).peak_bytes == 4 * KIB


def test_what_existed_counts_once_it_is_used_or_dropped() -> None:
    used, dropped, idle = torch.zeros(KIB), [torch.zeros(2 * KIB)], torch.zeros(4 * KIB)

    def code() -> torch.Tensor:
        dropped.clear()
        return used + 1

    trace = _once(code)
    assert trace.start_bytes == 12 * KIB
    assert {kind: max(values) for kind, values in trace.by_kind().items()} == {
        "other": 12 * KIB,
        "temporaries": 4 * KIB,
    }
    assert trace.end_bytes == 4 * KIB
    del idle


def _step(name: str, **options: Any) -> Callable[[], torch.Tensor]:
    torch.manual_seed(0)
    if name == "gpt":
        model, x = GPT(context=32, width=32, layers=2, heads=2), torch.randint(256, (4, 32))
    else:
        model, x = MLP((64, 256, 256, 10)), torch.randn(128, 64)
    y = torch.randint(10, (len(x),)) if name == "mlp" else x
    optimizer = torch.optim.AdamW(model.parameters(), **options)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        return loss

    step.parts = model, optimizer, x, y
    return step


def test_peak_of_a_training_step_equals_the_profilers() -> None:
    step = _step("gpt", foreach=True)
    profiled_peak(step)  # what this call leaves behind, the profiler knows when the next call releases it
    peaks: list[int] = []
    trace = _once(lambda: peaks.append(profiled_peak(step)))
    more = peaks[0] - trace.extra_peak_bytes
    # Kernels of foreach make small tensors of their scalars for themselves.
    assert 0 <= more <= 64
    assert trace.extra_peak_bytes > 64 * KIB


def test_kinds_of_a_training_step() -> None:
    step = _step("mlp", foreach=True)
    model, optimizer, x, y = step.parts
    trace = _once(step)
    weights = sum(4 * p.numel() for p in model.parameters())
    state = sum(4 * v.numel() for s in optimizer.state.values() for v in s.values())
    kinds = trace.by_kind()
    assert set(kinds["weights"]) == {weights}
    assert set(kinds["other"]) == {x.untyped_storage().nbytes() + y.untyped_storage().nbytes()}
    # Gradients and the state come in the first step, and stay.
    assert (kinds["gradients"][0], max(kinds["gradients"]), kinds["gradients"][-1]) == (0, weights, weights)
    assert (kinds["optimizer state"][0], kinds["optimizer state"][-1]) == (0, state)
    assert kinds["activations"][0] == kinds["activations"][-1] == 0
    phases = {phase.name: phase for phase in trace.phases}
    assert list(phases) == ["forward", "backward", "optimizer step"]
    step_starts = phases["optimizer step"].first
    assert kinds["optimizer state"][step_starts - 1] == 0
    # Hidden layers before and after ReLU, 128 x 256 floats each; ReLU keeps its result only.
    kept = kinds["activations"][phases["backward"].first]
    assert kept >= 2 * 128 * 256 * 4
    second = _once(step)
    assert second.by_kind()["optimizer state"][0] == state
    assert second.by_kind()["gradients"][0] == weights
    assert min(second.by_kind()["gradients"]) == 0  # zero_grad comes first


def test_lines_and_modules() -> None:
    step = _step("gpt", foreach=True)
    trace = _once(step)
    gelus = [block for block in trace.blocks if block.op == "gelu"]
    assert {block.module for block in gelus} == {"GPT.blocks.0.mlp.1", "GPT.blocks.1.mlp.1"}
    assert all(block.line.startswith("course_utils/materials/models.py:") for block in gelus)
    back = [block for block in trace.blocks if block.op == "gelu_backward"]
    assert {block.module for block in back} == {block.module for block in gelus}
    assert {block.line for block in back} == {f"{block.line}, backward" for block in gelus}
    state = [block for block in trace.blocks if block.kind == "optimizer state" and block.size_bytes > 4]
    weights = {block.module for block in trace.blocks if block.kind == "weights"}
    assert {block.module for block in state} == weights


def test_no_path_of_this_machine_is_in_a_trace(tmp_path: Path) -> None:
    def lines(file: str) -> set[str]:
        names: dict[str, Any] = {}
        exec(compile("import torch\ndef run():\n    return torch.ones(8)\n", file, "exec"), names)
        return {block.line for block in _once(names["run"]).blocks}

    file = str(tmp_path / "elsewhere" / "somebodys_code.py")
    assert lines(file) == {"somebodys_code.py:3 run"}
    assert lines("/tmp/ipykernel_123/456.py") == {"cell:3 run"}


def test_a_call_that_fails_leaves_its_trace_and_nothing_else() -> None:
    def code() -> None:
        kept = _kib(64)
        torch.ones(2) @ torch.ones(3)
        del kept

    with pytest.raises(MemoryTraceError, match=r"'broken' failed: RuntimeError.*`trace` attribute") as caught:
        trace_memory(code, "broken", device="cpu")
    trace = caught.value.trace
    assert trace.peak_bytes >= 64 * KIB
    assert _get_current_dispatch_mode() is None


def test_tracing_changes_no_result() -> None:
    plain, traced = _step("gpt", fused=True), _step("gpt", fused=True)
    losses = [plain() for _ in range(3)]
    seen: list[torch.Tensor] = []
    for _ in range(3):
        _once(lambda: seen.append(traced().detach()))
    assert [loss.item() for loss in losses] == [loss.item() for loss in seen]
