"""What `pinned_memory` says of a real GPU: who waits for a copy, what overlaps, and what is read or freed too early."""

from __future__ import annotations

import gc
import statistics
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


def _host(pinned: bool, size_bytes: int = 256 * MIB) -> torch.Tensor:
    return torch.ones(size_bytes // 4, pin_memory=pinned)


def _median(device: CudaDevice, fn: Callable[[], object], what: str) -> float:
    for _ in range(3):
        device.sample(fn, 1, "warm")
    return statistics.median(getattr(device.sample(fn, 1, "warm"), what) for _ in range(15))


def test_only_a_pinned_copy_lets_python_go_on(device: CudaDevice) -> None:
    target = torch.empty(256 * MIB // 4, device="cuda")
    waited = {}
    for pinned in (True, False):
        source = _host(pinned)
        copy = lambda source=source: target.copy_(source, non_blocking=True)  # noqa: E731
        waited[pinned] = _median(device, copy, "enqueue_s") / _median(device, copy, "elapsed_s")
    assert waited[True] < 0.2
    assert waited[False] > 0.5


@pytest.mark.parametrize(("pinned", "overlaps"), [(True, True), (False, False)], ids=["pinned", "pageable"])
def test_a_copy_and_a_kernel_overlap_if_the_memory_is_pinned(
    device: CudaDevice, spin: Callable[[float], None], pinned: bool, overlaps: bool
) -> None:
    source = _host(pinned)
    target, side = torch.empty_like(source, device="cuda"), torch.cuda.Stream()

    def copy() -> None:
        target.copy_(source, non_blocking=True)

    copy_s = _median(device, copy, "device_s")

    def on_two_streams() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copy()
        spin(copy_s)
        torch.cuda.current_stream().wait_stream(side)

    def on_one_stream() -> None:
        copy()
        spin(copy_s)

    together, apart = (_median(device, way, "device_s") for way in (on_two_streams, on_one_stream))
    assert (together < 0.75 * apart) is overlaps, (together, apart, copy_s)


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
    source, target = _host(True, 4 * MIB), torch.zeros(MIB, device="cuda")
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
