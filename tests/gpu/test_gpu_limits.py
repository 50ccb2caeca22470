"""Ceilings, copies and the environment of a real GPU, checked against sources other than themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

from benchmarks.gpu_limits import (
    Product,
    Unavailable,
    best_by_events,
    cublas_product,
    pcie_link,
)
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


@pytest.mark.parametrize("direction", ["host to device", "device to host"])
def test_pinned_copies_reach_the_link(full_ceilings: Ceilings, direction: str) -> None:
    assert 0.85 * _link_bytes_s() <= full_ceilings[direction].value <= 1.02 * _link_bytes_s()
