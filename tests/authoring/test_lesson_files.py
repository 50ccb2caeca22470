"""A lesson is one folder and a place in one list: its lesson.yml is checked, and nothing else is edited by hand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from course_utils.lesson_notebooks import read_notebook
from course_utils.lesson_order import file_name
from tests.made_up_notebooks import code, save, text

ROOT = Path(__file__).resolve().parents[2]
LESSON = """
title: A trial
question: "Does a new lesson appear everywhere?"
answer:
  says: It does, {number}.
  number: 'recorded("measuring/known_answers", "amd-epyc-2-cores").rounds > 0'
use_when: {symptom: A lesson is missing, try: add it}
claims:
  - id: X1
    claim: A trial is a lesson.
    speaks_of: any
    verdict: confirmed
    sentence: It is one.
    why: It is Python.
    calls: {runs: "1 + 1"}
    holds: calls["runs"] == "works"
"""
MARKS = "<!-- generated: {} -->\n<!-- /generated -->\n\n"
# What is edited by hand is there before; records are measured. The rest is made by two commands.
MADE = {"README.md", "book/_toc.yml", "book/claims.md", "book/stored_outputs.json", "book/what_to_use_when.md"}
MADE |= {"book/reference/trial.md", "notebooks/00_trial.ipynb", "notebooks/01_measuring.ipynb"}
MADE |= {"notebooks/00_measuring.ipynb", "notebooks/trial.ipynb"}


def run_in(folder: Path, module: str) -> subprocess.CompletedProcess[str]:
    """Run a program of a course."""
    command = [sys.executable, "-m", module]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def files_of(folder: Path) -> dict[str, bytes]:
    made = {"__pycache__", ".cache"}
    paths = (path for path in folder.rglob("*") if path.is_file() and not made & set(path.parts))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def small_course(tmp_path: Path) -> Path:
    """A course of one small lesson, with copies of the programs that make its pages."""
    course, kept = tmp_path / "course", ("measuring", "your_own_program")

    def left_out(of: str, names: list[str]) -> set[str]:
        others = {name for name in names if Path(of).name == "lessons" and (Path(of) / name).is_dir()} - {"measuring"}
        records = {name for name in names if "records" in Path(of).parts and name.endswith(".json")}
        return others | {name for name in records if Path(name).stem not in kept} | {"__pycache__"}

    for name in ("authoring", "course_utils", "own_program"):
        shutil.copytree(ROOT / name, course / name, ignore=left_out)
    measuring = course / "course_utils/lessons/measuring/lesson.yml"
    measuring.write_text(measuring.read_text(encoding="utf-8").partition("\nclaims:")[0], encoding="utf-8")
    # The lesson's own experiments, for what reads its record, without what takes long to run.
    lesson = read_notebook(ROOT / f"notebooks/{file_name('measuring')}.ipynb")
    cells = [{**cell, "metadata": {}, "outputs": []} for cell in lesson["cells"] if cell["cell_type"] == "code"]
    save(course / "notebooks/00_measuring.ipynb", text("# 00 · Measuring\n\nNext: nothing."), *cells)
    (course / "README.md").write_text(
        "# A course\n\n" + MARKS.format("card") + MARKS.format("lessons"), encoding="utf-8"
    )
    return course


def test_a_lesson_is_added_by_its_own_files_and_a_line_of_the_list(small_course: Path):
    folder = small_course / "course_utils/lessons/trial"
    folder.mkdir()
    (folder / "lesson.yml").write_text(LESSON, encoding="utf-8")
    shown = code("from course_utils import recorded\n\nprint(recorded('measuring/training_step').kind)", "stable")
    save(small_course / "notebooks/trial.ipynb", text("# 00 · A trial"), shown)
    order = "Measure before you optimise:\n  - trial\n  - measuring\n"
    (small_course / "course_utils/lessons/order.yml").write_text(order, encoding="utf-8")
    (small_course / "book/reference").mkdir(parents=True)
    (small_course / "book/reference/trial.md").write_text("# A trial\n\n" + MARKS.format("evidence"), encoding="utf-8")
    before = files_of(small_course)

    renumbered = run_in(small_course, "authoring.renumber")
    assert "notebooks/trial.ipynb -> 00_trial.ipynb" in renumbered.stdout.splitlines(), renumbered.stderr
    refreshed = run_in(small_course, "authoring.pages.refresh")
    assert refreshed.returncode == 0, refreshed.stderr
    after = files_of(small_course)
    assert {name for name in {*before, *after} if before.get(name) != after.get(name)} <= MADE
    trial = read_notebook(small_course / "notebooks/00_trial.ipynb")
    assert trial["cells"][1]["outputs"][0]["text"] == "sweep\n", "it was run"
    assert {"trial", "measuring"} == {*json.loads(after["book/stored_outputs.json"])}
    row = next(line for line in after["README.md"].decode().splitlines() if "(./notebooks/00_trial.ipynb)" in line)
    assert "| Does a new lesson appear everywhere? | It does, [**yes**](./course_utils/records/" in row
    assert "| A lesson is missing | add it | [00 · A trial](" in after["book/what_to_use_when.md"].decode()
    assert 'file: notebooks/00_trial\n        title: "00 · A trial"' in after["book/_toc.yml"].decode()
    assert '| <a id="x1"></a>**A trial is a lesson.**<br>It is one. |' in after["book/claims.md"].decode()
    assert "### A trial is a lesson\n" in after["book/reference/trial.md"].decode()
