"""What ``course check`` finds out: what this machine has, what is missing, and which lessons run live on it.

torch is asked in a process of its own: a torch that is missing or broken is then a finding, and not a crash.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from course_utils.commands import recording
from course_utils.records import lessons, store
from course_utils.records.kinds.environment import Environment
from course_utils.records.lessons import Lesson
from course_utils.show.formats import format_bytes

MIN_FREE_BYTES = 2 * 2**30
_PROBE = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    available = torch.cuda.is_available()
from course_utils.measure.machine import environment
print(json.dumps({
    "environment": environment().to_record(),
    "available": available,
    "built_for": torch.version.cuda or (f"rocm {torch.version.hip}" if torch.version.hip else None),
    "warning": str(caught[0].message) if caught and not available else None,
}))
"""
_PACKAGES = {
    "jupyterlab": "Lessons are read and run in it.",
    "ipykernel": "Notebooks run in it.",
    "nbclient": "`course record` runs notebooks with it.",
}


@dataclass(frozen=True)
class Finding:
    """One thing that lessons may need.

    Attributes:
        name: what it is.
        state: ``ok``; ``missing``: the course works, with less; ``broken``: lessons do not run.
        found: what is there.
        advice: what it is for and how to get it, unless it is ok.
    """

    name: str
    state: str
    found: str = ""
    advice: str = ""


@dataclass(frozen=True)
class LessonStatus:
    """How one lesson runs on this machine.

    Attributes:
        lesson: its file name without suffix, for example ``04_pinned_memory``.
        live: experiments that are measured here.
        recorded: by experiment that needs what this machine lacks: machines that have recorded it.
        lacking: what these need, in words.
        problem: why nothing can be said, if so.
    """

    lesson: str
    live: tuple[str, ...] = ()
    recorded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lacking: tuple[str, ...] = ()
    problem: str = ""

    @property
    def words(self) -> str:
        """How it runs here, as a sentence."""
        if self.problem or not self.recorded:
            return self.problem or "runs live"
        by_place: dict[str, list[str]] = {}
        for name, machines in self.recorded.items():
            place = f"shown from {', '.join(machines)}" if machines else "not recorded anywhere yet"
            by_place.setdefault(place, []).append(name.partition("/")[2])
        start = "runs live, except" if self.live else "the text runs live;"
        places = [f"{', '.join(names)} ({place})" for place, names in by_place.items()]
        return f"{start} what needs {' and '.join(self.lacking)}: {'; '.join(places)}"


@dataclass(frozen=True)
class MachineCheck:
    """Everything that ``course check`` shows.

    Attributes:
        environment: the machine; None if torch does not start.
        findings: what it has and what it lacks.
        lessons: how each lesson runs here.
    """

    environment: Environment | None
    findings: tuple[Finding, ...]
    lessons: tuple[LessonStatus, ...]

    @property
    def works(self) -> bool:
        """Whether lessons run here at all."""
        return not self._named("broken")

    @property
    def conclusion(self) -> str:
        """All of it in one sentence."""
        if broken := self._named("broken"):
            return f"Lessons do not run here yet: mend {', '.join(broken)} first."
        if self._named("missing"):
            return "Lessons run here. What is missing only limits what is measured live."
        return "Lessons run here, and nothing is missing."

    def _named(self, state: str) -> list[str]:
        return [finding.name for finding in self.findings if finding.state == state]

    def machine_lines(self) -> Iterator[str]:
        """What this machine is, in lines whose words begin at column 12."""
        here = self.environment
        if here is None:
            return
        gpu = "none" if here.device_kind == "cpu" else here.device_name
        if here.gpu_memory_bytes:
            gpu += f", {format_bytes(here.gpu_memory_bytes)}"
        cores = f"{here.cpu_cores} core{'s' * (here.cpu_cores != 1)}"
        other = "full" if here.size == "smoke" else "smoke"
        yield f"This machine: {here.machine}"
        yield f"  CPU       {here.cpu_model}, {cores}, {format_bytes(here.memory_bytes)}"
        yield f"  GPU       {gpu}"
        yield f"  software  torch {here.torch}, Python {here.python}, {here.os}"
        yield f"  sizes     {here.size}; COURSE_SIZE={other} chooses the other ones"
        yield ""

    def to_json(self) -> dict[str, Any]:
        """The same, as plain JSON types."""
        return {
            "works": self.works,
            "environment": self.environment.to_record() if self.environment else None,
            "findings": [asdict(finding) for finding in self.findings],
            "lessons": [asdict(status) | {"words": status.words} for status in self.lessons],
        }


