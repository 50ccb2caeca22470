"""What a GPU is held against, as far as a CPU can tell: NVML's answers, and the product by another library."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

import pytest
import torch

from benchmarks import gpu_limits
from benchmarks.gpu_limits import Unavailable, pcie_link
from course_utils.measure.machine import environment
from course_utils.records.kinds.ceilings import Ceiling, Ceilings


class NVMLError(Exception):
    """NVML's own kind of error."""


def nvml(monkeypatch: pytest.MonkeyPatch, generation: int | Exception = 5, width: int = 16) -> list[str]:
    """Put a NVML in place that answers like this; returns the calls that end it."""
    ended: list[str] = []

    def answer(_handle: object) -> int:
        if isinstance(generation, Exception):
            raise generation
        return generation

    module = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: ended.append("shutdown"),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMaxPcieLinkGeneration=answer,
        nvmlDeviceGetMaxPcieLinkWidth=lambda _handle: width,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return ended


@pytest.mark.parametrize(
    ("generation", "width", "gigabytes_s"),
    # 8, 16 and 32 GT/s on a lane, of which 128 of 130 bits are data.
    [(3, 16, 8 * 16 / 8 * 128 / 130), (4, 8, 16 * 8 / 8 * 128 / 130), (5, 16, 32 * 16 / 8 * 128 / 130)],
)
def test_the_link_carries_what_its_generation_and_width_say(
    monkeypatch: pytest.MonkeyPatch, generation: int, width: int, gigabytes_s: float
) -> None:
    ended = nvml(monkeypatch, generation, width)
    assert pcie_link().bytes_s == pytest.approx(gigabytes_s * 1e9, rel=1e-3)
    assert ended == ["shutdown"]


@pytest.mark.parametrize(
    ("generation", "width", "said"),
    [
        (NVMLError("Not Supported"), 16, "does not tell the PCIe link: Not Supported"),
        (0, 0, "a link that does not exist"),
    ],
)
def test_a_virtual_machine_that_hides_its_link_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, generation: int | Exception, width: int, said: str
) -> None:
    ended = nvml(monkeypatch, generation, width)
    with pytest.raises(Unavailable, match=said):
        pcie_link()
    assert ended == ["shutdown"]


def small_ceilings() -> Ceilings:
    return Ceilings(
        (Ceiling("matmul float32", "FLOP/s", 2.0 * 64**3, (1e-3,)),), environment(), parameters={"matmul_n": 64}
    )


needs_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has this on a GPU")


@needs_cpu
def test_the_product_is_found_by_another_library_and_by_every_timer_there_is() -> None:
    found = gpu_limits.product_rates(small_ceilings())
    assert found["ceiling"] == 2.0 * 64**3 / 1e-3
    assert set(found["routes"]) == {
        f"{route}, {timer}" for route in ("torch.mm", "NumPy") for timer in ("events", "torch.utils.benchmark")
    }
    assert all("GPU" in found["missing"][f"{route}, do_bench"] for route in ("torch.mm", "NumPy"))
    assert found["error"] < 1e-5


@needs_cpu
def test_a_library_that_computes_something_else_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def __enter__(self) -> Callable[..., None]:
            return lambda a, b, c: c.copy_(a.t() @ b)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(gpu_limits, "_numpy_product", Wrong)
    assert gpu_limits.product_rates(small_ceilings())["error"] > 0.1
