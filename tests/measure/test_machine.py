"""What machine is this: for real, and as machines that are not here."""

from __future__ import annotations

import datetime
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
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.measure import machine
from course_utils.measure.machine import course_size, device_kind, environment, scaled, slug

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
        ("cpu", "smoke", "smoke", "small"),
        ("cpu", "full", "full", "small"),
        ("mps", None, "smoke", "small"),
        ("mps", "full", "full", "small"),
        ("cuda", None, "full", "large"),
        ("cuda", "full", "full", "large"),
        ("cuda", "smoke", "smoke", "small"),
        ("cuda", "test", "test", "small"),
        ("cuda", "", "full", "large"),
        ("cuda", "  Smoke ", "smoke", "small"),
    ],
)
def test_size_by_machine_and_wish(
    on: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    size: str | None,
    expected_size: str,
    expected: str,
) -> None:
    on(kind, size)
    _gpu(monkeypatch, 139.8, (9, 0))
    assert device_kind() == kind
    assert course_size() == expected_size
    assert scaled(cpu="small", cuda="large") == expected


@pytest.mark.parametrize(
    ("gib", "capability", "expected"),
    [(15.6, (7, 5), "large"), (7.6, (8, 9), "large"), (5.8, (8, 6), "small"), (11.9, (6, 1), "small")],
)
def test_a_small_or_old_gpu_gets_the_small_size(
    on: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    gib: float,
    capability: tuple[int, int],
    expected: str,
) -> None:
    on("cuda", "full")
    _gpu(monkeypatch, gib, capability)
    assert scaled(cpu="small", cuda="large") == expected


@pytest.mark.parametrize("size", ["huge", "FULLL", "1"])
def test_a_size_that_is_none_is_one_clear_message(on: Callable[..., None], size: str) -> None:
    on("cuda", size)
    for ask in (course_size, lambda: scaled(cpu=1, cuda=2)):
        with pytest.raises(ValueError, match=f"COURSE_SIZE='{size.lower()}'.*set it to 'smoke' or 'full', or unset it"):
            ask()


# Names


@settings(max_examples=30)
@given(st.text())
def test_slug_is_fit_for_a_folder_whatever_the_text(text: str) -> None:
    result = slug(text)
    assert result == "" or _SLUG.fullmatch(result)
    assert slug(result) == result


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


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "Intel Xeon"),
        ("Intel(R) Core(TM) i7-10750H CPU @ 2.60GHz", "Intel Core i7-10750H"),
        ("AMD EPYC 9575F 64-Core Processor", "AMD EPYC 9575F 64-Core Processor"),
    ],
)
def test_vendors_decorations_are_left_out(monkeypatch: pytest.MonkeyPatch, line: str, expected: str) -> None:
    text = f"processor\t: 0\nmodel name\t: {line}\nflags\t\t: fpu avx2 avx512f amx_bf16 other\n"
    monkeypatch.setattr(Path, "exists", lambda self: True)
    monkeypatch.setattr(Path, "read_text", lambda self, **_: text)
    machine._cpu.cache_clear()
    try:
        found = machine._cpu()
    finally:
        machine._cpu.cache_clear()
    assert found["cpu_model"] == expected
    assert found["cpu_flags"] == ("avx2", "avx512f", "amx_bf16")


# A machine with a GPU


class _NVMLError(Exception):
    pass


class _Nvml(types.ModuleType):
    """``pynvml`` that answers, except to the questions named in ``refuses``."""

    NVMLError = _NVMLError
    NVML_CLOCK_SM = 1

    def __init__(self, *refuses: str) -> None:
        super().__init__("pynvml")
        self.refuses = refuses
        self.open = 0

    def _answer(self, question: str, answer: object) -> object:
        if question in self.refuses:
            raise _NVMLError("Not Supported")
        return answer

    def nvmlInit(self) -> None:  # noqa: N802
        self._answer("init", None)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1
        self._answer("shutdown", None)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return self._answer("handle", f"index {index}")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return self._answer("uuid", uuid)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return self._answer("driver", "580.159.04")

    def nvmlDeviceGetPowerManagementLimit(self, handle: str) -> int:  # noqa: N802
        return self._answer("power", {"GPU-aaaa": 700_000}.get(handle, 300_000))

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:  # noqa: N802
        assert clock == self.NVML_CLOCK_SM
        return self._answer("clock", 1980)


@pytest.fixture
def h200(on: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., _Nvml]]:
    """Pretends that there is an H200, and an NVML that refuses some questions."""
    on("cuda")
    properties = types.SimpleNamespace(
        name="NVIDIA H200", total_memory=150_000_000_000, major=9, minor=0, uuid="aaaa", L2_cache_size=60 * 2**20
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)

    def pretend(*refuses: str) -> _Nvml:
        nvml = _Nvml(*refuses)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    return pretend


def test_environment_of_a_gpu_machine(h200: Callable[..., _Nvml]) -> None:
    nvml = h200()
    there = environment()
    assert (there.machine, there.device_kind, there.device_name) == ("nvidia-h200", "cuda", "NVIDIA H200")
    assert (there.gpu_count, there.gpu_memory_bytes, there.compute_capability) == (2, 150_000_000_000, "9.0")
    assert (there.cuda, there.driver, there.sm_clock_mhz) == ("13.0", "580.159.04", 1980)
    assert there.power_limit_w in (300, 700)
    assert there.size == "full"
    assert there.cpu_model
    assert nvml.open == 0


def test_nvml_is_asked_about_the_gpu_that_torch_uses(h200: Callable[..., _Nvml]) -> None:
    # With CUDA_VISIBLE_DEVICES torch's first GPU need not be NVML's first.
    h200()
    assert environment().power_limit_w == 700
    h200("uuid")
    assert environment().power_limit_w == 300


@pytest.mark.parametrize(
    ("question", "field"), [("driver", "driver"), ("power", "power_limit_w"), ("clock", "sm_clock_mhz")]
)
def test_one_refused_question_costs_one_answer(h200: Callable[..., _Nvml], question: str, field: str) -> None:
    nvml = h200(question)
    there = environment()
    answers = {name: getattr(there, name) for name in ("driver", "power_limit_w", "sm_clock_mhz")}
    assert answers.pop(field) is None
    assert None not in answers.values()
    assert nvml.open == 0


@pytest.mark.parametrize("refuses", [("init",), ("handle", "uuid"), ("driver", "power", "clock"), ("shutdown",)])
def test_environment_survives_an_nvml_that_refuses_it_all(h200: Callable[..., _Nvml], refuses: tuple[str, ...]) -> None:
    nvml = h200(*refuses)
    there = environment()
    assert there.machine == "nvidia-h200"
    assert there.gpu_memory_bytes == 150_000_000_000
    if refuses != ("shutdown",):
        assert there.power_limit_w is None
    assert nvml.open == 0


def test_environment_survives_a_missing_nvml(h200: Callable[..., _Nvml], monkeypatch: pytest.MonkeyPatch) -> None:
    h200()
    monkeypatch.setitem(sys.modules, "pynvml", None)  # what Python does for a module that cannot be imported
    assert environment().driver is None


def test_rocm_is_named_as_such(h200: Callable[..., _Nvml], monkeypatch: pytest.MonkeyPatch) -> None:
    h200("init")
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert environment().cuda == "rocm 6.4.1"


def test_environment_of_an_apple_machine(on: Callable[..., None]) -> None:
    on("mps")
    there = environment()
    assert there.device_kind == "mps"
    assert there.device_name == f"{there.cpu_model} GPU"
    assert (there.gpu_count, there.cuda, there.size) == (1, None, "smoke")
