"""What a GPU can do at best, asked of others than the course: NVML for its link, cuBLAS itself for its matrix product.

The course's own ceilings are measured as lessons measure them. ``tests/gpu`` holds them against sources that share
nothing with them: the PCIe link as NVML reports it, and ``cublasGemmEx`` called without any of torch's code.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from course_utils.measure.devices import device_under_test

# GB/s of one lane in one direction, by PCIe generation, coding included.
_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


class Unavailable(Exception):  # noqa: N818 - no failure: this machine has no such thing
    """This machine cannot tell or do that. The message is one sentence."""


@dataclass(frozen=True)
class Link:
    """The PCIe link between host and GPU, as NVML reports it.

    Attributes:
        generation: of PCIe; the most that card and slot can do together, since an idle card has its link turned down.
        width: lanes.
    """

    generation: int
    width: int

    @property
    def bytes_s(self) -> float:
        """What it can carry in one direction, in bytes per second."""
        return _LANE_GB_S[self.generation] * self.width * 1e9


def pcie_link(index: int = 0) -> Link:
    """The link of one GPU.

    Args:
        index: of the GPU.

    Raises:
        Unavailable: if NVML is not there or does not tell, as in many virtual machines.
    """
    try:
        import pynvml
    except ImportError as error:
        raise Unavailable("nvidia-ml-py is not installed") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Unavailable(f"NVML does not start: {error}") from error
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        link = Link(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle), pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    except pynvml.NVMLError as error:
        raise Unavailable(f"NVML does not tell the PCIe link: {error}") from error
    finally:
        pynvml.nvmlShutdown()
    if link.generation not in _LANE_GB_S or link.width < 1:
        raise Unavailable(f"NVML reports a link that does not exist: generation {link.generation}, x{link.width}")
    return link


Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def _cublas() -> ctypes.CDLL:
    """The cuBLAS that torch has loaded.

    Raises:
        Unavailable: on AMD, outside Linux, or where torch is linked in another way.
    """
    if torch.version.hip is not None or not Path("/proc/self/maps").exists():
        raise Unavailable("a direct call of cuBLAS needs an NVIDIA GPU on Linux")
    torch.mm(torch.ones(8, 8, device="cuda"), torch.ones(8, 8, device="cuda"))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    found = re.search(r"(/\S*libcublas\.so[.\d]*)$", maps, re.MULTILINE)
    if found is None:
        raise Unavailable("torch is linked to cuBLAS in a way that cannot be called from here")
    return ctypes.CDLL(found[1])


@contextlib.contextmanager
def cublas_product() -> Iterator[Product]:
    """``c = a @ b`` of square bf16 matrices by a direct call of cublasGemmEx: none of torch's code takes part.

    Yields:
        The function of a, b and c.

    Raises:
        Unavailable: if cuBLAS cannot be called here.

    Source:
        https://docs.nvidia.com/cuda/cublas/#cublasgemmex and the enumerations in library_types.h, cublas_api.h.
    """
    library = _cublas()
    handle = ctypes.c_void_p()
    _accept(library.cublasCreate_v2(ctypes.byref(handle)))
    try:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _accept(library.cublasSetStream_v2(handle, stream))
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        no_transpose, bf16, compute_32f, default_algorithm = 0, 14, 68, -1

        def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
            n = a.shape[0]
            pointer = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, c)]
            # cuBLAS counts by columns: its product of b and a is ours of a and b.
            _accept(
                library.cublasGemmEx(
                    handle,
                    *(no_transpose, no_transpose, n, n, n),
                    ctypes.byref(one),
                    *(pointer[1], bf16, n),
                    *(pointer[0], bf16, n),
                    ctypes.byref(zero),
                    *(pointer[2], bf16, n),
                    *(compute_32f, default_algorithm),
                )
            )

        yield product
        torch.cuda.synchronize()
    finally:
        library.cublasDestroy_v2(handle)


def _accept(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"cuBLAS answered with status {status}")


def best_by_events(fn: Callable[[], Any], samples: int = 40) -> float:
    """Seconds of the quickest of many calls: by events on a GPU, by the host clock on a CPU."""
    device = device_under_test()
    taken = [device.sample(fn, 1, "warm") for _ in range(samples)]
    return min(sample.elapsed_s if sample.device_s is None else sample.device_s for sample in taken)
