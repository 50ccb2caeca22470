"""Traces of memory on a CPU: every byte against arithmetic and the profiler, and each kind of tensor in its place."""

from __future__ import annotations

import gc
import re
import threading
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
from course_utils.memory.trace import TraceError, trace_memory
from course_utils.results.memory_trace import MemoryTrace

KIB = 1024
CPU = torch.device("cpu")


def _kib(count: float) -> torch.Tensor:
    """A tensor of so many KiB that nobody has written to."""
    return torch.empty(int(count * KIB), dtype=torch.uint8)


def _once(fn: Callable[[], Any], **options: Any) -> MemoryTrace:
    """Trace the first call only."""
    return trace_memory(fn, device="cpu", verify=False, overhead=False, **options)


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


@pytest.mark.parametrize("how", ["tensor", "storage", "out"])
def test_a_storage_that_changes_its_size(how: str) -> None:
    def code() -> None:
        a = torch.zeros(KIB // 4)
        if how == "tensor":
            a.resize_(KIB)
        elif how == "storage":
            a.untyped_storage().resize_(4 * KIB)
        else:
            a.resize_(0)
            torch.ones(KIB, out=a)
        del a

    trace = _once(code)
    assert trace.totals_bytes[-1] == 0
    assert max(block.size_bytes for block in trace.blocks) == 4 * KIB


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


def _step(name: str, set_to_none_first: bool = True, **options: Any) -> Callable[[], torch.Tensor]:
    torch.manual_seed(0)
    if name == "gpt":
        model, x = GPT(width=64, layers=2), torch.randint(256, (4, 64))
    elif name == "gru":
        model, x = LSTMLanguageModel(width=64, cell=name), torch.randint(256, (4, 32))
    else:
        model, x = MLP((64, 256, 256, 10)), torch.randn(128, 64)
    y = torch.randint(10, (len(x),)) if name == "mlp" else x
    optimizer = torch.optim.AdamW(model.parameters(), **options)

    def step() -> torch.Tensor:
        if set_to_none_first:
            optimizer.zero_grad()
        loss = functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        if not set_to_none_first:
            optimizer.zero_grad()
        return loss

    step.parts = model, optimizer, x, y
    return step


@pytest.mark.parametrize(
    ("name", "options"),
    [("gpt", {"foreach": True}), ("gpt", {"fused": True}), ("gru", {"foreach": True}), ("gru", {"foreach": False})],
)
def test_peak_of_a_training_step_equals_the_profilers(name: str, options: dict[str, bool]) -> None:
    trace = trace_memory(_step(name, name == "gpt", **options), name, device="cpu", overhead=False)
    assert trace.meter == "torch's profiler"
    # Kernels of foreach make small tensors of their scalars for themselves.
    assert 0 <= trace.scratch_bytes <= 64
    assert trace.meter_bytes > 64 * KIB


def test_a_peak_that_tracing_changes_is_noted() -> None:
    weight = torch.randn(256, 256, requires_grad=True)

    def code(uses: int) -> None:
        weight.grad = None
        y = torch.ones(1, 256)
        for _ in range(uses):
            y = torch.tanh(y @ weight)
        y.sum().backward()

    notes = {uses: trace_memory(lambda uses=uses: code(uses), device="cpu", overhead=False).notes for uses in (1, 4)}
    assert notes[1] == ()
    (note,) = notes[4]
    # One gradient is there at the start, and goes. Two are added up; under a trace the sum is a third one.
    assert re.search(r"2\d\d KiB above the start in a plain call, and 5\d\d KiB in a traced one", note), note


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


def test_a_model_and_an_optimizer_that_are_made_inside() -> None:
    def code() -> None:
        model = MLP((16, 32, 4))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(8, 16)).sum().backward()
        optimizer.step()

    trace = _once(code)
    size = 4 * (16 * 32 + 32 + 32 * 4 + 4)
    peaks = _peaks(trace)
    assert (peaks["weights"], peaks["gradients"]) == (size, size)
    assert peaks["optimizer state"] == 2 * size + 4 * 4
    gc.collect()
    assert trace.start_bytes == 0


