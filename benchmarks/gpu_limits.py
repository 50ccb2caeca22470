"""What a GPU can do at best, asked of others than the course: NVML for its link, cuBLAS itself for its matrix product.

    python -m benchmarks.gpu_limits --output limits.json

The course's own ceilings are measured as lessons measure them. Here they are held against sources that share nothing
with them: the PCIe link as NVML reports it, ``cublasGemmEx`` called without any of torch's code, and other timers
(``triton.testing.do_bench``, ``torch.utils.benchmark``).

On a CPU the same runs smaller, with NumPy's matrix product in the place of cuBLAS, so that all of it can be tried.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from course_utils.measure.ceilings import ceilings
from course_utils.measure.devices import device_under_test
from course_utils.measure.machine import course_size, device_kind
from course_utils.records.kinds.ceilings import Ceilings
from course_utils.records.store import write_json

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


@contextlib.contextmanager
def _numpy_product() -> Iterator[Product]:
    """The CPU's stand-in: NumPy brings a BLAS of its own."""
    import numpy as np

    yield lambda a, b, c: np.matmul(a.numpy(), b.numpy(), out=c.numpy())


def best_by_events(fn: Callable[[], Any], samples: int = 40) -> float:
    """Seconds of the quickest of many calls: by events on a GPU, by the host clock on a CPU."""
    device = device_under_test()
    taken = [device.sample(fn, 1, "warm") for _ in range(samples)]
    return min(sample.elapsed_s if sample.device_s is None else sample.device_s for sample in taken)


def best_by_do_bench(fn: Callable[[], Any]) -> float:
    """Seconds of the quickest call by ``triton.testing.do_bench``.

    Raises:
        Unavailable: without Triton or a GPU.
    """
    if device_kind() != "cuda":
        raise Unavailable("triton.testing.do_bench needs a GPU")
    try:
        from triton.testing import do_bench
    except ImportError as error:
        raise Unavailable("Triton is not installed") from error
    return do_bench(fn, warmup=50, rep=300, return_mode="min") / 1e3


def best_by_timer(fn: Callable[[], Any]) -> float:
    """Seconds of the quickest block by ``torch.utils.benchmark.Timer``."""
    from torch.utils.benchmark import Timer

    return min(Timer("fn()", globals={"fn": fn}, num_threads=torch.get_num_threads()).blocked_autorange().times)


TIMERS = {
    "events": best_by_events,
    "do_bench": best_by_do_bench,
    "torch.utils.benchmark": best_by_timer,
}


def product_rates(found: Ceilings) -> dict[str, Any]:
    """Rates of one matrix product by several routes and timers, in FLOP/s, beside the course's ceiling.

    The dtype is bf16 on a GPU. On a CPU it is fp32, which NumPy knows.

    Args:
        found: the machine's ceilings; the product is of the size that they were measured at.

    Returns:
        ``dtype``, ``n``, ``ceiling``, ``routes`` (rate by route and timer), ``error`` (of the direct product, relative
        to torch's) and ``missing`` (what could not be measured, and why).
    """
    on_gpu = device_kind() == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    n = found.parameters["matmul_n"]
    a, b = (torch.randn(n, n, device="cuda" if on_gpu else "cpu").to(dtype) for _ in range(2))
    mine, other = torch.empty_like(a), torch.empty_like(a)
    dtype_name = str(dtype).removeprefix("torch.")
    result: dict[str, Any] = {
        "dtype": dtype_name,
        "n": n,
        "ceiling": found[f"matmul {dtype_name}"].value,
        "routes": {},
        "missing": {},
    }

    def rates(route: str, fn: Callable[[], Any]) -> None:
        for timer, best_s in TIMERS.items():
            try:
                result["routes"][f"{route}, {timer}"] = 2 * n**3 / best_s(fn)
            except Unavailable as reason:
                result["missing"][f"{route}, {timer}"] = str(reason)

    rates("torch.mm", lambda: torch.mm(a, b, out=mine))
    direct = "cublasGemmEx, direct" if on_gpu else "NumPy"
    try:
        with cublas_product() if on_gpu else _numpy_product() as product:
            product(a, b, other)
            torch.mm(a, b, out=mine)
            result["error"] = ((other.float() - mine.float()).norm() / mine.float().norm()).item()
            rates(direct, lambda: product(a, b, other))
    except Unavailable as reason:
        result["missing"][direct] = str(reason)
    return result


def measured() -> dict[str, Any]:
    """Everything: ceilings, link and products, as plain JSON types."""
    found = ceilings()
    try:
        link = pcie_link()
        of_link: dict[str, Any] = {"generation": link.generation, "width": link.width, "bytes_s": link.bytes_s}
    except Unavailable as reason:
        of_link = {"missing": str(reason)}
    return {
        "size": course_size(),
        "ceilings": found.to_record(),
        "link": of_link,
        "product": product_rates(found),
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure, and write a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="the JSON file")
    options = parser.parse_args(arguments)
    found = measured()
    write_json(options.output, found)
    for route, rate in found["product"]["routes"].items():
        print(f"{route}: {rate / 1e12:.3g} TFLOP/s; the ceiling is {found['product']['ceiling'] / 1e12:.3g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
