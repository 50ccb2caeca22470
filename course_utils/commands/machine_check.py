"""What ``course check`` finds out: what this machine has, what is missing, and which lessons run live on it.

torch is asked in a process of its own: a torch that is missing or broken is then a finding, and not a crash.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils import lesson_notebooks as lessons
from course_utils.commands import recording
from course_utils.files import clone_root
from course_utils.lesson_notebooks import Lesson
from course_utils.measure.compiler import compiler
from course_utils.results import store
from course_utils.results.environment import Environment, titles
from course_utils.show.formats import format_bytes, listed
from course_utils.show.suggestions import typed

MIN_FREE_BYTES = 2 * 2**30
_PROBE = """
import json, torch
from course_utils.measure.machine import environment
cuda, hip = torch.version.cuda, torch.version.hip
print(json.dumps({
    "environment": environment().to_record(),
    "available": torch.cuda.is_available(),
    "built_for": f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPUs",
}))
"""
_PACKAGES = {
    "ipykernel": "Notebooks run in it.",
    "nbclient": f"{typed('record')} runs notebooks with it.",
}


@dataclass(frozen=True)
class Facility:
    """One thing that lessons may need: it is ``ok``, ``missing`` (the course works, with less) or ``broken``."""

    name: str
    state: str
    details: str = ""
    advice: str = ""


@dataclass(frozen=True)
class LessonCheck:
    """What a lesson asks, and how it runs on this machine, with its minutes; a lesson may state no question."""

    question: str
    how: str


@dataclass(frozen=True)
class MachineCheck:
    """Everything that ``course check`` shows; without an environment torch does not start."""

    environment: Environment | None
    facilities: tuple[Facility, ...]
    lessons: Mapping[str, LessonCheck]

    @property
    def broken(self) -> list[str]:
        """What keeps lessons from running."""
        return [facility.name for facility in self.facilities if facility.state == "broken"]

    @property
    def conclusion(self) -> str:
        """All of it in one sentence."""
        if self.broken:
            return f"Lessons do not run here yet: mend {', '.join(self.broken)} first."
        if missing := [facility.name for facility in self.facilities if facility.state == "missing"]:
            return f"Lessons run here. What is missing only limits what is measured live: {listed(missing)}."
        return "Lessons run here, and nothing is missing."

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
        yield f"This machine: {here.title}"
        yield f"  CPU       {here.cpu_model}, {cores}, {format_bytes(here.memory_bytes)}"
        yield f"  GPU       {gpu}"
        yield f"  software  torch {here.torch}, Python {here.python}, {here.os}"
        yield f"  name      {here.machine}"
        yield f"  sizes     {here.size}; COURSE_SIZE={other} chooses the other ones"
        yield ""


def look() -> MachineCheck:
    """Look at this machine."""
    probe, torch = _ask_torch()
    here = Environment.from_record(probe["environment"]) if probe else None
    # Where the package came without a clone, notebooks are read in something else: a hosted one, for example.
    in_clone = {"jupyterlab": "Lessons are read and run in it."} if clone_root() else {}
    packages = [_package(name, purpose) for name, purpose in (in_clone | _PACKAGES).items()]
    facilities = (_python(), torch, *packages, _notebooks(), *_gpus(probe), _compiler(), _headers(), _disk())
    return MachineCheck(here, facilities, dict(_lessons(here)))


def _ask_torch() -> tuple[dict[str, Any] | None, Facility]:
    command = [sys.executable, "-c", _PROBE]
    child = subprocess.run(command, capture_output=True, text=True, env=recording.child_variables(), check=False)
    if child.returncode == 0:
        probe = json.loads(child.stdout.splitlines()[-1])
        return probe, Facility("torch", "ok", f"{probe['environment']['torch']}, built for {probe['built_for']}")
    failure = (child.stderr.strip() or f"it ends with status {child.returncode}").splitlines()[-1]
    again = "Delete the folder .venv and run `make lab` to install it again."
    advice = again if clone_root() else "Install it again: `pip install --upgrade torch`."
    return None, Facility("torch", "broken", failure, advice)


def _python() -> Facility:
    is_supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    advice = "" if is_supported else "The course runs on Python 3.11 to 3.13. Install one of them."
    return Facility("Python", "ok" if is_supported else "broken", platform.python_version(), advice)


def _package(name: str, purpose: str) -> Facility:
    try:
        return Facility(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        install = "Run `make lab`: it installs what is missing." if clone_root() else f"Run `pip install {name}`."
        return Facility(name, "broken", "not installed", f"{purpose} {install}")


def _notebooks() -> Facility:
    advice = "Work in a clone of the repository: it has a folder notebooks/."
    try:
        if lesson_names := lessons.find_lessons():
            return Facility("lessons", "ok", str(len(lesson_names)))
    except lessons.LessonError as error:
        advice = str(error)
    return Facility("lessons", "broken", "none", advice)


def _gpus(probe: Mapping[str, Any] | None) -> tuple[Facility, Facility]:
    second = Facility("second GPU", "missing", "", "Lessons on several GPUs run their ranks on the CPU instead.")
    if probe and probe["available"]:
        environment = probe["environment"]
        driver = f", driver {environment['driver']}" if environment.get("driver") else ""
        if environment["gpu_count"] > 1:
            second = Facility("second GPU", "ok", f"{environment['gpu_count']} GPUs are visible")
        return Facility("CUDA GPU", "ok", f"{environment['device_name']}{driver}"), second
    advice = "Lessons run smaller on the CPU. For live GPU runs, use a machine that has one."
    driver = _nvidia_driver()
    if driver and "CUDA_VISIBLE_DEVICES" in os.environ:
        advice = "CUDA_VISIBLE_DEVICES hides it. Unset it."
    elif driver and probe:
        advice = (
            f"The GPU works, but this torch is built for {probe['built_for']}. Delete the folder .venv, set "
            "TORCH_INDEX_URL to the index that pytorch.org/get-started names for your driver, and run `make lab`."
        )
    return Facility("CUDA GPU", "missing", driver, advice), second


def _nvidia_driver() -> str:
    """The first NVIDIA GPU as the driver sees it, without torch, and its version; empty without a working driver."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
    name, _, version = answer.partition("\n")[0].rpartition(", ")
    return f"{name}, driver {version}"


