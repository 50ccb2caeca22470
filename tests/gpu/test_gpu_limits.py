"""Ceilings, copies and the environment of a real GPU, checked against sources other than themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

from benchmarks.gpu_limits import (
    Product,
    Unavailable,
    best_by_do_bench,
    best_by_events,
    cublas_product,
    pcie_link,
)
from course_utils.measure.compare import compare
from course_utils.measure.devices import CudaDevice
from course_utils.measure.machine import environment
from course_utils.records.kinds.ceilings import Ceilings


def _link_bytes_s() -> float:
    """What the PCIe link can carry in one direction, as NVML reports its generation and width."""
    try:
        return pcie_link().bytes_s
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_environment_describes_the_gpu() -> None:
    shown = environment()
    properties = torch.cuda.get_device_properties(0)
    assert shown.device_kind == "cuda"
    assert shown.device_name == properties.name
    assert shown.gpu_memory_bytes == properties.total_memory > 2**30
    assert shown.compute_capability == "{}.{}".format(*torch.cuda.get_device_capability(0))
    assert shown.gpu_count == torch.cuda.device_count()
    assert shown.size == "full"
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", shown.machine)
    if torch.version.hip is None:
        assert shown.cuda == torch.version.cuda
        assert re.fullmatch(r"\d+\.\d+(\.\d+)?", shown.driver)


@pytest.mark.parametrize("direction", ["host to device", "device to host"])
def test_copy_ceilings_fit_the_link(full_ceilings: Ceilings, direction: str) -> None:
    link = _link_bytes_s()
    assert 0.3 * link < full_ceilings[direction].value <= 1.02 * link


def test_device_copy_is_faster_than_the_link(full_ceilings: Ceilings) -> None:
    assert full_ceilings["copy"].value > 2 * full_ceilings["host to device"].value


def test_reduced_precision_is_not_slower(full_ceilings: Ceilings) -> None:
    exact = full_ceilings["matmul float32"].value
    assert full_ceilings["matmul tfloat32"].value > 0.95 * exact
    assert full_ceilings["matmul float16"].value > 0.95 * exact


def test_launch_ceiling_is_microseconds(full_ceilings: Ceilings) -> None:
    assert 1e-7 < full_ceilings["launch"].value < 1e-3


def test_ceilings_leave_the_switches_alone(full_ceilings: Ceilings) -> None:
    assert full_ceilings.entries
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"


@pytest.fixture
def bf16_product() -> Iterator[Product]:
    """``c = a @ b`` in bf16 by a direct call of cuBLAS: none of torch's code takes part."""
    try:
        with cublas_product() as product:
            yield product
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_bf16_ceiling_against_a_direct_cublas_call(full_ceilings: Ceilings, bf16_product: Product) -> None:
    if torch.cuda.get_device_capability(0) < (8, 0):
        pytest.skip("no bf16 arithmetic before compute capability 8.0")
    n = full_ceilings.parameters["matmul_n"]
    a, b = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(2))
    c = torch.empty_like(a)
    bf16_product(a, b, c)
    torch.testing.assert_close(c, a @ b, rtol=2e-2, atol=1.0)
    independent = 2 * n**3 / best_by_events(lambda: bf16_product(a, b, c))
    assert 0.85 * independent < full_ceilings["matmul bfloat16"].value < 1.15 * independent


def test_another_timer_finds_the_same_product(full_ceilings: Ceilings) -> None:
    """Triton's timer empties the cache before each call and has events of its own."""
    n = full_ceilings.parameters["matmul_n"]
    a, b = (torch.randn(n, n, device="cuda").half() for _ in range(2))
    out = torch.empty_like(a)
    try:
        rate = 2 * n**3 / best_by_do_bench(lambda: torch.mm(a, b, out=out))
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert 0.85 * rate < full_ceilings["matmul float16"].value < 1.15 * rate


@pytest.mark.parametrize("direction", ["host to device", "device to host"])
def test_pinned_copies_reach_the_link(full_ceilings: Ceilings, direction: str) -> None:
    assert full_ceilings[direction].value >= 0.85 * _link_bytes_s()


def test_device_copy_ceiling_against_another_kernel(full_ceilings: Ceilings, device: CudaDevice) -> None:
    """A pointwise kernel that reads and writes as much reaches about the copy's rate: both are bound by memory."""
    size_bytes = full_ceilings.parameters["copy_bytes"]
    x = torch.randn(size_bytes // 4, device="cuda")
    y = torch.empty_like(x)
    best_s = min(device.sample(lambda: torch.add(x, 1, out=y), 1, "warm").device_s for _ in range(30))
    assert 0.7 < 2 * size_bytes / best_s / full_ceilings["copy"].value < 1.3


def test_pinned_copy_is_not_slower() -> None:
    pageable = torch.randn(2**24)
    pinned = pageable.pin_memory()
    assert pinned.is_pinned()
    target = torch.empty(2**24, device="cuda")
    case = compare(
        {
            "pageable": lambda: target.copy_(pageable),
            "pinned": lambda: target.copy_(pinned, non_blocking=True),
        },
        bytes=pageable.nbytes,
        memory=False,
    )["pinned"]
    assert case.verdict != "SLOWER", case
    assert case.decision_interval.low <= 1, case
