"""The five-minute path of each lesson: it holds together, it runs alone, and what was edited is kept."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from authoring import __main__ as command
from authoring import demo, demo_lab
from authoring.demo import demo_notebook, demo_times, live_cells, start_up, write_demo
from authoring.teaching import demo_minutes
from course_utils.lesson_notebooks import Lesson, LessonError, find_lesson, find_lessons, notebooks_root, read_notebook
from course_utils.lesson_order import file_name
from tests.made_up_notebooks import code, lesson_of, save, text

LESSONS = find_lessons()
PINNED = file_name("pinned_memory")
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)


def undefined_names(folder: Path, files: dict[str, list[str]]) -> str:
    """What ruff says of names that these cells, run in order from an empty start, would not find; files by name."""
    for name, cells in files.items():
        save(folder / f"{name}.ipynb", *cells)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821,E9", "--output-format=concise"]
    return subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False).stdout


def code_of(notebook: dict[str, Any], tag: str = "") -> list[str]:
    return [
        cell["source"]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code" and (not tag or tag in demo.tags_of(cell))
    ]


def test_each_path_finds_its_names(tmp_path: Path):
    paths = {lesson.name: code_of(demo_notebook(lesson)) for lesson in LESSONS}
    assert "All checks passed" in undefined_names(tmp_path, paths)


def test_each_measurement_finds_its_names_when_the_kernel_has_started(tmp_path: Path):
    files, live = {}, {}
    for lesson in LESSONS:
        path = demo_notebook(lesson)
        for number, cell in enumerate(code_of(path, "experiment")):
            files[f"{lesson.name}-{number}"] = [*start_up(path), cell]
            live[f"{lesson.name}-{number}"] = f".ipynb:cell {len(start_up(path)) + 1}:"
    missing = undefined_names(tmp_path, files).splitlines()
    # Of the live cells: a function that is set up may use what another cell of the path defines.
    missing = {name.partition("-")[0] for name, cell in live.items() for line in missing if f"{name}{cell}" in line}
    assert missing == set()


@each_lesson
def test_the_path_is_the_lessons_own_cells_and_ends_with_its_verdicts(lesson: Lesson):
    path = demo_notebook(lesson)
    sources = {cell["id"]: cell["source"] for cell in read_notebook(lesson.path)["cells"]}
    own = [cell for cell in path["cells"] if cell["id"] in sources]
    assert [cell["id"] for cell in own] == [name for name in sources if name in {cell["id"] for cell in own}]
    assert all(cell["source"] == sources[cell["id"]] for cell in own if cell["cell_type"] == "code")
    words = "\n".join(cell["source"] for cell in path["cells"] if cell["cell_type"] == "markdown")
    assert not any(f"## {heading}" in words for heading in ("Exercise", "Recap"))
    assert "](0" not in words, "a link to another lesson would lead nowhere"
    shown = [cell["source"] for cell in path["cells"][:-1] if cell["cell_type"] == "code"]
    assert any("recorded(" in source for source in shown), "the recorded answer stands before the verdict"
    assert path["cells"][-1]["source"].startswith("## What people say")


@each_lesson
def test_a_five_minute_path_takes_at_most_eight_and_has_been_timed(lesson: Lesson):
    assert 3 < demo_minutes(lesson) <= 8
    advice = f'run `make demo ARGS="{lesson.number:02d} --time"` on a machine that does nothing else'
    assert {*live_cells(demo_notebook(lesson))} == {*demo_times()[lesson.slug]["cells_s"]}, advice


# A lesson of its own

CELLS = [
    text("# 05 · Things\n\n*When are things fast?*\n\n**You need** time.", "demo"),
    code("import math", "experiment", "set-up"),
    text("## The claim\n\nSee [lesson 04](04_other.ipynb) and [the docs](https://docs.org).", "demo"),
    code("raise RuntimeError('too slow for a demo')"),
    code("radius = 2", "demo", "set-up"),
    code("print(round(math.pi * radius**2))", "demo", "experiment"),
    text("## What people say\n\nIt depends.\n\n### Recap\n\nOnce more.", "demo"),
]


def test_what_is_set_up_runs_first_and_is_folded_unless_it_is_shown(tmp_path: Path):
    path = demo_notebook(lesson_of(tmp_path, *CELLS))
    cells = {cell["id"]: cell for cell in path["cells"]}
    assert list(cells) == ["title", "c1", "c2", "c4", "c5", "c6"]
    assert start_up(path) == ["import math", "radius = 2"]
    assert [name for name, cell in cells.items() if "jupyter" in cell["metadata"]] == ["c1"]
    assert live_cells(path) == ["c4", "c5"]
    assert cells["c2"]["source"] == "## The claim\n\nSee lesson 04 and [the docs](https://docs.org)."
    assert cells["c6"]["source"] == "## What people say\n\nIt depends."
    assert "You need" not in cells["title"]["source"]


def test_a_lesson_without_a_path_is_an_error(tmp_path: Path):
    with pytest.raises(LessonError, match="tag its cells demo"):
        demo_notebook(lesson_of(tmp_path, *[{**cell, "metadata": {}} for cell in CELLS]))


# The command line


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the demos of a test go."""
    (tmp_path / "notebooks").symlink_to(notebooks_root(), target_is_directory=True)
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(tmp_path / "notebooks"))
    return tmp_path / "workspace"


