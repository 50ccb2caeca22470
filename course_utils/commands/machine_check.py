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
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_utils.commands import recording
from course_utils.records import lessons, store
from course_utils.records.kinds.environment import Environment

MIN_FREE_BYTES = 2 * 2**30
_SUPPORTED_PYTHON = ((3, 11), (3, 13))
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
        title: its title.
        live: experiments that are measured here.
        from_records: experiments that need what this machine lacks.
        lacking: what these need, in words.
        recorded_on: machines that have a reference record of the lesson.
        problem: why nothing can be said, if so.
    """

    lesson: str
    title: str
    live: tuple[str, ...] = ()
    from_records: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    recorded_on: tuple[str, ...] = ()
    problem: str = ""

    @property
    def words(self) -> str:
        """How it runs here, as a sentence."""
        if self.problem:
            return self.problem
        if not self.from_records:
            return "runs live"
        which = ", ".join(name.partition("/")[2] for name in self.from_records)
        start = "runs live, except" if self.live else "the text runs live;"
        shown = f"shown from {', '.join(self.recorded_on)}" if self.recorded_on else "not recorded anywhere yet"
        return f"{start} {which}: needs {' and '.join(self.lacking)}; {shown}"


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
        return not any(finding.state == "broken" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The same, as plain JSON types."""
        return {
            "works": self.works,
            "environment": self.environment.to_record() if self.environment else None,
            "findings": [asdict(finding) for finding in self.findings],
            "lessons": [asdict(status) | {"words": status.words} for status in self.lessons],
        }


def look() -> MachineCheck:
    """Look at this machine.

    Returns:
        What was found.
    """
    probe, failure = _ask_torch()
    here = Environment.from_record(probe["environment"]) if probe else None
    jupyter = [_package(name, what) for name, what in _PACKAGES.items()]
    findings = (_python(), _torch(probe, failure), *jupyter, _notebooks(), *_gpu(probe), _compiler(), _headers())
    return MachineCheck(here, (*findings, _chromium(), _disk()), _lessons(here))


def _ask_torch() -> tuple[dict[str, Any] | None, str]:
    child = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, env=recording.child_variables(), check=False
    )
    if child.returncode == 0:
        return json.loads(child.stdout.splitlines()[-1]), ""
    return None, (child.stderr.strip() or f"it ends with status {child.returncode}").splitlines()[-1]


def _python() -> Finding:
    low, high = _SUPPORTED_PYTHON
    if low <= sys.version_info[:2] <= high:
        return Finding("Python", "ok", platform.python_version())
    return Finding(
        "Python", "broken", platform.python_version(), "The course runs on Python 3.11 to 3.13. Install one of them."
    )


def _torch(probe: Mapping[str, Any] | None, failure: str) -> Finding:
    if probe is None:
        return Finding("torch", "broken", failure, "Delete the folder .venv and run `make lab` to install it again.")
    built = probe["built_for"]
    build = "for CPUs" if built is None else f"for {built}" if built.startswith("rocm") else f"for CUDA {built}"
    return Finding("torch", "ok", f"{probe['environment']['torch']}, built {build}")


_PACKAGES = {
    "jupyterlab": "Lessons are read and run in it.",
    "ipykernel": "Notebooks run in it.",
    "nbclient": "`course record` runs notebooks with it.",
}


def _package(name: str, purpose: str) -> Finding:
    try:
        return Finding(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "broken", "not installed", f"{purpose} Run `make lab`: it installs what is missing.")


def _notebooks() -> Finding:
    try:
        found = lessons.find_lessons()
    except lessons.LessonError as error:
        return Finding("lessons", "broken", "none", str(error))
    if not found:
        return Finding("lessons", "broken", "none", "Work in a clone of the repository: it has a folder notebooks/.")
    return Finding("lessons", "ok", str(len(found)))


def _gpu(probe: Mapping[str, Any] | None) -> list[Finding]:
    """The first GPU, and the second."""
    if probe and probe["available"]:
        environment = probe["environment"]
        driver = f", driver {environment['driver']}" if environment.get("driver") else ""
        first = Finding("CUDA GPU", "ok", f"{environment['device_name']}{driver}")
        count = environment["gpu_count"]
        if count > 1:
            return [first, Finding("second GPU", "ok", f"{count} GPUs are visible")]
        advice = "Lessons on several GPUs run their ranks on the CPU instead. Nothing to do without another GPU."
        return [first, Finding("second GPU", "missing", "one GPU is visible", advice)]
    second = Finding("second GPU", "missing", "", "Lessons on several GPUs run their ranks on the CPU instead.")
    names, driver = nvidia_gpus()
    if driver:
        found = f"{', '.join(names) or 'NVIDIA GPU'}, driver {driver}"
        if probe is None:
            return [Finding("CUDA GPU", "missing", found, "torch cannot use it before it starts; see above."), second]
        return [Finding("CUDA GPU", "missing", found, _mismatch(probe)), second]
    if nvidia_hardware():
        return [
            Finding(
                "CUDA GPU",
                "missing",
                "an NVIDIA GPU without a driver",
                "Install NVIDIA's driver, restart, and see that `nvidia-smi` lists the GPU.",
            ),
            second,
        ]
    if probe and probe["environment"]["device_kind"] == "mps":
        return [Finding("Apple GPU", "ok", probe["environment"]["device_name"]), _no_cuda(), second]
    return [_no_cuda(), second]


