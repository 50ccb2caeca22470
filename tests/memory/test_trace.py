"""Traces of memory on a CPU: every byte against arithmetic and the profiler, and each kind of tensor in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import optimizer as optimizer_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

from course_utils import fresh
from course_utils.materials.models import GPT, MLP, LSTMLanguageModel
from course_utils.measure.devices import profiled_peak
from course_utils.memory.trace import MemoryTraceError, trace_memory
from course_utils.results.memory_trace import MemoryTrace

KIB = 1024


def _kib(count: float) -> torch.Tensor:
    """A tensor of so many KiB that nobody has written to."""
    return torch.empty(int(count * KIB), dtype=torch.uint8)


def _once(fn: Callable[[], Any], **options: Any) -> MemoryTrace:
    return trace_memory(fn, device="cpu", **options)


def _against_the_profiler(fn: Callable[[], Any]) -> tuple[MemoryTrace, int]:
    """A trace, and how far the profiler saw the peak of the same call above it."""
    profiled_peak(fn)  # what this call leaves behind, the profiler knows when the next call releases it
    peaks: list[int] = []
    trace = _once(lambda: peaks.append(profiled_peak(fn)))
    return trace, peaks[0] - trace.extra_peak_bytes


def _peaks(trace: MemoryTrace) -> dict[str, int]:
    """The most of each kind at any moment."""
    return {kind: max(values) for kind, values in trace.by_kind().items()}


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    resize = torch.UntypedStorage.resize_
    yield
    assert _get_current_dispatch_mode() is None
    assert torch.UntypedStorage.resize_ is resize
    assert not optimizer_hooks._global_optimizer_pre_hooks
    assert not optimizer_hooks._global_optimizer_post_hooks


# Bytes


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
    assert trace.peak_moment == 2
    assert {(block.kind, block.op) for block in trace.blocks} == {("temporaries", "empty")}
    assert trace.allocations == 3
    assert list(trace.times_us) == sorted(trace.times_us)


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

    def a_view_outlives_its_tensor() -> None:
        a = torch.zeros(KIB)
        view = a[:1]
        del a
        other = _kib(1)
        del view, other

    assert _once(a_view_outlives_its_tensor).totals_bytes == (0, 4 * KIB, 5 * KIB, KIB, 0, 0)


def test_a_storage_that_changes_its_size() -> None:
    def code() -> None:
        a = torch.zeros(KIB // 4)
        a.resize_(KIB)
        a.untyped_storage().resize_(8 * KIB)
        a.resize_(0)
        torch.ones(4 * KIB, out=a)
        del a

    trace = _once(code)
    assert trace.totals_bytes[-1] == 0
    assert [block.size_bytes // KIB for block in trace.blocks] == [1, 4, 8, 16]


def test_what_numpy_holds_is_not_torchs() -> None:
    array = np.ones(KIB, dtype=np.float32)

    def code() -> torch.Tensor:
        return torch.from_numpy(array) + 1

    trace = _once(code)
    assert trace.peak_bytes == 4 * KIB
    assert any("NumPy" in note for note in trace.notes)


# What was there before


def test_what_existed_counts_once_it_is_used_or_dropped() -> None:
    used, dropped, idle = torch.zeros(KIB), [torch.zeros(2 * KIB)], torch.zeros(4 * KIB)

    def code() -> torch.Tensor:
        dropped.clear()
        return used + 1

    trace = _once(code)
    assert trace.start_bytes == 12 * KIB
    assert _peaks(trace) == {"other": 12 * KIB, "temporaries": 4 * KIB}
    assert trace.end_bytes == 4 * KIB
    del idle


def test_a_model_that_is_named_counts_though_it_is_not_used() -> None:
    model = nn.Linear(16, 16)
    model(torch.ones(1, 16)).sum().backward()
    weights = 4 * (16 * 16 + 16)
    trace = _once(lambda: None, model=model)
    assert _peaks(trace) == {"weights": weights, "gradients": weights}
    assert trace.start_bytes == trace.end_bytes == trace.peak_bytes
    assert {block.module for block in trace.blocks} == {"Linear"}


def test_what_autograd_saved_before_the_call_is_known_once_it_is_used() -> None:
    x = torch.ones(KIB, requires_grad=True)
    loss = (x.exp() * 2).sum()
    trace = _once(lambda: loss.backward())
    # What exp returned, which its backward needs, and the loss.
    assert trace.start_bytes == 4 * KIB + 4
    assert trace.by_kind()["gradients"][-1] == 4 * KIB


# Training steps


def _step(name: str, **options: Any) -> Callable[[], torch.Tensor]:
    torch.manual_seed(0)
    if name == "gpt":
        model, x = GPT(context=32, width=32, layers=2, heads=2), torch.randint(256, (4, 32))
    elif name == "gru":
        model, x = LSTMLanguageModel(width=64, cell=name), torch.randint(256, (4, 32))
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


@pytest.mark.parametrize(("name", "options"), [("gpt", {"foreach": True}), ("gpt", {"fused": True}), ("gru", {})])
def test_peak_of_a_training_step_equals_the_profilers(name: str, options: dict[str, bool]) -> None:
    trace, more = _against_the_profiler(_step(name, **options))
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


def test_activations_are_what_a_graph_holds() -> None:
    model, x = MLP((64, 256, 10)), torch.randn(32, 64)
    with torch.no_grad():
        assert "activations" not in _once(lambda: model(x)).by_kind()
    # What a graph that is returned still holds is kept for a backward pass, too.
    assert max(_once(lambda: model(x)).by_kind()["activations"]) >= 32 * 256 * 4


def test_checkpointing_lowers_the_activations() -> None:
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(6))
    x = torch.randn(256, 64, requires_grad=True)

    def code(recompute: bool) -> None:
        y = x
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=False) if recompute else block(y)
        y.square().sum().backward()

    (plain, more), (recomputed, more_state) = (
        _against_the_profiler(lambda how=how: code(how)) for how in (False, True)
    )
    # Checkpointing keeps the state of the random numbers for each block: tensors that no operation returns.
    assert (more, more_state) == (0, len(blocks) * torch.get_rng_state().numel())
    assert _peaks(recomputed)["activations"] < 0.7 * _peaks(plain)["activations"]


# Names


def test_lines_and_modules() -> None:
    step = _step("gpt", foreach=True)
    trace = _once(step)
    gelus = [block for block in trace.blocks if block.op == "gelu"]
    assert {block.module for block in gelus} == {"GPT.blocks.0.mlp.1", "GPT.blocks.1.mlp.1"}
    assert all(block.line.startswith("course_utils/materials/models.py:") for block in gelus)
    assert all(block.line.endswith(" Block.forward") for block in gelus)
    back = [block for block in trace.blocks if block.op == "gelu_backward"]
    assert {block.module for block in back} == {block.module for block in gelus}
    assert {block.line for block in back} == {f"{block.line}, backward" for block in gelus}
    losses = [block for block in trace.blocks if block.op.startswith("_log_softmax") and "backward" not in block.op]
    assert all(block.module == "" and block.line.endswith(" step") for block in losses)
    assert all("tests/memory/test_trace.py:" in block.line for block in losses)
    state = [block for block in trace.blocks if block.kind == "optimizer state" and block.size_bytes > 4]
    weights = {block.module for block in trace.blocks if block.kind == "weights"}
    assert {block.module for block in state} == weights
    stepping = [block for block in trace.blocks if block.module == "AdamW"]
    assert stepping
    assert all(block.kind == "temporaries" for block in stepping)


def test_no_path_of_this_machine_is_in_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(file: str) -> set[str]:
        names: dict[str, Any] = {}
        exec(compile("import torch\ndef run():\n    return torch.ones(8)\n", file, "exec"), names)
        return {block.line for block in _once(names["run"]).blocks}

    file = str(tmp_path / "elsewhere" / "somebodys_code.py")
    assert lines(file) == {"somebodys_code.py:3 run"}
    monkeypatch.chdir(tmp_path)
    assert lines(file) == {"elsewhere/somebodys_code.py:3 run"}
    assert lines("/tmp/ipykernel_123/456.py") == {"cell:3 run"}


# Around the call


def test_a_call_that_fails_leaves_its_trace_and_nothing_else() -> None:
    class Moody(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError(x.shape)

    moody, model = Moody(), nn.Linear(8, 8)

    def code() -> None:
        kept = _kib(64)
        with pytest.raises(ValueError, match="4, 8"):  # an error that the code handles is no failure
            moody(torch.ones(4, 8))
        model(torch.ones(4, 8))
        torch.ones(2) @ torch.ones(3)
        del kept

    with pytest.raises(MemoryTraceError, match=r"'broken' failed: RuntimeError.*`trace` attribute") as caught:
        trace_memory(code, "broken", device="cpu")
    trace = caught.value.trace
    assert trace.peak_bytes >= 64 * KIB
    assert {block.module for block in trace.blocks if block.op == "addmm"} == {"Linear"}
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert torch.ones(2).sum() == 2


def test_fresh_state_is_built_and_the_callers_switches_are_put_back() -> None:
    def factory() -> Callable[[], torch.Tensor]:
        torch.set_default_dtype(torch.float64)
        model = nn.Linear(8, 8)
        optimizer = torch.optim.Adam(model.parameters())

        def step() -> torch.Tensor:
            loss = model(torch.ones(2, 8)).sum()
            loss.backward()
            optimizer.step()
            return loss

        return step

    trace = _once(fresh(factory))
    assert torch.get_default_dtype() == torch.float32
    assert set(trace.by_kind()["weights"]) == {8 * (8 * 8 + 8)}
    assert trace.by_kind()["optimizer state"][0] == 0
    assert trace.by_kind()["optimizer state"][-1] > 0


def test_tracing_changes_no_result() -> None:
    plain, traced = _step("gpt", fused=True), _step("gpt", fused=True)
    losses = [plain() for _ in range(3)]
    seen: list[torch.Tensor] = []
    for _ in range(3):
        _once(lambda: seen.append(traced().detach()))
    assert [loss.item() for loss in losses] == [loss.item() for loss in seen]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_cuda_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="no CUDA device here: pass device='cpu'"):
        trace_memory(lambda: None, device="cuda")
    assert trace_memory(lambda: None).device == "cpu"
