"""Ceilings and the environment of a real GPU."""

from __future__ import annotations

import re

import torch

from course_utils.measure.devices import CudaDevice
from course_utils.measure.machine import environment
from course_utils.results.ceilings import Ceilings


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


def test_ceilings_are_in_order_and_leave_the_switches_alone(full_ceilings: Ceilings) -> None:
    assert full_ceilings["copy"].value > 2 * full_ceilings["host to device"].value
    exact = full_ceilings["matmul float32"].value
    assert full_ceilings["matmul tfloat32"].value > 0.95 * exact
    assert full_ceilings["matmul float16"].value > 0.95 * exact
    assert 1e-7 < full_ceilings["launch"].value < 1e-3
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"


def test_device_copy_ceiling_against_another_kernel(full_ceilings: Ceilings, device: CudaDevice) -> None:
    """A pointwise kernel that reads and writes as much reaches about the copy's rate: both are bound by memory."""
    size_bytes = full_ceilings.parameters["copy_bytes"]
    x = torch.randn(size_bytes // 4, device="cuda")
    y = torch.empty_like(x)
    best_s = min(device.sample(lambda: torch.add(x, 1, out=y), 1, "warm").device_s for _ in range(30))
    assert 0.7 < 2 * size_bytes / best_s / full_ceilings["copy"].value < 1.3