def test_activations_are_what_a_graph_holds() -> None:
    model, x = MLP((64, 256, 10)), torch.randn(32, 64)
    with torch.no_grad():
        assert "activations" not in _once(lambda: model(x)).by_kind()
    # What a graph that is returned still holds is kept for a backward pass, too.
    assert max(_once(lambda: model(x)).by_kind()["activations"]) >= 32 * 256 * 4


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_lowers_the_activations(reentrant: bool) -> None:
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(6))
    x = torch.randn(256, 64, requires_grad=True)

    def plain() -> None:
        y = x
        for block in blocks:
            y = block(y)
        y.square().sum().backward()

    def recomputed() -> None:
        y = x
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=reentrant)
        y.square().sum().backward()

    traces = [trace_memory(code, device="cpu", overhead=False) for code in (plain, recomputed)]
    # Checkpointing keeps the state of the random numbers for each block: tensors that no operation returns.
    state = torch.get_rng_state().numel()
    assert [trace.scratch_bytes for trace in traces] == [0, len(blocks) * state]
    kept, kept_less = (max(trace.by_kind()["activations"]) for trace in traces)
    assert kept_less < 0.7 * kept


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
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "elsewhere" / "somebodys_code.py"
    file.write_text("import torch\ndef run():\n    return torch.ones(8)\n", encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
    assert {block.line for block in _once(names["run"]).blocks} == {"somebodys_code.py:3 run"}
    monkeypatch.chdir(tmp_path)
    assert {block.line for block in _once(names["run"]).blocks} == {"elsewhere/somebodys_code.py:3 run"}
    cell: dict[str, Any] = {}
    exec(compile("import torch\ndef run():\n    return torch.ones(8)\n", "/tmp/ipykernel_123/456.py", "exec"), cell)
    assert {block.line for block in _once(cell["run"]).blocks} == {"cell:3 run"}


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

    with pytest.raises(TraceError, match=r"'broken' failed: RuntimeError.*`trace` attribute") as caught:
        trace_memory(code, "broken", device="cpu")
    trace = caught.value.trace
    assert trace.peak_bytes >= 64 * KIB
    assert {block.module for block in trace.blocks if block.op == "addmm"} == {"Linear"}
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert torch.ones(2).sum() == 2


def test_ctrl_c_takes_everything_down() -> None:
    def code() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trace_memory(code, device="cpu")


def test_another_thread_is_told_that_a_trace_is_running() -> None:
    inside, done = threading.Event(), threading.Event()
    traces: list[MemoryTrace] = []

    def code() -> torch.Tensor:
        inside.set()
        assert done.wait(60)
        return _kib(8)

    thread = threading.Thread(target=lambda: traces.append(_once(code)))
    thread.start()
    try:
        assert inside.wait(60)
        with pytest.raises(RuntimeError, match="a trace of memory is running"):
            _once(lambda: _kib(1))
    finally:
        done.set()
        thread.join()
    assert traces[0].peak_bytes == 8 * KIB
    assert _once(lambda: _kib(1)).peak_bytes == KIB


def test_the_first_call_is_shown_and_fresh_state_is_built_for_the_others() -> None:
    calls: list[int] = []
    built: list[int] = []

    def factory() -> Callable[[], torch.Tensor]:
        built.append(0)
        model = nn.Linear(8, 8)
        optimizer = torch.optim.Adam(model.parameters())

        def step() -> torch.Tensor:
            calls.append(1)
            loss = model(torch.ones(2, 8)).sum()
            loss.backward()
            optimizer.step()
            return loss

        return step

    torch.manual_seed(0)
    factory()
    expected = torch.get_rng_state()
    built.clear()
    calls.clear()
    torch.manual_seed(0)
    trace = trace_memory(fresh(factory), device="cpu")
    assert torch.equal(torch.get_rng_state(), expected)  # the factory drew the weights, as if once
    assert len(built) == 3  # traced, verified, timed
    assert trace.by_kind()["optimizer state"][0] == 0
    assert trace.by_kind()["optimizer state"][-1] > 0
    assert len(trace.plain_s) == len(trace.traced_s) >= 3
    assert trace.overhead > 0
    assert len(calls) > 5


def test_tracing_changes_no_result() -> None:
    plain, traced = _step("gpt", fused=True), _step("gpt", fused=True)
    losses = [plain() for _ in range(3)]
    seen: list[torch.Tensor] = []
    for _ in range(3):
        _once(lambda: seen.append(traced().detach()))
    assert [loss.item() for loss in losses] == [loss.item() for loss in seen]


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fn": torch.ones(3)}, "takes a function without arguments, got Tensor"),
        ({"device": "meta"}, "'cpu' or 'cuda', got 'meta'"),
    ],
)
def test_bad_input_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trace_memory(**{"fn": lambda: None, "device": "cpu", **arguments})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_cuda_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="no CUDA device here: pass device='cpu'"):
        trace_memory(lambda: None, device="cuda")
    assert trace_memory(lambda: None, verify=False, overhead=False).device == "cpu"
