"""What machine is this, and which problem sizes fit it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from course_utils.files import clone_root
from course_utils.results.environment import Environment

OLDEST_TORCH = (2, 11)
if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_TORCH:
    raise ImportError(
        f"this is torch {torch.__version__}, and the course needs {'.'.join(map(str, OLDEST_TORCH))} or newer: "
        "choose a newer runtime, or run `pip install --upgrade torch` and start the kernel again"
    )

# Instruction sets that decide how fast a CPU is at the lessons' dtypes. Machines are named by them: to change the list
# is to rename machines.
_CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "bf16", "sve")
# What identifies a CPU in /proc/cpuinfo, on x86 and on Arm.
_FAMILY = ("cpu family", "model", "CPU implementer", "CPU part")


def device_kind() -> str:
    """What the lessons measure on: ``cuda`` (NVIDIA and AMD builds of torch), ``mps`` or ``cpu``."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def course_size() -> str:
    """The size that the lessons run at: ``COURSE_SIZE``, or ``full`` with a CUDA GPU and ``smoke`` without."""
    size = os.environ.get("COURSE_SIZE", "").strip().lower()
    if not size:
        return "full" if device_kind() == "cuda" else "smoke"
    if size not in ("smoke", "full", "test"):
        raise ValueError(f"COURSE_SIZE={size!r} is not a size: set it to 'smoke' or 'full', or unset it")
    return size


def scaled(*, cpu: Any, cuda: Any) -> Any:
    """Choose the problem size for this machine.

    ``COURSE_SIZE=smoke`` gives every machine the small size, ``full`` a GPU the large one. ``test`` is for the course's
    own tests: the small sizes, and a fraction of a second for each measurement, whatever its ``budget_s``. What
    ``cpu`` gives must run on 2 cores in a second or so, and ``cuda`` must fit 8 GiB: a GPU with less memory, or older
    than compute capability 7.5, gets the other value.

    Example:
        >>> scaled(cpu=512, cuda=8192) in (512, 8192)
        True
    """
    return cuda if course_size() == "full" and device_kind() == "cuda" and _takes_the_large_size() else cpu


@lru_cache(maxsize=1)  # CUDA does not answer in a forked child, which then has the parent's answer
def _takes_the_large_size() -> bool:
    gpu = torch.cuda.get_device_properties(0)
    # Drivers keep some of the 8 GiB.
    return gpu.total_memory >= 7.5 * 2**30 and (gpu.major, gpu.minor) >= (7, 5)


# What the environment holds of a GPU beside what torch knows.
_ENVIRONMENT = {
    "driver": lambda nvml, gpu: str(nvml.nvmlSystemGetDriverVersion()),
    "power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1000,
    "sm_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
}


def environment() -> Environment:
    """Describe this machine and its software, as they are now. The result shows itself as a table in a notebook.

    Example:
        >>> environment().device_kind in ("cpu", "cuda", "mps")
        True
    """
    kind = device_kind()
    cpu = _cpu()
    accelerator: dict[str, Any] = {}
    if kind == "cuda":
        properties = torch.cuda.get_device_properties(0)
        accelerator = {
            "device_name": properties.name,
            "gpu_count": torch.cuda.device_count(),
            "gpu_memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "cuda": f"rocm {torch.version.hip}" if torch.version.hip else torch.version.cuda,
            **_nvml(_ENVIRONMENT),
        }
    elif kind == "mps":
        accelerator = {"device_name": f"{cpu['cpu_model']} GPU", "gpu_count": 1}
    here = Environment(
        machine="",
        device_kind=kind,
        device_name=accelerator.pop("device_name", cpu["cpu_model"]),
        os=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        torch_threads=torch.get_num_threads(),
        size=course_size(),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        commit=_commit(),
        **cpu,
        **accelerator,
    )
    return dataclasses.replace(here, machine=here.folder_name)


