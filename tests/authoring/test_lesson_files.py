"""A lesson is one folder and a place in one list: its lesson.yml is checked, and nothing else is edited by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from authoring.lesson_files import LessonFileError, load_lessons, read_lesson
from course_utils.lesson_notebooks import dumped, read_notebook
from course_utils.results.store import package_root
from tests.authoring.conftest import run_in

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
    kind: API
    speaks_of: any
    verdict: confirmed
    sentence: It is one.
    condition: Everywhere.
    why: It is Python.
    calls: {runs: "1 + 1"}
    holds: calls["runs"] == "works"
"""
# What somebody writes; records, stored outputs and pages are made by commands.
BY_HAND = {
    "course_utils/lessons/order.yml",
    "notebooks/trial.ipynb",
    "book/reference/trial.md",
    *(f"course_utils/lessons/trial/{name}" for name in ("checks.py", "lesson.yml", "hints.yml")),
}
RENUMBERED = {f"notebooks/{name}.ipynb" for name in ("00_measuring", "01_profiler", "01_trial", "02_profiler", "trial")}
MADE = {"README.md", "book/_toc.yml", "book/claims.md", "book/stored_outputs.json", "book/what_to_use_when.md"}
MADE |= {"book/reference/trial.md"}


def files_of(folder: Path) -> dict[str, bytes]:
    made = {"__pycache__", ".cache"}
    paths = (path for path in folder.rglob("*") if path.is_file() and not made & set(path.parts))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_a_lesson_is_added_in_the_middle_by_its_own_files_and_a_line_of_the_list(small_course: Path):
    before = files_of(small_course)
    folder = small_course / "course_utils/lessons/trial"
    folder.mkdir()
    for name in ("checks.py", "hints.yml"):
        shutil.copy(small_course / "course_utils/lessons/profiler" / name, folder)
    (folder / "lesson.yml").write_text(LESSON, encoding="utf-8")
    notebook = read_notebook(small_course / "notebooks/01_profiler.ipynb")
    title = {"cell_type": "markdown", "id": "title", "metadata": {}, "source": "# 00 · A trial"}
    (small_course / "notebooks/trial.ipynb").write_text(dumped({**notebook, "cells": [title]}), encoding="utf-8")
    order = small_course / "course_utils/lessons/order.yml"
    order.write_text(order.read_text().replace("  - measuring\n", "  - measuring\n  - trial\n"), encoding="utf-8")
    reference = "# A trial\n\n<!-- generated: evidence -->\n<!-- /generated -->\n"
    (small_course / "book/reference/trial.md").write_text(reference, encoding="utf-8")
    written = files_of(small_course)
    assert {name for name in written if before.get(name) != written[name]} == BY_HAND

    renumbered = run_in(small_course, "-m", "authoring.renumber")
    assert "notebooks/trial.ipynb -> 01_trial.ipynb" in renumbered.stdout.splitlines(), renumbered.stderr
    refreshed = run_in(small_course, "-m", "authoring.pages.refresh")
    after = files_of(small_course)
    assert {name for name in after if before.get(name) != after[name]} <= BY_HAND | RENUMBERED | MADE, refreshed.stderr
    rows = after["README.md"].decode().splitlines()
    row = next((line for line in rows if line.startswith("| [01](./notebooks/01_trial.ipynb) |")), refreshed.stderr)
    assert "| Does a new lesson appear everywhere? | It does, [**yes**](./course_utils/records/" in row
    assert "| A lesson is missing | add it | [01 · A trial](" in after["book/what_to_use_when.md"].decode()
    assert 'file: notebooks/01_trial\n        title: "01 · A trial"' in after["book/_toc.yml"].decode()
    page = after["book/claims.md"].decode()
    assert '| <a id="x1"></a>**A trial is a lesson.**' in page
    assert "](reference/trial.md#x1) |" in page
    assert "### A trial is a lesson\n" in after["book/reference/trial.md"].decode()
    assert "trial" in json.loads(after["book/stored_outputs.json"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("title: ", "number: 4\ntitle: "), "number follows from lessons/order.yml"),
        (("id: M3", "id: T8"), "two claims are called T8"),
        (("title: Pinned memory\n", ""), r"pinned_memory/lesson.yml: required field missing.*title"),
        (("title: ", "title: ["), "cannot be read"),
        (("\nexpect:", "\nexpected:"), r"extra fields found \(expected\)"),
    ],
)
def test_a_damaged_file_is_one_clear_error(change: tuple[str, str], message: str, tmp_path: Path):
    shutil.copytree(package_root() / "lessons", tmp_path / "lessons")
    path = tmp_path / "lessons" / "pinned_memory" / "lesson.yml"
    text = path.read_text(encoding="utf-8")
    assert change[0] in text
    path.write_text(text.replace(*change, 1), encoding="utf-8")
    with pytest.raises(LessonFileError, match=message):
        load_lessons(tmp_path / "lessons")


def test_a_notebook_without_a_file_and_a_file_of_another_form_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(tmp_path))
    (tmp_path / "99_surprise.ipynb").touch()
    with pytest.raises(LessonFileError, match="99_surprise: is no lesson of order"):
        load_lessons()
    (tmp_path / "alone").mkdir()
    (tmp_path / "order.yml").write_text("A part:\n  - alone\n", encoding="utf-8")
    (tmp_path / "alone/lesson.yml").write_text("- a list", encoding="utf-8")
    with pytest.raises(LessonFileError, match="begins with title:"):
        read_lesson(tmp_path / "alone/lesson.yml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("  - profiler\n", ""), "profiler: put each lesson into course_utils/lessons/order.yml"),
        (("  - profiler\n", "  - profiler\n  - profiler\n"), "line 7: profiler stands in the list twice"),
        (("  - profiler\n", "  - profiler\n  - nowhere\n"), r"nowhere/lesson.yml cannot be read"),
        (("  - profiler\n", "- profiler\n"), r"line 6: '- profiler' is no part \('Title:'\) and no lesson"),
    ],
)
def test_a_wrong_list_is_one_clear_error(change: tuple[str, str], message: str, tmp_path: Path):
    shutil.copytree(package_root() / "lessons", tmp_path / "lessons")
    path = tmp_path / "lessons/order.yml"
    path.write_text(path.read_text(encoding="utf-8").replace(*change, 1), encoding="utf-8")
    with pytest.raises(LessonFileError, match=message):
        load_lessons(tmp_path / "lessons")
