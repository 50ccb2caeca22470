"""Lessons as files: finding them, their experiments, and which code these have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from course_utils.lesson_notebooks import (
    LessonError,
    experiments,
    find_lesson,
    find_lessons,
    needs,
    notebooks_root,
)
from course_utils.results.code_hash import code_hash
from tests.made_up_notebooks import code, lesson_of, save, text

# Finding


@pytest.fixture
def course(tmp_path: Path) -> Path:
    save(tmp_path / "00_measuring.ipynb", text("# 00 · Measuring honestly\n\n*Which is faster?*"))
    save(tmp_path / "04_pinned_memory.ipynb", text("# 04 · Pinned memory"), "compare({}, name='pinned_memory/copy')")
    save(tmp_path / "11_data_loader.ipynb", "x = 1")
    save(tmp_path / "scratch.ipynb", "x = 1")
    save(tmp_path / ".ipynb_checkpoints" / "00_measuring-checkpoint.ipynb", "x = 1")
    return tmp_path


def test_lessons_are_found_in_order_with_their_titles(course: Path):
    lessons = find_lessons(course)
    assert [(lesson.number, lesson.slug, lesson.title) for lesson in lessons] == [
        (0, "measuring", "Measuring honestly"),
        (4, "pinned_memory", "Pinned memory"),
        (11, "data_loader", "Data loader"),
    ]
    assert lessons[1].name == "04_pinned_memory"
    assert lessons[1].path == course / "04_pinned_memory.ipynb"


@pytest.mark.parametrize("name", ["04", "pinned_memory", "notebooks/04_pinned_memory.ipynb"])
def test_a_lesson_is_found_by_each_of_its_names(course: Path, name: str):
    assert find_lesson(name, course).slug == "pinned_memory"


def test_an_unknown_lesson_is_an_error_that_lists_the_choices(course: Path):
    with pytest.raises(LessonError, match=r"mean '04_pinned_memory'\?\)\. The lessons are: 00_measuring, 04_pinned"):
        find_lesson("pined_memory", course)


def test_a_folder_that_makes_no_sense_is_an_error_that_names_the_file(course: Path):
    save(course / "04_streams.ipynb", "x = 1")
    with pytest.raises(LessonError, match=r"04_pinned_memory.ipynb and 04_streams.ipynb share"):
        find_lessons(course)
    for content, message in (("{", "not valid JSON"), ('{"nbformat": 3, "cells": []}', "format 4")):
        (course / "04_streams.ipynb").write_text(content)
        with pytest.raises(LessonError, match=rf"04_streams.ipynb is .*{message}"):
            find_lessons(course)


def test_the_folder_is_chosen_by_the_environment(course: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(course))
    assert notebooks_root() == course
    assert find_lesson("4").slug == "pinned_memory"
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(course / "absent"))
    with pytest.raises(LessonError, match="Correct or unset COURSE_NOTEBOOKS"):
        find_lessons()


# Experiments


def test_experiments_are_named_in_order_with_what_they_need(tmp_path: Path):
    lesson = lesson_of(
        tmp_path,
        "first = compare(cases, name='things/copy')",
        text("compare(cases, name='things/prose')"),
        code(
            "def again():\n    return [sweep(cases, over={'n': [1]}, name='things/sizes'),\n"
            "            measure(f, name='things/one')]",
            "experiment",
            "needs-cuda",
        ),
        "# compare(cases, name='things/comment')\ncompare(cases, name='other/lesson')\nconfigure(name='plain')",
        "compare(cases, name=computed)\nceilings('things/limits')",
    )
    assert experiments(lesson) == ["things/copy", "things/sizes", "things/one", "things/limits"]
    assert needs(lesson) == {"things/sizes": ("cuda",), "things/one": ("cuda",)}


def test_a_name_that_is_used_twice_is_an_error(tmp_path: Path):
    with pytest.raises(LessonError, match="two experiments named 'things/x'"):
        experiments(lesson_of(tmp_path, "compare(c, name='things/x')", "measure(f, name='things/x')"))


# Which code an experiment has

CELL = "# measure it\nresult = compare(cases(), name='things/copy')\nrun_ranks('scripts/train.py', name='things/ranks')"


@pytest.fixture
def hash_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Gives the hash of things/copy with files changed: of the lesson's folder, of its programs, or cells."""
    package, notebooks = tmp_path / "course_utils", tmp_path / "notebooks"
    monkeypatch.setattr("course_utils.results.code_hash.package_root", lambda: package)
    files = {
        package / "lessons" / "things" / "cases.py": "def cases():\n    return {}\n",
        package / "lessons" / "things" / "checks.py": "def check():\n    pass\n",
        package / "lessons" / "others" / "cases.py": "x = 1\n",
        notebooks / "scripts" / "train.py": "steps = 10\n",
        notebooks / "scripts" / "other.py": "steps = 10\n",
    }
    for path, source in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")

    def hashed(cell: str = CELL, before: str = "n = 1", **changed: str) -> str:
        for path, source in files.items():
            path.write_bytes(changed.get(f"{path.parent.name}_{path.stem}", source).encode())
        return code_hash(lesson_of(notebooks, before, cell), "things/copy")

    return hashed


@pytest.mark.parametrize(
    "changed",
    [
        {"before": "n = 2"},
        {"cell": CELL.replace("\n", "  \n") + "\n\n"},
        {"things_cases": "def cases():\r\n    return {}\r\n"},
        {"things_checks": "def check():\n    return 1\n"},
        {"others_cases": "x = 2\n"},
        {"scripts_other": "steps = 20\n"},
    ],
)
def test_what_is_not_measured_is_no_change(hash_with: Callable[..., str], changed: dict[str, str]):
    assert hash_with(**changed) == hash_with()


@pytest.mark.parametrize(
    "changed",
    [
        {"cell": CELL.replace("cases()", "cases(2)")},
        {"things_cases": "def cases():\n    return {1: 2}\n"},
        {"scripts_train": "steps = 20\n"},
    ],
)
def test_the_cell_the_lessons_folder_and_the_programs_it_runs_are_its_code(
    hash_with: Callable[..., str], changed: dict[str, str]
):
    assert hash_with(**changed) != hash_with()


def test_an_unknown_experiment_is_an_error_that_lists_the_choices(tmp_path: Path):
    lesson = lesson_of(tmp_path, "compare(c, name='things/copy')", "measure(f, name='things/sizes')")
    with pytest.raises(LessonError, match=r"mean 'things/copy'\?\)\. It has: things/copy, things/sizes"):
        code_hash(lesson, "things/copie")
