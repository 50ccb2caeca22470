"""The course from its wheel, in an empty folder: as on a hosted notebook. There the lessons run under ``--nbval``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from course_utils import lesson_notebooks
from course_utils.lesson_order import file_name
from course_utils.results import store
from course_utils.results.code_hash import code_hash
from tests import wheels

ROOT = Path(__file__).resolve().parents[1]
PINNED = file_name("pinned_memory")
Course = Callable[..., subprocess.CompletedProcess[str]]


def files(folder: Path) -> set[str]:
    """What a folder holds, without what running Python leaves behind."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in paths if not {"__pycache__", ".ipynb_checkpoints"} & set(path.parts)}


@pytest.fixture(scope="module")
def target() -> Path:
    return wheels.installed()


@pytest.fixture
def course(target: Path, tmp_path: Path) -> Course:
    """Runs ``course`` in an empty folder, with no clone in reach."""

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "own_program.command", *arguments]
        variables = wheels.variables(target, COLUMNS="200", **more)
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=variables, check=False)

    return run


def test_the_wheel_holds_the_package_and_the_lessons(target: Path) -> None:
    package = {str(Path(folder, name)) for folder in ("course_utils", "own_program") for name in files(ROOT / folder)}
    package = {name for name in package if not name.startswith("own_program/page/")}
    notebooks = {str(Path("course_utils", "notebooks", name)) for name in files(ROOT / "notebooks")}
    installed = {name for name in files(target) if ".dist-info/" not in name and not name.startswith("bin/")}
    assert installed == package | notebooks


def test_check_finds_every_lesson_and_asks_for_nothing_that_a_clone_has(course: Course) -> None:
    check = course("check")
    assert check.returncode == 0, check.stdout + check.stderr
    for lesson in lesson_notebooks.find_lessons():
        assert f"{lesson.name} " in check.stdout
    assert "jupyterlab" not in check.stdout
    assert "make lab" not in check.stdout


def test_a_lesson_is_copied_with_the_programs_that_it_runs_and_replaces_nothing(course: Course, tmp_path: Path) -> None:
    assert course("copy", PINNED[:2]).stdout == f"{PINNED}.ipynb\n"
    assert files(tmp_path) == {f"{PINNED}.ipynb"}
    (tmp_path / f"{PINNED}.ipynb").write_text("mine")
    again = course("copy", "pinned_memory", "ddp")
    assert f"{PINNED}.ipynb is here already, and stays as it is" in again.stdout
    assert (tmp_path / f"{PINNED}.ipynb").read_text() == "mine"
    programs = {f"scripts/{name}" for name in files(ROOT / "notebooks" / "scripts")}
    assert files(tmp_path) == {f"{PINNED}.ipynb", f"{file_name('ddp')}.ipynb", *programs}


def test_a_lesson_is_recorded_and_compared(course: Course, target: Path, tmp_path: Path) -> None:
    package = files(target)
    record = course("record", "pinned_memory")
    assert record.returncode == 0, record.stdout + record.stderr
    (path,) = tmp_path.glob("results/*/pinned_memory.json")
    assert f"Records are in {path.parent}." in record.stdout
    assert files(target) == package
    # What is sent back belongs to the lesson as the clone has it.
    made, lesson = store.load_lesson(path), lesson_notebooks.find_lesson("pinned_memory")
    assert made.experiments
    for name, experiment in made.experiments.items():
        assert experiment.code_hash == code_hash(lesson, name)
    reference = next((target / "course_utils" / "records").glob("*/pinned_memory.json"))
    compare = course("compare", f"reference:{reference.parent.name}", f"own:{path.parent.name}")
    assert compare.returncode == 0, compare.stderr
    assert compare.stdout.startswith("A: ")


def test_a_torch_that_is_too_old_is_said_in_words(target: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '2.9.0+cu128'")
    code = "from course_utils import compare"
    variables = wheels.variables(target)
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=variables, check=False
    )
    assert "ImportError: this is torch 2.9.0+cu128, and the course needs 2.11 or newer" in run.stderr
