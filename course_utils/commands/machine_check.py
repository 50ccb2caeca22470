"""What ``course check`` finds out: what this machine has, what is missing, and which lessons run live on it.

torch is asked in a process of its own: a torch that is missing or broken is then a finding, and not a crash.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils import lesson_notebooks
from course_utils.commands import recording
from course_utils.files import clone_root, variables_for_children
from course_utils.lesson_notebooks import Lesson
from course_utils.measure.compiler import compiler
from course_utils.results import store
from course_utils.results.environment import Environment
from course_utils.show.formats import listed

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


@dataclass(frozen=True)
class Facility:
    """One thing that lessons may need: it is ``ok``, ``missing`` (the course works, with less) or ``broken``."""

    name: str
    state: str
    details: str = ""
    advice: str = ""


@dataclass(frozen=True)
class MachineCheck:
    """Everything that ``course check`` shows; without an environment torch does not start."""

    environment: Environment | None
    facilities: tuple[Facility, ...]
    lessons: Mapping[str, tuple[str, str]]  # what each asks, and how it runs here, with its minutes

    @property
    def broken(self) -> list[str]:
        """What keeps lessons from running."""
        return [facility.name for facility in self.facilities if facility.state == "broken"]

    def in_words(self, width: int) -> str:
        """All of it as text, in lines of at most so many characters."""
        lines = [repr(self.environment.numbers), ""] if self.environment else []
        lines += ["Lessons"]
        indent = max(map(len, self.lessons), default=0) + 4
        for name, (asked, how) in self.lessons.items():
            lines += _wrapped(f"  {name}", asked or how, indent, width)
            lines += _wrapped("", how, indent, width) if asked else []
        lines += ["", "What the lessons use"]
        indent = max(len(facility.name) for facility in self.facilities) + 13
        for facility in self.facilities:
            about = ". ".join(filter(None, (facility.details, facility.advice)))
            lines += _wrapped(f"  {facility.state:<7}  {facility.name}", about, indent, width)
        return "\n".join([*lines, "", self._conclusion()])

    def _conclusion(self) -> str:
        if self.broken:
            return f"Lessons do not run here yet: mend {', '.join(self.broken)} first."
        if missing := [facility.name for facility in self.facilities if facility.state == "missing"]:
            return f"Lessons run here. What is missing only limits what is measured live: {listed(missing)}."
        return "Lessons run here, and nothing is missing."


def _wrapped(start: str, text: str, indent: int, width: int) -> list[str]:
    """Text after ``start``, which is filled up to ``indent`` characters, wrapped under itself."""
    lines = textwrap.wrap(text, max(width - indent, 30), break_on_hyphens=False) or [""]
    return [f"{before:<{indent}}{line}" for before, line in zip([start, *[""] * len(lines)], lines, strict=False)]


def look() -> MachineCheck:
    """Look at this machine."""
    probe, torch = _ask_torch()
    here = Environment.from_record(probe["environment"]) if probe else None
    facilities = (torch, _packages(), _notebooks(), _gpu(probe), _compiler())
    return MachineCheck(here, facilities, dict(_lessons(here)))


def _ask_torch() -> tuple[dict[str, Any] | None, Facility]:
    command = [sys.executable, "-c", _PROBE]
    child = subprocess.run(command, capture_output=True, text=True, env=variables_for_children(os.environ), check=False)
    if child.returncode == 0:
        probe = json.loads(child.stdout.splitlines()[-1])
        return probe, Facility("torch", "ok", f"{probe['environment']['torch']}, built for {probe['built_for']}")
    failure = (child.stderr.strip() or f"it ends with status {child.returncode}").splitlines()[-1]
    again = "Delete the folder .venv and run `make lab` to install it again."
    advice = again if clone_root() else "Install it again: `pip install --upgrade torch`."
    return None, Facility("torch", "broken", failure, advice)


def _packages() -> Facility:
    """What runs notebooks. A package that came without a clone is read in something else than JupyterLab."""
    needed = ["ipykernel", "nbclient"] + ["jupyterlab"] * bool(clone_root())
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        advice = "Run `make lab`: it installs them." if clone_root() else f"Run `pip install {' '.join(missing)}`."
        return Facility("notebooks", "broken", f"not installed: {listed(missing)}", advice)
    return Facility("notebooks", "ok", listed(needed))


def _notebooks() -> Facility:
    advice = "Work in a clone of the repository: it has a folder notebooks/."
    try:
        if found := lesson_notebooks.find_lessons():
            return Facility("lessons", "ok", str(len(found)))
    except lesson_notebooks.LessonError as error:
        advice = str(error)
    return Facility("lessons", "broken", "none", advice)


def _gpu(probe: Mapping[str, Any] | None) -> Facility:
    if probe and probe["available"]:
        here = probe["environment"]
        advice = "Lessons on several GPUs run their ranks on the CPU." if here["gpu_count"] == 1 else ""
        details = [here["device_name"], f"driver {here['driver']}", f"{here['gpu_count']} visible"]
        return Facility("CUDA GPU", "ok", ", ".join(details), advice)
    advice = "Lessons run smaller on the CPU. For live GPU runs, use a machine that has one."
    driver = _nvidia_driver()
    if driver and "CUDA_VISIBLE_DEVICES" in os.environ:
        advice = "CUDA_VISIBLE_DEVICES hides it. Unset it."
    elif driver and probe:
        advice = (
            f"The GPU works, but this torch is built for {probe['built_for']}. Delete the folder .venv, set "
            "TORCH_INDEX_URL to the index that pytorch.org/get-started names for your driver, and run `make lab`."
        )
    return Facility("CUDA GPU", "missing", driver, advice)


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
    path, header = compiler(), Path(sysconfig.get_path("include")) / "Python.h"
    if path and header.exists():
        return Facility("C++ compiler", "ok", path)
    if path:
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
        advice = f"torch.compile needs Python's headers, too. Install them: `sudo apt install {package}`."
        return Facility("C++ compiler", "missing", f"{path} finds no {header}", advice)
    chosen = os.environ.get("CXX")
    install = {
        "darwin": "Run `xcode-select --install`.",
        "win32": "Install Visual Studio's Build Tools with the C++ workload, and start from its command prompt.",
    }.get(sys.platform, "Install it: `sudo apt install g++`, or `sudo dnf install gcc-c++`.")
    advice = f"torch.compile needs one. {install} Or set CXX to another that is there."
    return Facility("C++ compiler", "missing", f"no {chosen}, which CXX names" if chosen else "", advice)


def _lessons(here: Environment | None) -> Iterator[tuple[str, tuple[str, str]]]:
    try:
        all_lessons = lesson_notebooks.find_lessons()
    except lesson_notebooks.LessonError:
        return
    for lesson in all_lessons:
        try:
            how = _how_it_runs(lesson, recording.satisfied(here)) if here else "does not run: torch is broken"
        except (lesson_notebooks.LessonError, store.RecordError) as error:
            how = f"damaged: {error}"
        # The minutes that a lesson states in its title.
        text = lesson.path.read_text(encoding="utf-8")
        stated = re.search(rf"<!--= time {lesson.slug} -->(\d+ minutes)<!--/-->", text)
        yield lesson.name, (lesson_notebooks.question(lesson), f"{stated[1]}, {how}" if stated else how)


def _how_it_runs(lesson: Lesson, met: set[str]) -> str:
    """What runs live, what the other experiments need, and which machines' records the lesson shows instead."""
    names, needed = lesson_notebooks.experiments(lesson), lesson_notebooks.needs(lesson)
    lacking = {name: unmet for name in names if (unmet := set(needed.get(name, ())) - met)}
    if not lacking:
        return "runs live"
    start = "runs live" if len(names) > len(lacking) else "the text runs live"
    # Two GPUs are one GPU as well.
    needs = {need for unmet in lacking.values() for need in (unmet - {"cuda"} if "two-gpus" in unmet else unmet)}
    what = listed(lesson_notebooks.NEEDS[need] for need in sorted(needs))
    # As `recorded` chooses.
    records = store.records_of(lesson.slug, store.reference_root())
    holding = [next((record for record in records if name in record.experiments), None) for name in lacking]
    shown = dict.fromkeys(record.environment.title for record in holding if record)
    instead = f"shown from {listed(shown)}" if shown else ""
    missing = f"{holding.count(None)} not recorded yet" if None in holding else ""
    words = f"{len(lacking)} experiment{'s need' if len(lacking) > 1 else ' needs'} {what}"
    return f"{start}; {words} ({', '.join(filter(None, (instead, missing)))})"
