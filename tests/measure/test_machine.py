"""What machine is this: for real, and as machines that are not here."""

from __future__ import annotations

import dataclasses
import getpass
import json
import re
import socket
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from course_utils.measure import machine
from course_utils.measure.machine import (
    GpuState,
    course_size,
    device_kind,
    environment,
    gpu_state,
    scaled,
    slowdown,
)
from course_utils.results.environment import Environment, titles
from tests.example_results import CPU, GPU

_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Pretends that this machine is another one."""
    monkeypatch.delenv("COURSE_SIZE", raising=False)

    def pretend(kind: str, size: str | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: kind == "cuda")
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: kind == "mps")
        if size is not None:
            monkeypatch.setenv("COURSE_SIZE", size)

    machine._takes_the_large_size.cache_clear()
    yield pretend
    machine._takes_the_large_size.cache_clear()


@pytest.mark.parametrize(
    ("kind", "wish", "gib", "size", "expected"),
    [
        ("cpu", None, 0, "smoke", "small"),
        ("cuda", None, 139.8, "full", "large"),
        ("cuda", "  Smoke ", 139.8, "smoke", "small"),
        ("cuda", None, 5.8, "full", "small"),
    ],
)
def test_size_by_machine_and_wish(on, monkeypatch, kind: str, wish: str | None, gib: float, size: str, expected: str):
    on(kind, wish)
    properties = types.SimpleNamespace(total_memory=int(gib * 2**30), major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert (device_kind(), course_size()) == (kind, size)
    assert scaled(cpu="small", cuda="large") == expected


def test_a_size_that_is_none_is_one_clear_message(on):
    on("cuda", "huge")
    with pytest.raises(ValueError, match=r"COURSE_SIZE='huge'.*set it to 'smoke' or 'full', or unset it"):
        scaled(cpu=1, cuda=2)


def test_environment_of_this_machine_holds_no_host_name_user_or_path() -> None:
    here = environment()
    assert _SLUG.fullmatch(here.machine)
    assert here.device_kind == device_kind()
    assert here.memory_bytes > 2**28
    assert (here.torch, here.torch_threads) == (torch.__version__, torch.get_num_threads())
    text = json.dumps(here.to_record())
    for name in (socket.gethostname(), getpass.getuser()):
        if name not in ("root", "localhost"):
            assert not re.search(rf"\b{re.escape(name)}\b", text)
    assert str(Path.home()) not in text
    assert str(Path.cwd()) not in text
    assert not re.search(r'"(/|[A-Za-z]:\\)', text)


@pytest.mark.parametrize(
    ("start", "changes", "same"),
    [
        # The system keeps more memory after the next start, and another driver some of the GPU's.
        (CPU, {"memory_bytes": CPU.memory_bytes - 90 * 2**20, "torch": "2.14.0", "torch_threads": 1}, True),
        (GPU, {"gpu_memory_bytes": GPU.gpu_memory_bytes - 10 * 2**20, "driver": "590.10", "size": "smoke"}, True),
        (CPU, {"cpu_flags": ("avx2", "avx512f")}, False),
        (GPU, {"power_limit_w": 350.0}, False),
    ],
)
def test_a_machine_keeps_its_name_and_one_that_measures_otherwise_has_its_own(
    start: Environment, changes: dict, same: bool
) -> None:
    assert (dataclasses.replace(start, **changes).folder_name == start.folder_name) is same


def test_people_read_device_cores_and_memory() -> None:
    assert CPU.title == "AMD EPYC 7763, 2 cores, 8 GiB"
    assert re.fullmatch(r"amd-epyc-7763-2-cores-8gib-[0-9a-f]{4}", CPU.folder_name)
    assert GPU.title == "NVIDIA H200, 139 GiB"
    twin = dataclasses.replace(CPU, machine="twin")
    called = titles([CPU, twin, GPU, GPU])
    assert called[GPU.machine] == GPU.title
    assert called["twin"] == f"{CPU.title} (twin)"
    assert called[CPU.machine] == f"{CPU.title} ({CPU.machine})"


@pytest.mark.parametrize(("seen_gib", "sold"), [(0.95, 1), (23.54, 24)])
def test_memory_is_what_the_machine_was_sold_with(seen_gib: float, sold: int) -> None:
    there = dataclasses.replace(CPU, memory_bytes=int(seen_gib * 2**30))
    assert there.title.endswith(f", {sold} GiB")
    assert dataclasses.replace(there, memory_bytes=sold * 2**30).folder_name == there.folder_name


class _Nvml(types.ModuleType):
    """``pynvml`` that answers, except to the questions named in ``refuses``."""

    NVMLError = type("NVMLError", (Exception,), {})
    NVML_CLOCK_SM = 1

    def __init__(self, *refuses: str) -> None:
        super().__init__("pynvml")
        answers: dict[str, Callable[..., object]] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByIndex": lambda index: f"index {index}",
            "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
            "nvmlSystemGetDriverVersion": lambda: "580.159.04",
            "nvmlDeviceGetPowerManagementLimit": lambda gpu: {"GPU-aaaa": 700_000}.get(gpu, 300_000),
            "nvmlDeviceGetClockInfo": lambda gpu, clock: 1980,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: 0x4 | 0x8 | 0x20 | 0x40,
        }
        for question, answer in answers.items():
            setattr(self, question, self._refuse if question in refuses else answer)

    def _refuse(self, *arguments: object) -> None:
        raise self.NVMLError("Not Supported")


@pytest.fixture
def h200(on: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretends that there is an H200, and an NVML that refuses some questions."""
    on("cuda")
    properties = types.SimpleNamespace(name="NVIDIA H200", total_memory=150_000_000_000, major=9, minor=0, uuid="aaaa")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    return lambda *refuses: monkeypatch.setitem(sys.modules, "pynvml", _Nvml(*refuses))


def test_environment_of_a_gpu_machine(h200: Callable[..., None]) -> None:
    h200()
    there = environment()
    assert (there.title, there.device_kind, there.device_name) == ("2 × NVIDIA H200, 140 GiB", "cuda", "NVIDIA H200")
    assert re.fullmatch(r"2-nvidia-h200-140gib-[0-9a-f]{4}", there.machine)
    assert (there.gpu_count, there.gpu_memory_bytes, there.compute_capability) == (2, 150_000_000_000, "9.0")
    # With CUDA_VISIBLE_DEVICES torch's first GPU need not be NVML's first.
    assert (there.cuda, there.driver, there.sm_clock_mhz, there.power_limit_w) == ("13.0", "580.159.04", 1980, 700)
    assert there.size == "full"
    # A question that is refused costs its answer.
    h200("nvmlDeviceGetPowerManagementLimit")
    assert (environment().driver, environment().power_limit_w) == ("580.159.04", None)


def test_the_state_of_a_gpu_is_read_in_words(h200: Callable[..., None]) -> None:
    h200()
    assert gpu_state() == GpuState(1980, ("power cap", "hardware slowdown", "heat"), idle=False)


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        (
            GpuState(1410, ("power cap",)),
            "The GPU slowed its clock from 1980 to 1410 MHz (power cap) while this was measured.",
        ),
        (GpuState(1965), ""),  # a step or two
        (GpuState(345, idle=True), ""),  # it waits for work: so low a clock slows nothing
        (None, ""),
    ],
)
def test_what_slowed_the_gpu_is_a_sentence(after: GpuState | None, sentence: str) -> None:
    assert slowdown(GpuState(1980), after) == sentence
