"""Peak memory and running out of it, held against the allocator's own statistics."""

from __future__ import annotations

import gc

import pytest
import torch

from course_utils.measure.compare import CaseError, compare, measure
from course_utils.measure.devices import CudaDevice
from course_utils.memory.live_storages import levels_of

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


def test_levels_of_a_call_are_the_allocators() -> None:
    kept: list[torch.Tensor] = []
    levels = levels_of(lambda: kept.append(_known_pattern()))
    assert (levels.end_bytes - levels.start_bytes, levels.extra_peak_bytes) == (4 * MIB, 30 * MIB)


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
