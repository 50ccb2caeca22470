"""What machine is this, and which problem sizes fit it."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import re
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from course_utils.records.kinds.environment import Environment

# Instruction sets that decide how fast a CPU is at the lessons' dtypes.
_CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "bf16", "sve")


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
    own tests: the small sizes, and a fraction of a second for each measurement, whatever its ``budget_s``.

    Args:
        cpu: value for a CPU, and for any machine at smoke size. It must run on 2 cores in a second or so.
        cuda: value for a CUDA GPU at full size. It must fit 8 GiB; a GPU with less memory, or older than compute
            capability 7.5, gets the other value.

    Example:
        >>> scaled(cpu=512, cuda=8192) in (512, 8192)
        True
    """
    if course_size() != "full" or device_kind() != "cuda":
        return cpu
    gpu = torch.cuda.get_device_properties(0)
    # Drivers keep some of the 8 GiB.
    return cuda if gpu.total_memory >= 7.5 * 2**30 and (gpu.major, gpu.minor) >= (7, 5) else cpu


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
            **_nvml(str(getattr(properties, "uuid", ""))),
        }
    elif kind == "mps":
        accelerator = {"device_name": f"{cpu['cpu_model']} GPU", "gpu_count": 1}
    name = accelerator.pop("device_name", cpu["cpu_model"])
    machine = name if kind == "cuda" else f"{cpu['cpu_model']} {cpu['cpu_cores']} cores"
    return Environment(
        machine=re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-"),  # fit for a folder name
        device_kind=kind,
        device_name=name,
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


@lru_cache(maxsize=1)
def _cpu() -> dict[str, Any]:
    import psutil

    model, flags = platform.processor() or platform.machine(), ()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
        if match := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            model = match[1]
        if match := re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE):
            flags = tuple(flag for flag in _CPU_FLAGS if flag in match[1].split())
    elif platform.system() == "Darwin":
        model = _output("sysctl", "-n", "machdep.cpu.brand_string") or model
    # Vendors write "(R)" and clock rates into the name; neither tells machines apart.
    model = re.sub(r"\((?:R|TM)\)|@.*$|\bCPU\b", "", model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "cpu_model": " ".join(model.split()),
        "cpu_cores": cores,
        "cpu_flags": flags,
        "memory_bytes": psutil.virtual_memory().total,
    }


def _nvml(uuid: str) -> dict[str, Any]:
    """Driver, power limit and clock of one NVIDIA GPU, read only. Empty on AMD or where NVML does not answer."""
    try:
        import pynvml

        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        with contextlib.suppress(pynvml.NVMLError):
            # NVML counts all GPUs, torch only those that CUDA_VISIBLE_DEVICES names.
            gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except Exception:  # NVML raises its own types, and the import fails where there is no NVIDIA library
        return {}
    readers = {
        "driver": lambda: str(pynvml.nvmlSystemGetDriverVersion()),
        "power_limit_w": lambda: pynvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1000,
        "sm_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
    }
    values: dict[str, Any] = {}
    for key, read in readers.items():
        # A virtual machine may answer some questions and refuse others.
        with contextlib.suppress(pynvml.NVMLError):
            values[key] = read()
    return values


@lru_cache(maxsize=1)
def _commit() -> str | None:
    root = Path(__file__).resolve().parents[2]
    return _output("git", "-C", str(root), "rev-parse", "--short", "HEAD") if (root / ".git").exists() else None


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
