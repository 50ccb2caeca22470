"""What a GPU is held against, as far as a CPU can tell: NVML's answers."""

from __future__ import annotations

import sys
import types

import pytest

from benchmarks.gpu_limits import Unavailable, pcie_link


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
    ("generation", "width", "message"),
    [
        (NVMLError("Not Supported"), 16, "does not tell the PCIe link: Not Supported"),
        (0, 0, "a link that does not exist"),
    ],
)
def test_a_virtual_machine_that_hides_its_link_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, generation: int | Exception, width: int, message: str
) -> None:
    ended = nvml(monkeypatch, generation, width)
    with pytest.raises(Unavailable, match=message):
        pcie_link()
    assert ended == ["shutdown"]
