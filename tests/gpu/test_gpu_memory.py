"""Peak memory, running out of it, and memory traces: held against the allocator's own statistics."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.nn import functional

from course_utils.materials.models import GPT
from course_utils.measure.compare import CaseError, compare, measure
from course_utils.measure.devices import CudaDevice
from course_utils.memory.trace import trace_memory

MIB = 2**20


def _bytes(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def _known_pattern() -> torch.Tensor:
    """30 MiB at once, then 24 MiB."""
    a = _bytes(10 * MIB)
    b = _bytes(20 * MIB)
    del a
    c = _bytes(4 * MIB)
    del b
    return c


def test_peaks_equal_the_allocators_own_statistics(device: CudaDevice) -> None:
    held = _bytes(7 * MIB)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    output = _known_pattern()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    del output
    expected = tuple(
        after[f"{kind}_bytes.all.peak"] - before[f"{kind}_bytes.all.current"] for kind in ("allocated", "reserved")
    )
    assert device.peak_memory(_known_pattern) == expected
    del held


@pytest.mark.parametrize("greedy_first", [True, False])
def test_out_of_memory_is_named_and_recovered_from(greedy_first: bool) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    gc.collect()
    before = torch.cuda.memory_allocated()
    modest, greedy = (lambda: _bytes(MIB).zero_()), (lambda: _bytes(2 * total).zero_())
    cases = {"greedy": greedy, "modest": modest} if greedy_first else {"modest": modest, "greedy": greedy}
    with pytest.raises(CaseError, match=r"'greedy' failed in .*OutOfMemoryError.*Make the problem smaller"):
        compare(cases, budget_s=0.3)
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    assert measure(modest, budget_s=0.2).median_s > 0


def _step(**options: bool):
    torch.manual_seed(0)
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    x = torch.randint(256, (16, 256), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x).flatten(0, -2), x.flatten()).backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}], ids=str)
def test_a_traces_peak_equals_max_memory_allocated(options: dict[str, bool]) -> None:
    step = _step(**options)
    for _ in range(2):  # the first step makes the optimizer's state, the second finds it
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        trace = trace_memory(step, overhead=False)
        assert trace.start_bytes == before
        assert trace.end_bytes == torch.cuda.memory_allocated()
        assert trace.peak_bytes == torch.cuda.max_memory_allocated()
        assert trace.peak_reserved_bytes == torch.cuda.max_memory_reserved()
        assert trace.scratch_bytes == 0
        assert trace.device_allocs > 0
        assert trace.reserved_bytes[-1] == torch.cuda.memory_reserved()
