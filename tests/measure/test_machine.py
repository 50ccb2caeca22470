"""What machine is this: for real, and as machines that are not here."""

from __future__ import annotations

import datetime
import getpass
import json
import re
import socket
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from course_utils.measure import machine
from course_utils.measure.machine import course_size, device_kind, environment, scaled

_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretends that this machine is another one."""
    monkeypatch.delenv("COURSE_SIZE", raising=False)

    def pretend(kind: str, size: str | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: kind == "cuda")
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: kind == "mps")
        if size is not None:
            monkeypatch.setenv("COURSE_SIZE", size)

    return pretend


# Sizes


def _gpu(monkeypatch: pytest.MonkeyPatch, gib: float, capability: tuple[int, int]) -> None:
    properties = types.SimpleNamespace(total_memory=int(gib * 2**30), major=capability[0], minor=capability[1])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


@pytest.mark.parametrize(
    ("kind", "size", "expected_size", "expected"),
    [
        ("cpu", None, "smoke", "small"),
        ("cpu", "full", "full", "small"),
        ("mps", "full", "full", "small"),
        ("cuda", None, "full", "large"),
        ("cuda", "  Smoke ", "smoke", "small"),
        ("cuda", "test", "test", "small"),
    ],
)
def test_size_by_machine_and_wish(on, monkeypatch, kind: str, size: str | None, expected_size: str, expected: str):
    on(kind, size)
    _gpu(monkeypatch, 139.8, (9, 0))
    assert device_kind() == kind
    assert course_size() == expected_size
    assert scaled(cpu="small", cuda="large") == expected


@pytest.mark.parametrize(("gib", "capability"), [(5.8, (8, 6)), (11.9, (6, 1))], ids=["small", "old"])
def test_a_small_or_old_gpu_gets_the_small_size(on, monkeypatch, gib: float, capability: tuple[int, int]):
    on("cuda", "full")
    _gpu(monkeypatch, gib, capability)
    assert scaled(cpu="small", cuda="large") == "small"


def test_a_size_that_is_none_is_one_clear_message(on):
    on("cuda", "huge")
    with pytest.raises(ValueError, match=r"COURSE_SIZE='huge'.*set it to 'smoke' or 'full', or unset it"):
        scaled(cpu=1, cuda=2)


# This machine


def test_environment_of_this_machine() -> None:
    here = environment()
    assert _SLUG.fullmatch(here.machine)
    assert here.device_kind == device_kind()
    assert here.cpu_model
    assert not re.search(r"\((R|TM)\)|@", here.cpu_model)
    assert here.cpu_cores >= 1
    assert here.memory_bytes > 2**28
    assert here.python == ".".join(map(str, sys.version_info[:3]))
    assert here.torch == torch.__version__
    assert here.torch_threads == torch.get_num_threads()
    assert here.size in ("smoke", "full")
    assert datetime.date.fromisoformat(here.date)
    assert here.commit is None or re.fullmatch(r"[0-9a-f]{7,40}", here.commit)
    if here.device_kind == "cpu":
        assert here.device_name == here.cpu_model
        assert here.machine.endswith(f"-{here.cpu_cores}-cores")
        assert (here.gpu_count, here.gpu_memory_bytes, here.driver, here.cuda) == (0, None, None, None)


def test_environment_holds_no_host_name_user_or_path() -> None:
    text = json.dumps(environment().to_record())
    for name in (socket.gethostname(), getpass.getuser()):
        if name not in ("root", "localhost"):
            assert not re.search(rf"\b{re.escape(name)}\b", text)
    assert str(Path.home()) not in text
    assert str(Path.cwd()) not in text
    assert not re.search(r'"(/|[A-Za-z]:\\)', text)


def test_vendors_decorations_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "model name\t: Intel(R) Core(TM) i7-10750H CPU @ 2.60GHz\nflags\t\t: fpu avx2 avx512f amx_bf16 other\n"
    monkeypatch.setattr(Path, "exists", lambda self: True)
    monkeypatch.setattr(Path, "read_text", lambda self, **_: text)
    cpu = machine._cpu.__wrapped__()
    assert cpu["cpu_model"] == "Intel Core i7-10750H"
    assert cpu["cpu_flags"] == ("avx2", "avx512f", "amx_bf16")


# A machine with a GPU


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
    assert (there.machine, there.device_kind, there.device_name) == ("nvidia-h200", "cuda", "NVIDIA H200")
    assert (there.gpu_count, there.gpu_memory_bytes, there.compute_capability) == (2, 150_000_000_000, "9.0")
    # With CUDA_VISIBLE_DEVICES torch's first GPU need not be NVML's first.
    assert (there.cuda, there.driver, there.sm_clock_mhz, there.power_limit_w) == ("13.0", "580.159.04", 1980, 700)
    assert there.size == "full"


@pytest.mark.parametrize(
    ("refuses", "answers"),
    [
        (["nvmlDeviceGetPowerManagementLimit"], ("580.159.04", None, 1980)),
        (["nvmlDeviceGetHandleByUUID"], ("580.159.04", 300, 1980)),
        (["nvmlInit"], (None, None, None)),
    ],
)
def test_a_refused_question_costs_its_answer(h200: Callable[..., None], refuses: list[str], answers: tuple) -> None:
    h200(*refuses)
    there = environment()
    assert there.machine == "nvidia-h200"
    assert (there.driver, there.power_limit_w, there.sm_clock_mhz) == answers


def test_environment_survives_a_missing_nvml(h200, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # what Python does for a module that cannot be imported
    assert environment().driver is None
