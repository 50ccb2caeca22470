"""Ceilings and the environment of a real GPU."""

from __future__ import annotations

import re

import torch

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
