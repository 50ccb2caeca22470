"""What ``course check`` finds out: what this machine has, what is missing, and which lessons run live on it.

torch is asked in a process of its own: a torch that is missing or broken is then a finding, and not a crash.
"""

from __future__ import annotations

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
from course_utils.lesson_notebooks import Lesson
from course_utils.measure.compiler import compiler
from course_utils.results.environment import Environment
from course_utils.show.formats import listed


@dataclass(frozen=True)
class Facility:
    """One thing that lessons may need: ``ok``, ``missing`` (the course works, with less) or ``broken``."""

    name: str
    state: str
    details: str = ""
    advice: str = ""


@dataclass(frozen=True)
class MachineCheck:
    """Everything that ``course check`` shows; without an environment torch does not start."""

    environment: Environment | None
    facilities: tuple[Facility, ...]
    lessons: Mapping[str, list[str]]  # what each asks, if it says so, and how it runs here, with its minutes

    def in_words(self, width: int) -> str:
        """All of it as text, in lines of at most so many characters."""
        lines = [repr(self.environment.numbers), ""] if self.environment else []
        lines += ["Lessons"]
        for name, about in self.lessons.items():
            lines += [_wrapped(f"  {start:<28}", words, width) for start, words in zip((name, ""), about, strict=False)]
        lines += ["", "What the lessons use"]
        for facility in self.facilities:
            about = ". ".join(filter(None, (facility.details, facility.advice)))
            lines.append(_wrapped(f"  {facility.state:<9}{facility.name:<14}", about, width))
        return "\n".join([*lines, "", self._conclusion()])

    def _conclusion(self) -> str:
        if self.environment is None:
            return "Lessons do not run here yet: mend torch first."
        if missing := [facility.name for facility in self.facilities if facility.state == "missing"]:
            return f"Lessons run here. What is missing only limits what is measured live: {listed(missing)}."
        return "Lessons run here, and nothing is missing."


def _wrapped(start: str, text: str, width: int) -> str:
    """Text after ``start``, wrapped under itself."""
    return textwrap.fill(text, width, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False)


def look() -> MachineCheck:
    """Look at this machine."""
    try:
        probe = recording.ask_torch()
        torch = Facility("torch", "ok", f"{probe['environment']['torch']}, built for {probe['built_for']}")
    except recording.RecordingError as error:
        probe, torch = None, Facility("torch", "broken", str(error))
    here = Environment.from_record(probe["environment"]) if probe else None
    return MachineCheck(here, (torch, _gpu(probe), _compiler()), dict(_lessons(here)))


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


def _lessons(here: Environment | None) -> Iterator[tuple[str, list[str]]]:
    for lesson in lesson_notebooks.find_lessons():
        how = _how_it_runs(lesson, recording.satisfied(here)) if here else "does not run: torch is broken"
        # The minutes that a lesson states in its title.
        text = lesson.path.read_text(encoding="utf-8")
        stated = re.search(rf"<!--= time {lesson.slug} -->(\d+ minutes)<!--/-->", text)
        asked = [question] if (question := lesson_notebooks.question(lesson)) else []
        yield lesson.name, [*asked, f"{stated[1]}, {how}" if stated else how]


def _how_it_runs(lesson: Lesson, met: set[str]) -> str:
    """What runs live, and what the other experiments need: the lesson shows what other machines recorded of them."""
    names, needed = lesson_notebooks.experiments(lesson), lesson_notebooks.needs(lesson)
    lacking = {name: unmet for name in names if (unmet := set(needed.get(name, ())) - met)}
    if not lacking:
        return "runs live"
    start = "runs live" if len(names) > len(lacking) else "the text runs live"
    # Two GPUs are one GPU as well.
    needs = {need for unmet in lacking.values() for need in (unmet - {"cuda"} if "two-gpus" in unmet else unmet)}
    what = listed(lesson_notebooks.NEEDS[need] for need in sorted(needs))
    return f"{start}; {len(lacking)} experiment{'s need' if len(lacking) > 1 else ' needs'} {what}"