def look() -> MachineCheck:
    """Look at this machine."""
    probe, failure = _ask_torch()
    here = Environment.from_record(probe["environment"]) if probe else None
    packages = [_package(name, purpose) for name, purpose in _PACKAGES.items()]
    findings = [_python(), _torch(probe, failure), *packages, _notebooks(), *_gpu(probe)]
    return MachineCheck(here, (*findings, _compiler(), _headers(), _disk()), tuple(_lessons(here)))


def _ask_torch() -> tuple[dict[str, Any] | None, str]:
    command = [sys.executable, "-c", _PROBE]
    child = subprocess.run(command, capture_output=True, text=True, env=recording.child_variables(), check=False)
    if child.returncode == 0:
        return json.loads(child.stdout.splitlines()[-1]), ""
    return None, (child.stderr.strip() or f"it ends with status {child.returncode}").splitlines()[-1]


def _python() -> Finding:
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Finding("Python", "ok", platform.python_version())
    advice = "The course runs on Python 3.11 to 3.13. Install one of them."
    return Finding("Python", "broken", platform.python_version(), advice)


def _torch(probe: Mapping[str, Any] | None, failure: str) -> Finding:
    if probe is None:
        return Finding("torch", "broken", failure, "Delete the folder .venv and run `make lab` to install it again.")
    built = probe["built_for"]
    build = "for CPUs" if built is None else f"for {built}" if built.startswith("rocm") else f"for CUDA {built}"
    return Finding("torch", "ok", f"{probe['environment']['torch']}, built {build}")


def _package(name: str, purpose: str) -> Finding:
    try:
        return Finding(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "broken", "not installed", f"{purpose} Run `make lab`: it installs what is missing.")


def _notebooks() -> Finding:
    try:
        count = len(lessons.find_lessons())
    except lessons.LessonError as error:
        return Finding("lessons", "broken", "none", str(error))
    if not count:
        return Finding("lessons", "broken", "none", "Work in a clone of the repository: it has a folder notebooks/.")
    return Finding("lessons", "ok", str(count))


def _gpu(probe: Mapping[str, Any] | None) -> list[Finding]:
    """The first GPU, and the second."""
    second = Finding("second GPU", "missing", "", "Lessons on several GPUs run their ranks on the CPU instead.")
    if probe and probe["available"]:
        environment = probe["environment"]
        driver = f", driver {environment['driver']}" if environment.get("driver") else ""
        if environment["gpu_count"] > 1:
            second = Finding("second GPU", "ok", f"{environment['gpu_count']} GPUs are visible")
        return [Finding("CUDA GPU", "ok", f"{environment['device_name']}{driver}"), second]
    found, advice = "", "Lessons run smaller on the CPU. For live GPU runs, use a machine that has one."
    names, driver = _nvidia_gpus()
    if driver:
        found, advice = f"{', '.join(names) or 'NVIDIA GPU'}, driver {driver}", _mismatch(probe)
    elif nvidia_hardware():
        found = "an NVIDIA GPU without a driver"
        advice = "Install NVIDIA's driver, restart, and see that `nvidia-smi` lists the GPU."
    findings = [Finding("CUDA GPU", "missing", found, advice), second]
    if probe and probe["environment"]["device_kind"] == "mps":
        findings.insert(0, Finding("Apple GPU", "ok", probe["environment"]["device_name"]))
    return findings


