"""Copies to damage: of the reference records, and of a course of two lessons."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from authoring import calls
from course_utils.lesson_order import file_name
from course_utils.results import store

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A copy of the reference records."""
    target = tmp_path / "records"
    for machine in store.machines(store.reference_root()):
        shutil.copytree(store.reference_root() / machine, target / machine)
    return target


@pytest.fixture
def none_ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """No earlier process has run a call."""
    monkeypatch.setattr(calls, "_ended", {})
    monkeypatch.setattr(calls, "_KEPT", tmp_path / "calls.json")


# Two lessons that stand, the first with a claim of its own; README shows a record of a third.
_LESSONS = ("measuring", "profiler")
_VERDICT = 'recorded("measuring/training_step", "nvidia-h200").points[0].comparison["all CPU threads"].verdict'
_CLAIM = f"""
  - id: S1
    claim: More threads are faster.
    kind: speed
    speaks_of: any
    why: It is about CPUs.
    verdict: refuted
    sentence: They are not.
    condition: In a small step.
    holds: '{_VERDICT} == "FASTER"'
"""
_README = "# A course\n\n" + "".join(
    f"<!-- generated: {name} -->\n<!-- /generated -->\n\n" for name in ("card", "lessons")
)


@pytest.fixture(scope="session")
def _two_lessons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("course")
    others = {path.name for path in (ROOT / "course_utils/lessons").glob("*/") if path.name not in _LESSONS}

    def left_out(of: str, names: list[str]) -> set[str]:
        kept = (*_LESSONS, "your_own_program")
        records = {name for name in names if name.endswith(".json") and Path(name).stem not in kept}
        return (others if Path(of).name == "lessons" else records if "records" in Path(of).parts else set()) | {
            name for name in names if name == "__pycache__"
        }

    for name in ("authoring", "course_utils", "own_program"):
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    for name in ("book/images", "book/reference", "notebooks"):
        (folder / name).mkdir(parents=True)
    for slug in _LESSONS:
        shutil.copy(ROOT / f"book/reference/{slug}.md", folder / "book/reference")
    for number, slug in enumerate(_LESSONS):
        shutil.copy(ROOT / f"notebooks/{file_name(slug)}.ipynb", folder / f"notebooks/{number:02d}_{slug}.ipynb")
    order = "Measure before you optimise:\n  - measuring\n  - profiler\nIn practice:\n"
    (folder / "course_utils/lessons/order.yml").write_text(order, encoding="utf-8")
    path = folder / "course_utils/lessons/measuring/lesson.yml"
    lesson = yaml.safe_load(path.read_text(encoding="utf-8"))
    lesson["claims"] = yaml.safe_load(_CLAIM)
    path.write_text(yaml.dump(lesson, sort_keys=False), encoding="utf-8")
    shutil.copy(ROOT / "book/stored_outputs.json", folder / "book")
    (folder / "README.md").write_text(_README, encoding="utf-8")
    done = run_in(folder, "-m", "authoring.pages.refresh")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def small_course(_two_lessons: Path, tmp_path: Path) -> Path:
    """A course of two lessons, up to date, with copies of the programs that make its pages."""
    return shutil.copytree(_two_lessons, tmp_path / "course", ignore=shutil.ignore_patterns("__pycache__"))


def run_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder of a course, with that course's programs."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
