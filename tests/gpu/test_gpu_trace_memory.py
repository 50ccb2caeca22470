"""Memory traces on a real GPU: held against the allocator's own statistics."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch.nn import functional

from course_utils.materials.models import GPT
from course_utils.memory.trace import MemoryTraceError, trace_memory

MIB = 2**20


def _bytes(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device="cuda")


def _step(**options: bool):
    torch.manual_seed(0)
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    x = torch.randint(256, (16, 256), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x).flatten(0, -2), x.flatten()).backward()
        optimizer.step()

    step.parts = model, optimizer
    return step


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False}], ids=str)
def test_peak_equals_max_memory_allocated(options: dict[str, bool]) -> None:
    step = _step(**options)
    for _ in range(2):  # the first step makes the optimizer's state, the second finds it
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        trace = trace_memory(step)
        assert trace.start_bytes == before
        assert trace.end_bytes == torch.cuda.memory_allocated()
        assert trace.peak_bytes == torch.cuda.max_memory_allocated()
        assert trace.peak_reserved_bytes == torch.cuda.max_memory_reserved()
        assert trace.scratch_bytes == 0
        assert trace.device_allocs > 0
        assert trace.reserved_bytes[-1] == torch.cuda.memory_reserved()


def test_kinds_and_modules_follow_into_autograds_threads() -> None:
    step = _step(fused=True)
    model, optimizer = step.parts
    trace = trace_memory(step)
    rounded = sum(-(-4 * p.numel() // 512) * 512 for p in model.parameters())
    kinds = trace.by_kind()
    assert min(kinds["weights"]) == max(kinds["weights"]) >= rounded
    assert max(kinds["gradients"]) >= rounded
    assert kinds["optimizer state"][0] == 0
    assert kinds["optimizer state"][-1] >= 2 * rounded
    assert [phase.name for phase in trace.phases] == ["forward", "backward", "optimizer step"]
    back = [block for block in trace.blocks if block.line.endswith(", backward")]
    assert {f"GPT.blocks.{i}.mlp.1" for i in range(4)} <= {block.module for block in back}
    assert threading.active_count() >= 1
    del optimizer


def test_a_failing_step_leaves_a_trace_and_no_recording() -> None:
    total = torch.cuda.get_device_properties(0).total_memory

    def greedy() -> None:
        kept = _bytes(64 * MIB)
        _bytes(2 * total)
        del kept

    with pytest.raises(MemoryTraceError, match="OutOfMemoryError") as caught:
        trace_memory(greedy)
    assert caught.value.trace.extra_peak_bytes >= 64 * MIB
    assert not torch._C._cuda_isHistoryEnabled()
