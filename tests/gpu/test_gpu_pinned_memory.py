"""What `pinned_memory` warns of, on a real GPU: what is read, changed or freed too early."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest
import torch

from course_utils.measure.devices import CudaDevice

MIB = 2**20
# Long beside everything that Python does in between.
LONG_S = 50e-3


@pytest.fixture
def spin(device: CudaDevice) -> Callable[[float], None]:
    """A kernel that does nothing for so many seconds."""
    a = torch.randn(2048, 2048, device="cuda")
    begun = time.perf_counter()
    while time.perf_counter() - begun < 0.5:  # an idle GPU's clock is slow, and the kernel below counts its ticks
        torch.mm(a, a)
        torch.cuda.synchronize()
    device._spin_cycles(1e-3)
    return lambda seconds: torch.cuda._sleep(device._spin_cycles(seconds))


def test_a_result_read_at_once_is_the_old_one(spin: Callable[[float], None]) -> None:
    ones = torch.ones(MIB, device="cuda")
    came_back = torch.zeros(MIB, pin_memory=True)
    torch.cuda.synchronize()
    spin(LONG_S)
    came_back.copy_(ones, non_blocking=True)
    assert came_back.sum().item() == 0
    torch.cuda.synchronize()
    assert came_back.sum().item() == MIB


def test_a_source_that_is_changed_at_once_arrives_changed(spin: Callable[[float], None]) -> None:
    source, target = torch.ones(MIB, pin_memory=True), torch.zeros(MIB, device="cuda")
    torch.cuda.synchronize()
    spin(LONG_S)
    target.copy_(source, non_blocking=True)
    source.fill_(7)
    torch.cuda.synchronize()
    assert bool((target == 7).all())


@pytest.mark.parametrize("recorded", [True, False])
def test_record_stream_keeps_memory_from_being_given_away(spin: Callable[[float], None], recorded: bool) -> None:
    """The allocator knows only the stream that a tensor was made on."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    copies = torch.cuda.Stream()
    with torch.cuda.stream(copies):
        arrived = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda")
    place = arrived.data_ptr()
    torch.cuda.current_stream().wait_stream(copies)
    spin(LONG_S)
    arrived.add_(1)  # not before the kernel above has ended
    if recorded:
        arrived.record_stream(torch.cuda.current_stream())
    del arrived
    with torch.cuda.stream(copies):
        following = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert (following.data_ptr() != place) is recorded
    torch.cuda.synchronize()