@lru_cache(maxsize=1)
def _cpu() -> dict[str, Any]:
    import psutil

    model, flags, family = platform.processor() or platform.machine(), (), ()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
        if match := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            model = match[1]
        if match := re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE):
            flags = tuple(flag for flag in _CPU_FLAGS if flag in match[1].split())
        numbers = (re.search(rf"^{field}\s*:\s*(\S+)$", text, re.MULTILINE) for field in _FAMILY)
        family = tuple(match[1] for match in numbers if match)
    elif platform.system() == "Darwin":
        model = _output("sysctl", "-n", "machdep.cpu.brand_string") or model
    # Vendors write "(R)" and clock rates into the name; neither tells machines apart.
    model = re.sub(r"\((?:R|TM)\)|@.*$|\bCPU\b", "", model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "cpu_model": " ".join(model.split()),
        "cpu_cores": cores,
        "cpu_flags": flags,
        "cpu_family": "-".join(family),
        "memory_bytes": psutil.virtual_memory().total,
    }


# Bits of NVML's reasons for a clock below the highest (nvml.h, nvmlClocksEventReasons). Idling, a clock that somebody
# set, and a display that needs no more are none: they slow nothing that is measured against its own past.
_THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat",  # seen by the driver
    0x40: "heat",  # seen by the hardware
    0x80: "power brake",
}
_IDLE = 0x1
# Clocks step by 15 MHz, and a GPU that is well moves by a few of these steps.
_SLOWED = 0.03


@dataclass(frozen=True)
class GpuState:
    """What a GPU was doing at one moment; what NVML does not say is None."""

    sm_clock_mhz: int | None = None
    throttled_by: tuple[str, ...] = ()
    idle: bool = False


def gpu_state() -> GpuState | None:
    """The clock of the NVIDIA GPU that torch uses, and what slows it; None without one."""
    if device_kind() != "cuda":
        return None
    values = _nvml(
        {
            "sm_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
            "reasons": lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),
        }
    )
    if not values:
        return None
    reasons = values.pop("reasons", 0)
    throttled_by = dict.fromkeys(words for bit, words in _THROTTLES.items() if reasons & bit)
    return GpuState(**values, throttled_by=tuple(throttled_by), idle=bool(reasons & _IDLE))


def slowdown(before: GpuState | None, after: GpuState | None) -> str:
    """What slowed the GPU between two moments, in a sentence; empty if nothing did, or nobody can tell.

    Example:
        >>> slowdown(GpuState(1980), GpuState(1410, throttled_by=("power cap",)))
        'The GPU slowed its clock from 1980 to 1410 MHz (power cap) while this was measured.'
    """
    if before is None or after is None or after.idle:
        return ""
    why = ", ".join(after.throttled_by)
    clocks = (before.sm_clock_mhz, after.sm_clock_mhz)
    if all(clocks) and not before.idle and clocks[1] < clocks[0] * (1 - _SLOWED):
        reason = f" ({why})" if why else ""
        return f"The GPU slowed its clock from {clocks[0]} to {clocks[1]} MHz{reason} while this was measured."
    at = f" to {clocks[1]} MHz" if clocks[1] else ""
    return f"The GPU held its clock down{at} ({why}) while this was measured." if why else ""


def _nvml(readers: Mapping[str, Callable[[Any, Any], Any]]) -> dict[str, Any]:
    """What NVML answers about torch's first NVIDIA GPU, read only. Empty on AMD or where NVML does not answer."""
    try:
        import pynvml

        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        uuid = getattr(torch.cuda.get_device_properties(0), "uuid", "")
        with contextlib.suppress(pynvml.NVMLError):
            # NVML counts all GPUs, torch only those that CUDA_VISIBLE_DEVICES names.
            gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except Exception:  # NVML raises its own types, and the import fails where there is no NVIDIA library
        return {}
    values: dict[str, Any] = {}
    for key, read in readers.items():
        # A virtual machine may answer some questions and refuse others, and a package may lack a name.
        with contextlib.suppress(pynvml.NVMLError, AttributeError):
            values[key] = read(pynvml, gpu)
    return values


@lru_cache(maxsize=1)
def _commit() -> str | None:
    root = clone_root()
    is_known = root is not None and (root / ".git").exists()
    return _output("git", "-C", str(root), "rev-parse", "--short", "HEAD") if is_known else None


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
