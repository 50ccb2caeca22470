"""Peak memory and running out of it, on a real GPU."""

from __future__ import annotations

import gc

import pytest
import torch

from course_utils.measure.compare import CaseError, compare, measure
from course_utils.measure.devices import CudaDevice

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


def test_peak_of_a_known_pattern(device: CudaDevice) -> None:
    allocated, reserved = device.peak_memory(_known_pattern)
    assert allocated == 30 * MIB
    # How much the allocator takes for it depends on its settings (expandable segments), never less than is used.
    assert reserved >= allocated


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


def test_peak_is_on_top_of_what_was_there(device: CudaDevice) -> None:
    alone = device.peak_memory(_known_pattern)[0]
    held = _bytes(100 * MIB)
    assert device.peak_memory(_known_pattern)[0] == alone
    del held


def test_peak_does_not_profit_from_cached_blocks(device: CudaDevice) -> None:
    _bytes(200 * MIB)  # at once free, and kept in the cache
    allocated, reserved = device.peak_memory(lambda: _bytes(64 * MIB))
    assert allocated == 64 * MIB
    assert reserved >= allocated


def test_peak_of_a_training_step_holds_its_activations(device: CudaDevice) -> None:
    weight = torch.ones(16 * MIB // 4, device="cuda", requires_grad=True)

    def step() -> None:
        weight.grad = None
        weight.exp().sum().backward()

    step()
    allocated, _ = device.peak_memory(step)
    # The old gradients go first, then exp's result and the new gradients are there together.
    assert 16 * MIB <= allocated < 17 * MIB


def test_comparison_keeps_the_peaks_of_its_cases_apart() -> None:
    x = torch.randn(32 * MIB // 4, device="cuda")
    result = compare({"copy": lambda: x + 1, "in place": lambda: x.mul_(1.0)}, check=False, budget_s=0.3)
    assert result["copy"].measurement.peak_allocated_bytes == 32 * MIB
    assert result["in place"].measurement.peak_allocated_bytes == 0


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


def test_out_of_memory_halfway_leaves_nothing_behind() -> None:
    """A case that fills the GPU step by step fails with most of it in hand; all of that comes back."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    free_bytes, _ = torch.cuda.mem_get_info()

    def hoard() -> list[torch.Tensor]:
        return [_bytes(free_bytes // 4) for _ in range(6)]

    with pytest.raises(CaseError, match=r"'code' failed in its first call"):
        measure(hoard, budget_s=0.2)
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.mem_get_info()[0] > 0.9 * free_bytes