def _no_cuda() -> Finding:
    return Finding(
        "CUDA GPU",
        "missing",
        "",
        "Lessons run smaller on the CPU and show recorded GPU runs. For live GPU runs, use a machine that has one.",
    )


def _mismatch(probe: Mapping[str, Any]) -> str:
    """Why torch does not use a GPU whose driver works, and what to do."""
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
    said = f" torch says: {probe['warning'].splitlines()[0]}" if probe["warning"] else ""
    return (
        f"torch is built for CUDA {probe['built_for']} and cannot use this driver. Update NVIDIA's driver, or set "
        f"TORCH_INDEX_URL to a build for an older CUDA (pytorch.org/get-started), delete .venv, run `make lab`.{said}"
    )


def nvidia_gpus() -> tuple[list[str], str | None]:
    """NVIDIA GPUs as the driver sees them, without torch.

    Returns:
        Their names, and the driver's version; None where there is no working driver.
    """
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
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
    found = recording.compiler()
    if found:
        return Finding("C++ compiler", "ok", found)
    install = {
        "darwin": "Run `xcode-select --install`.",
        "win32": "Install Visual Studio's Build Tools with the C++ workload, and start from its command prompt.",
    }.get(sys.platform, "Install it: `sudo apt install g++`, or `sudo dnf install gcc-c++`.")
    chosen = os.environ.get("CXX")
    if chosen:
        return Finding("C++ compiler", "missing", f"CXX={chosen}", "There is no such program: correct or unset CXX.")
    if sys.platform != "win32" and (other := shutil.which("clang++") or shutil.which("g++")):
        return Finding(
            "C++ compiler", "missing", other, f"torch.compile looks for another: set CXX={Path(other).name}."
        )
    return Finding("C++ compiler", "missing", "", f"torch.compile needs one. {install}")


def _headers() -> Finding:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if header.exists():
        return Finding("Python headers", "ok", str(header.parent))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    advice = f"torch.compile needs them. Install them: `sudo apt install python{version}-dev`."
    return Finding("Python headers", "missing", "", advice)


def chromium() -> str | None:
    """A Chromium that can drive the browser tests: on PATH, or Playwright's own."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"):
        if found := shutil.which(name):
            return found
    own = {"darwin": "~/Library/Caches/ms-playwright", "win32": "~/AppData/Local/ms-playwright"}
    folder = os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or own.get(sys.platform, "~/.cache/ms-playwright")
    return next((str(path) for path in sorted(Path(folder).expanduser().glob("chromium-*"))), None)


def _chromium() -> Finding:
    found = chromium()
    if found:
        return Finding("Chromium", "ok", found)
    advice = "Only the tests of the book and of JupyterLab need it. Install it: `sudo apt install chromium`."
    return Finding("Chromium", "missing", "", advice)


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


def _lessons(here: Environment | None) -> tuple[LessonStatus, ...]:
    try:
        found = lessons.find_lessons()
    except lessons.LessonError:
        return ()
    met = recording.satisfied(here) if here else set()
    statuses = []
    for lesson in found:
        recorded_on = tuple(sorted(path.parent.name for path in store.reference_root().glob(f"*/{lesson.slug}.json")))
        if here is None:
            statuses.append(LessonStatus(lesson.name, lesson.title, problem="does not run: torch is broken, see below"))
            continue
        try:
            names, needed = lessons.experiments(lesson), lessons.needs(lesson)
        except lessons.LessonError as error:
            statuses.append(LessonStatus(lesson.name, lesson.title, problem=f"damaged: {error}"))
            continue
        lacking = {name: set(needed.get(name, ())) - met for name in names}
        statuses.append(
            LessonStatus(
                lesson.name,
                lesson.title,
                live=tuple(name for name in names if not lacking[name]),
                from_records=tuple(name for name in names if lacking[name]),
                lacking=tuple(lessons.NEEDS[need] for need in sorted(set().union(*lacking.values()))),
                recorded_on=recorded_on,
            )
        )
    return tuple(statuses)