def _mismatch(probe: Mapping[str, Any] | None) -> str:
    """Why torch does not use a GPU whose driver works, and what to do."""
    if probe is None:
        return "torch cannot use it before it starts; see above."
    if probe["built_for"] is None:
        return (
            f"The GPU works, but this torch ({probe['environment']['torch']}) is built for CPUs. Delete "
            "the folder .venv, set TORCH_INDEX_URL to the index that pytorch.org/get-started names for your driver, "
            "and run `make lab`."
        )
    if probe["built_for"].startswith("rocm"):
        return "This torch is built for AMD GPUs. Delete the folder .venv, unset TORCH_INDEX_URL and run `make lab`."
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return "CUDA_VISIBLE_DEVICES hides it. Unset it."
    says = f" torch says: {probe['warning'].splitlines()[0]}" if probe["warning"] else ""
    return (
        f"torch is built for CUDA {probe['built_for']} and cannot use this driver. Update NVIDIA's driver, or set "
        f"TORCH_INDEX_URL to a build for an older CUDA (pytorch.org/get-started), delete .venv, run `make lab`.{says}"
    )


def _nvidia_gpus() -> tuple[list[str], str | None]:
    """Names of NVIDIA GPUs as the driver sees them, without torch, and its version; None without a working driver."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return [], None
    rows = [line.rsplit(",", 1) for line in answer.stdout.splitlines() if "," in line]
    return [name.strip() for name, _ in rows], rows[0][1].strip() if rows else None


def nvidia_hardware(devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Whether an NVIDIA display or compute device is plugged in, driver or not. Known on Linux only.

    Args:
        devices: where the kernel lists PCI devices.
    """
    for device in devices.glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        if vendor == "0x10de" and kind.startswith("0x03"):
            return True
    return False


def _compiler() -> Finding:
    if found := recording.compiler():
        return Finding("C++ compiler", "ok", found)
    if chosen := os.environ.get("CXX"):
        return Finding("C++ compiler", "missing", f"CXX={chosen}", "There is no such program: correct or unset CXX.")
    if sys.platform != "win32" and (other := shutil.which("clang++") or shutil.which("g++")):
        advice = f"torch.compile looks for another: set CXX={Path(other).name}."
        return Finding("C++ compiler", "missing", other, advice)
    install = {
        "darwin": "Run `xcode-select --install`.",
        "win32": "Install Visual Studio's Build Tools with the C++ workload, and start from its command prompt.",
    }.get(sys.platform, "Install it: `sudo apt install g++`, or `sudo dnf install gcc-c++`.")
    return Finding("C++ compiler", "missing", "", f"torch.compile needs one. {install}")


def _headers() -> Finding:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if header.exists():
        return Finding("Python headers", "ok", str(header.parent))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    advice = f"torch.compile needs them. Install them: `sudo apt install python{version}-dev`."
    return Finding("Python headers", "missing", "", advice)


def _disk() -> Finding:
    folder = store.results_root()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    found = f"{free / 2**30:.1f} GiB free"
    if not os.access(folder, os.W_OK):
        return Finding("disk", "missing", f"{folder} cannot be written", "Set COURSE_RESULTS to a folder of your own.")
    if free < MIN_FREE_BYTES:
        return Finding("disk", "missing", found, "Free some space: records need little, the CUDA build of torch 6 GiB.")
    return Finding("disk", "ok", found)


def _lessons(here: Environment | None) -> Iterator[LessonStatus]:
    try:
        all_lessons = lessons.find_lessons()
    except lessons.LessonError:
        return
    for lesson in all_lessons:
        try:
            if here is None:
                yield LessonStatus(lesson.name, problem="does not run: torch is broken, see below")
            else:
                yield _status(lesson, recording.satisfied(here))
        except (lessons.LessonError, store.RecordError) as error:
            yield LessonStatus(lesson.name, problem=f"damaged: {error}")


def _status(lesson: Lesson, met: set[str]) -> LessonStatus:
    names, needed = lessons.experiments(lesson), lessons.needs(lesson)
    lacking = {name: set(needed.get(name, ())) - met for name in names}
    records = store.records_of(lesson.slug, store.reference_root())
    return LessonStatus(
        lesson.name,
        live=tuple(name for name in names if not lacking[name]),
        recorded={
            name: tuple(record.environment.machine for record in records if name in record.experiments)
            for name in names
            if lacking[name]
        },
        lacking=tuple(lessons.NEEDS[need] for need in sorted(set().union(*lacking.values()))),
    )
