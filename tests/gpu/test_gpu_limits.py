"""Ceilings, copies and the environment of a real GPU, checked against sources other than themselves."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from course_utils.devices import CudaDevice
from course_utils.machine import environment
from course_utils.results import Ceilings
from course_utils.timing import compare

# GB/s of one lane in one direction, by PCIe generation, coding included.
_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


def _link_bytes_s() -> float:
    """What the PCIe link can carry in one direction, as NVML reports its generation and width."""
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        # The most that card and slot can do together: an idle card has its link turned down.
        generation = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        width = pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    except pynvml.NVMLError as error:
        pytest.skip(f"NVML does not tell the PCIe link: {error}")
    return _LANE_GB_S[generation] * width * 1e9


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


def _cublas() -> ctypes.CDLL:
    """The cuBLAS that torch has loaded."""
    if torch.version.hip is not None or not Path("/proc/self/maps").exists():
        pytest.skip("needs cuBLAS on Linux")
    torch.mm(torch.ones(8, 8, device="cuda"), torch.ones(8, 8, device="cuda"))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    found = re.search(r"(/\S*libcublas\.so[.\d]*)$", maps, re.MULTILINE)
    if found is None:
        pytest.skip("torch is linked to cuBLAS in a way that cannot be called from here")
    return ctypes.CDLL(found[1])


@pytest.fixture
def bf16_product() -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """``c = a @ b`` in bf16 by a direct call of cublasGemmEx: none of torch's code takes part.

    Source:
        https://docs.nvidia.com/cuda/cublas/#cublasgemmex and the enumerations in library_types.h, cublas_api.h.
    """
    library = _cublas()
    handle = ctypes.c_void_p()
    assert library.cublasCreate_v2(ctypes.byref(handle)) == 0
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    assert library.cublasSetStream_v2(handle, stream) == 0
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    no_transpose, bf16, compute_32f, default_algorithm = 0, 14, 68, -1

    def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        n = a.shape[0]
        pointer = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, c)]
        # cuBLAS counts by columns: its product of b and a is ours of a and b.
        status = library.cublasGemmEx(
            handle,
            *(no_transpose, no_transpose, n, n, n),
            ctypes.byref(one),
            *(pointer[1], bf16, n),
            *(pointer[0], bf16, n),
            ctypes.byref(zero),
            *(pointer[2], bf16, n),
            *(compute_32f, default_algorithm),
        )
        assert status == 0, f"cuBLAS status {status}"

    yield product
    torch.cuda.synchronize()
    library.cublasDestroy_v2(handle)


def test_bf16_ceiling_against_a_direct_cublas_call(
    full_ceilings: Ceilings, bf16_product: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
) -> None:
    if torch.cuda.get_device_capability(0) < (8, 0):
        pytest.skip("no bf16 arithmetic before compute capability 8.0")
    n = full_ceilings.parameters["matmul_n"]
    a, b = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(2))
    c = torch.empty_like(a)
    bf16_product(a, b, c)
    torch.testing.assert_close(c, a @ b, rtol=2e-2, atol=1.0)
    best_s = float("inf")
    for _ in range(40):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        bf16_product(a, b, c)
        last.record()
        torch.cuda.synchronize()
        best_s = min(best_s, first.elapsed_time(last) / 1e3)
    independent = 2 * n**3 / best_s
    assert 0.85 * independent < full_ceilings["matmul bfloat16"].value < 1.15 * independent


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