def _compiler() -> Facility:
    if path := compiler():
        return Facility("C++ compiler", "ok", path)
    chosen = os.environ.get("CXX")
    install = {
        "darwin": "Run `xcode-select --install`.",
        "win32": "Install Visual Studio's Build Tools with the C++ workload, and start from its command prompt.",
    }.get(sys.platform, "Install it: `sudo apt install g++`, or `sudo dnf install gcc-c++`.")
    advice = f"torch.compile needs one. {install} Or set CXX to another that is there."
    return Facility("C++ compiler", "missing", f"no {chosen}, which CXX names" if chosen else "", advice)


def _headers() -> Facility:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if header.exists():
        return Facility("Python headers", "ok", str(header.parent))
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
    advice = f"torch.compile needs them. Install them: `sudo apt install {package}`."
    return Facility("Python headers", "missing", "", advice)


def _disk() -> Facility:
    folder = store.results_root()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        return Facility("disk", "missing", f"{folder} cannot be written", "Set COURSE_RESULTS to a folder of your own.")
    free = shutil.disk_usage(folder).free
    is_enough = free >= MIN_FREE_BYTES
    advice = "" if is_enough else "Free some space: records need little, the CUDA build of torch 6 GiB."
    return Facility("disk", "ok" if is_enough else "missing", f"{free / 2**30:.1f} GiB free", advice)


def _lessons(here: Environment | None) -> Iterator[tuple[str, LessonCheck]]:
    try:
        all_lessons = lessons.find_lessons()
    except lessons.LessonError:
        return
    for lesson in all_lessons:
        try:
            words = _how_it_runs(lesson, recording.satisfied(here)) if here else "does not run: torch is broken"
        except (lessons.LessonError, store.RecordError) as error:
            words = f"damaged: {error}"
        yield lesson.name, LessonCheck(lessons.question(lesson), f"{_minutes(lesson)}{words}")


def _minutes(lesson: Lesson) -> str:
    """The minutes that a lesson states in its title, where it does."""
    stated = re.search(rf"<!--= time {lesson.slug} -->(\d+ minutes)<!--/-->", lesson.path.read_text(encoding="utf-8"))
    return f"{stated[1]}, " if stated else ""


def _how_it_runs(lesson: Lesson, met: set[str]) -> str:
    """What runs live, and of how many experiments that cannot the lesson shows which machine's record, if any."""
    needed, records = lessons.needs(lesson), store.records_of(lesson.slug, store.reference_root())
    called = titles(record.environment for record in records)
    names = lessons.experiments(lesson)
    elsewhere: dict[str, Counter[str]] = {}
    for name in names:
        if unmet := set(needed.get(name, ())) - met:
            # As `recorded` chooses: two GPUs are one GPU as well.
            what = " and ".join(
                lessons.NEEDS[need] for need in sorted(unmet - ({"cuda"} if "two-gpus" in unmet else set()))
            )
            record = next((record for record in records if name in record.experiments), None)
            place = f"shown from {called[record.environment.machine]}" if record else "no record yet"
            elsewhere.setdefault(what, Counter())[place] += 1
    if not elsewhere:
        return "runs live"
    lacking = sum(places.total() for places in elsewhere.values())
    start = "runs live" if len(names) > lacking else "the text runs live"
    return "; ".join([start, *(_lacking(what, places) for what, places in elsewhere.items())])


def _lacking(what: str, places: Counter[str]) -> str:
    """How many experiments need what is not here, and what is shown instead."""
    count = places.total()
    verb = "experiment needs" if count == 1 else "experiments need"
    shown = [place if len(places) == 1 else f"{place}: {own}" for place, own in places.items()]
    return f"{count} {verb} {what} ({', '.join(shown)})"
