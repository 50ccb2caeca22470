"""A small course of its own in a temporary folder: real notebooks, real kernels and real records."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from course_utils.commands import recording
from course_utils.results.environment import Environment

ROOT = Path(__file__).resolve().parent.parent

# A cell that can measure without torch: most tests are about what happens around a measurement, and start many kernels.
SET_UP = """
import json, os, time
from course_utils.results.comparison import Comparison
from course_utils.results.environment import Environment
from course_utils.results.measurement import Measurement
from course_utils.results.store import keep

def seconds(n):
    start = time.perf_counter()
    sum(range(n))
    return time.perf_counter() - start

def compare_loops(name, parameters=None):
    samples = {n: [] for n in (20_000, 40_000, 20_001)}
    for _ in range(12):
        for n, taken in samples.items():
            taken.append(seconds(n))
    short, long, again = (Measurement(f"{n}", tuple(taken)) for n, taken in samples.items())
    here = Environment.from_record(json.loads(os.environ["SANDBOX_HERE"]) | {"size": os.environ["COURSE_SIZE"]})
    return keep(Comparison((short, long), again, here, name=name, parameters=parameters or {}))
""".strip()


def comparing(name: str, more: str = "") -> str:
    """A cell that compares two loops, one of them twice as long."""
    return f'result = compare_loops(name="{name}"{more})'


@cache
def here() -> Environment:
    """This machine, at smoke size."""
    return dataclasses.replace(recording.environment_here(), size="smoke")


@dataclasses.dataclass(frozen=True)
class Sandbox:
    """Folders of one temporary course."""

    root: Path

    @property
    def notebooks(self) -> Path:
        return self.root / "notebooks"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def reference(self) -> Path:
        return self.root / "reference"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    @property
    def variables(self) -> dict[str, str]:
        """What points the course at these folders."""
        return {
            "COURSE_NOTEBOOKS": str(self.notebooks),
            "COURSE_RESULTS": str(self.results),
            "COURSE_REFERENCE_ROOT": str(self.reference),
            "TMPDIR": str(self.temporary),
            "SANDBOX_HERE": json.dumps(here().to_record()),
        }

    def notebook(self, name: str, *cells: str, needs: str | None = None) -> Path:
        """Write a notebook. ``needs`` is what the last cell needs, for example ``cuda``."""
        content = nbformat.v4.new_notebook(
            cells=[
                nbformat.v4.new_markdown_cell(f"# {name[3:].capitalize()}"),
                *(nbformat.v4.new_code_cell(source) for source in cells),
            ]
        )
        if needs is not None:
            content.cells[-1].metadata = {"tags": [f"needs-{needs}"]}
        path = self.notebooks / f"{name}.ipynb"
        nbformat.write(content, path)
        return path

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "own_program.command", *arguments]

    def environment(self, **more: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("COURSE_", "JPY_"))}
        kept.pop("CXX", None)
        return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **self.variables, **more}

    def course(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run ``course`` as a person would, in a process of its own; what is given by name is its environment."""
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            cwd=self.root,
            env=self.environment(**more),
            timeout=240,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start ``course`` and do not wait for it."""
        return subprocess.Popen(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.root,
            env=self.environment(),
            start_new_session=True,
        )

    def record_files(self) -> dict[str, bytes]:
        """Every record, by its path below the results folder."""
        files = [path for path in sorted(self.results.rglob("*")) if path.is_file()]
        return {str(path.relative_to(self.results)): path.read_bytes() for path in files}

    def leftovers(self) -> list[str]:
        """What recordings left in the temporary folder."""
        return sorted(path.name for path in self.temporary.glob("course-record-*"))


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """A sandbox that this process sees too."""
    box = Sandbox(tmp_path)
    box.notebooks.mkdir()
    box.temporary.mkdir()
    for name in [name for name in os.environ if name.startswith("COURSE_")]:
        monkeypatch.delenv(name)
    for name, value in box.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tempfile.tempdir", None)  # it remembers TMPDIR
    return box


def wait_for(condition: Any, what: str, seconds: float = 180) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if outcome := condition():
            return outcome
        time.sleep(0.05)
    pytest.fail(f"waited {seconds:g} s in vain for {what}")


def number_in(path: Path) -> int | None:
    """The process id that a notebook's cell wrote, once it is there."""
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else None


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