def test_the_demo_is_a_copy_that_stays_as_it_was_edited_until_a_new_one_is_asked_for(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    opened: list[tuple[Path, list[str]]] = []
    monkeypatch.setattr(demo_lab, "open_demo", lambda *given: opened.append(given) or 0)
    path = workspace / "demo" / f"{PINNED}.ipynb"
    assert command.main(["demo", "pinned_memory", "--no-browser", "--port=9999", "--", "--Foo.bar=1"]) == 0
    assert opened == [(path, ["--no-browser", "--port=9999", "--Foo.bar=1"])]
    assert (path.parent / "scripts" / "ddp_train.py").is_file()
    notebook = read_notebook(path)
    assert "Where people go wrong" in path.with_suffix(".notes.md").read_text(encoding="utf-8")
    assert "Where people go wrong" not in path.read_text(encoding="utf-8"), "the room sees it"
    notebook["cells"][-1]["metadata"]["run"] = "once"
    path.write_text(json.dumps(notebook))
    assert command.main(["demo", "pinned_memory"]) == 0
    assert "run" not in read_notebook(path)["cells"][-1]["metadata"], "a copy that was only run is made again"
    notebook["cells"][2]["source"] += "\n\nMy own words."
    path.write_text(json.dumps(notebook))
    assert command.main(["demo", "pinned_memory"]) == 0
    assert read_notebook(path) == notebook
    assert f'Kept as you edited it: {PINNED}.ipynb. `make demo ARGS="{PINNED[:2]} --new"`' in capsys.readouterr().out
    assert command.main(["demo", "pinned_memory", "--new"]) == 0
    assert "My own words" not in path.read_text()


def test_a_folder_that_cannot_be_written_is_one_line(workspace: Path, capsys: pytest.CaptureFixture[str]):
    workspace.write_text("a file")
    for arguments in (["demo", "pinned_memory"], ["slides", "pinned_memory", "--output", str(workspace)]):
        assert command.main(arguments) == 1
        assert re.fullmatch(r".*workspace.* cannot be written: .*\.\n", capsys.readouterr().err)


@pytest.mark.parametrize("verb", ["demo", "slides"])
def test_a_wrong_name_is_one_line_with_the_nearest_lesson(verb: str, capsys: pytest.CaptureFixture[str]):
    assert command.main([verb, "pined_memory"]) == 1
    shown = capsys.readouterr().err
    assert f"did you mean '{PINNED}'?" in shown
    assert shown.count("\n") == 1


def test_jupyterlab_gets_settings_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JUPYTER_PATH", "/somewhere/else")
    path = write_demo(find_lesson("pinned_memory"), tmp_path / "workspace" / "demo")
    left_over = path.parent / ".jupyter" / path.stem / "settings" / "mine"
    left_over.mkdir(parents=True)
    variables = demo_lab.settings_of_its_own(path)
    assert "JUPYTER_PATH" not in variables
    home = Path(variables["IPYTHONDIR"]).parent
    assert home.is_relative_to(tmp_path)
    assert {Path(variables[name]).parent for name in variables if re.match(r"JUPYTER.*_DIR$", name)} == {home}
    assert "import torch" in (home / "ipython/profile_default/startup/00-course.py").read_text(encoding="utf-8")
    assert not left_over.exists(), "every demo begins with the same settings"
