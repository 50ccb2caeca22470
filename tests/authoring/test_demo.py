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
from authoring import demo
from authoring.demo import demo_notebook, start_up
from course_utils.lesson_notebooks import find_lessons, notebooks_root, read_notebook
from course_utils.lesson_order import file_name
from tests.made_up_notebooks import code, lesson_of, save, text

LESSONS = find_lessons()
PINNED = file_name("pinned_memory")


def code_of(notebook: dict[str, Any], tag: str = "") -> list[str]:
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [cell["source"] for cell in cells if not tag or tag in demo.tags_of(cell)]


def test_each_path_finds_its_names_and_each_measurement_when_the_kernel_has_started(tmp_path: Path):
    first_checked = {}
    for lesson in LESSONS:
        path = demo_notebook(lesson)
        save(tmp_path / f"{lesson.name}.ipynb", *code_of(path))
        for number, cell in enumerate(code_of(path, "experiment")):
            save(tmp_path / f"{lesson.name}-{number}.ipynb", *start_up(path), cell)
            first_checked[f"{lesson.name}-{number}.ipynb"] = len(start_up(path)) + 1
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821,E9", "--output-format=concise"]
    said = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False).stdout
    assert "Found" in said or "All checks passed" in said
    # A function that is set up may use what another cell of the path defines.
    missing = re.findall(r"([\w-]+\.ipynb):cell (\d+):", said)
    assert [(name, cell) for name, cell in missing if int(cell) >= first_checked.get(name, 0)] == [], said


CELLS = [
    text("# 05 · Things\n\n*When are things fast?*\n\n**You need** time.", "demo"),
    code("import math", "experiment", "set-up"),
    text("## The claim\n\nSee [lesson 04](04_other.ipynb) and [the docs](https://docs.org).", "demo"),
    code("raise RuntimeError('too slow for a demo')"),
    code("radius = 2", "demo", "set-up"),
    code("print(round(math.pi * radius**2))", "demo", "experiment"),
    text("## What people say\n\nIt depends.\n\nNext: [06 · More](06_more.ipynb), of it.", "demo"),
]


def test_what_is_set_up_runs_first_and_is_folded_unless_it_is_shown(tmp_path: Path):
    path = demo_notebook(lesson_of(tmp_path, *CELLS))
    cells = {cell["id"]: cell for cell in path["cells"]}
    assert list(cells) == ["title", "c1", "c2", "c4", "c5", "c6"]
    assert start_up(path) == ["import math", "radius = 2"]
    assert [name for name, cell in cells.items() if "jupyter" in cell["metadata"]] == ["c1"]
    assert cells["c2"]["source"] == "## The claim\n\nSee lesson 04 and [the docs](https://docs.org)."
    assert cells["c6"]["source"] == "## What people say\n\nIt depends."
    assert "You need" not in cells["title"]["source"]


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
    monkeypatch.setattr(demo, "open_demo", lambda *given: opened.append(given) or 0)
    path = workspace / "demo" / f"{PINNED}.ipynb"
    assert command.main(["demo", "pinned_memory", "--no-browser", "--port=9999", "--", "--Foo.bar=1"]) == 0
    assert opened == [(path, ["--no-browser", "--port=9999", "--Foo.bar=1"])]
    assert (path.parent / "scripts" / "ddp_train.py").is_file()
    notebook = read_notebook(path)
    assert "Where people go wrong" in path.with_suffix(".notes.md").read_text(encoding="utf-8")
    assert "Where people go wrong" not in path.read_text(encoding="utf-8"), "the room sees it"
    notebook["cells"][2]["source"] += "\n\nMy own words."
    path.write_text(json.dumps(notebook))
    assert command.main(["demo", "pinned_memory"]) == 0
    assert read_notebook(path) == notebook
    assert f'Kept as you edited it: {PINNED}.ipynb. `make demo ARGS="{PINNED[:2]} --new"`' in capsys.readouterr().out
    assert command.main(["demo", "pinned_memory", "--new"]) == 0
    assert "My own words" not in path.read_text()
