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
)
from course_utils.results.code_hash import code_hash
from tests.made_up_notebooks import code, lesson_of, save, text

# Finding


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(tmp_path))
    save(tmp_path / "00_measuring.ipynb", text("# 00 · Measuring honestly\n\n*Which is faster?*"))
    save(tmp_path / "04_pinned_memory.ipynb", text("# 04 · Pinned memory"), "compare({}, name='pinned_memory/copy')")
    save(tmp_path / "scratch.ipynb", "x = 1")
    return tmp_path


def test_lessons_are_found_in_order_with_their_titles_and_by_each_of_their_names(course: Path):
    assert [(lesson.number, lesson.slug, lesson.title) for lesson in find_lessons()] == [
        (0, "measuring", "Measuring honestly"),
        (4, "pinned_memory", "Pinned memory"),
    ]
    for name in ("04", "pinned_memory", "notebooks/04_pinned_memory.ipynb"):
        assert find_lesson(name).slug == "pinned_memory"
    with pytest.raises(LessonError, match=r"mean '04_pinned_memory'\?\)\. The lessons are: 00_measuring, 04_pinned"):
        find_lesson("pined_memory")


def test_a_folder_that_makes_no_sense_is_an_error_that_names_the_file(course: Path):
    save(course / "04_streams.ipynb", "x = 1")
    with pytest.raises(LessonError, match=r"04_pinned_memory.ipynb and 04_streams.ipynb share"):
        find_lessons()
    (course / "04_streams.ipynb").write_text("{")
    with pytest.raises(LessonError, match=r"04_streams.ipynb is damaged: it is no notebook"):
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


# Which code an experiment has

CELL = "result = compare(cases(), name='things/copy')\nrun_ranks('scripts/train.py', name='things/ranks')"


@pytest.fixture
def hash_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Gives the hash of things/copy with one text changed: of the cell before it, its own, or a file."""
    package, notebooks = tmp_path / "course_utils", tmp_path / "notebooks"
    monkeypatch.setattr("course_utils.results.code_hash.package_root", lambda: package)
    files = {
        package / "lessons" / "things" / "cases.py": "def cases():\n    return {}\n",
        package / "lessons" / "things" / "checks.py": "def check():\n    pass\n",
        package / "lessons" / "others" / "cases.py": "x = 1\n",
        notebooks / "scripts" / "train.py": "steps = 10\n",
        notebooks / "scripts" / "other.py": "steps = 10\n",
    }

    def hashed(cell: str = CELL, before: str = "n = 1", **changed: str) -> str:
        for path, source in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(changed.get(f"{path.parent.name}_{path.stem}", source).encode())
        return code_hash(lesson_of(notebooks, before, cell), "things/copy")

    return hashed


@pytest.mark.parametrize(
    ("changed", "is_its_code"),
    [
        ({"before": "n = 2"}, False),
        ({"cell": CELL.replace("\n", "  \n") + "\n\n"}, False),
        ({"things_cases": "def cases():\r\n    return {}\r\n"}, False),
        ({"things_checks": "def check():\n    return 1\n"}, False),
        ({"others_cases": "x = 2\n"}, False),
        ({"scripts_other": "steps = 20\n"}, False),
        ({"cell": CELL.replace("cases()", "cases(2)")}, True),
        ({"things_cases": "def cases():\n    return {1: 2}\n"}, True),
        ({"scripts_train": "steps = 20\n"}, True),
    ],
)
def test_the_cell_the_lessons_folder_and_the_programs_it_runs_are_its_code(
    hash_with: Callable[..., str], changed: dict[str, str], is_its_code: bool
):
    assert (hash_with(**changed) != hash_with()) is is_its_code
