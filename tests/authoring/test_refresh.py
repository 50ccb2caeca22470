"""What is committed and follows from records is up to date, and parting from them is noticed: by these tests, by
``make refresh``, and by a build of the book.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from authoring.claims import judge
from authoring.lesson_files import load_lessons
from authoring.pages import build, generated, refresh, stored_outputs
from authoring.pages import readme as readme_page
from course_utils.lesson_notebooks import dumped, read_notebook
from course_utils.lesson_order import file_name
from tests.authoring.conftest import run_in
from tests.made_up_records import edit_record
from tools import verbs

ROOT = Path(__file__).resolve().parents[2]
LESSONS = load_lessons()


def test_everything_committed_follows_from_the_records():
    assert refresh.stale(LESSONS) == [], "run `make refresh` and commit what changes"


def test_the_repository_is_at_most_25_mb():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is no git checkout")
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert len(files) > 100
    assert sum(file.stat().st_size for file in files if file.is_file()) <= 25 * 2**20


# Records that part from the pages


def test_a_record_that_is_gone_stops_the_build(records: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(records))
    for path in records.glob("*/caching_allocator.json"):
        path.unlink()
    with pytest.raises(generated.BookError, match=r"no machine has a record of .*caching_allocator/gap") as stopped:
        build.check(LESSONS, [])
    assert f'make record ARGS="{file_name("caching_allocator")} --reference"' in str(stopped.value)


def test_a_stated_verdict_that_no_longer_follows_stops_the_build_and_is_named():
    claim = next(claim for lesson in LESSONS for claim in lesson.claims if claim.id == "T8")
    stated = dataclasses.replace(claim, verdict="confirmed")
    with pytest.raises(generated.BookError) as stopped:
        build.check(LESSONS, [judge(stated)])
    assert f"\"{claim.sentence}\" The ledger states 'confirmed'" in str(stopped.value)


def test_an_edited_record_makes_its_lesson_stale(records: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(records))
    assert stored_outputs.stale_notebooks(LESSONS) == []
    path = next(records.glob("*/pinned_memory.json"))
    edit_record(path, lambda experiments: experiments.pop("pinned_memory/arrived_batch"))
    assert [lesson.slug for lesson in stored_outputs.stale_notebooks(LESSONS)] == ["pinned_memory"]


def test_the_check_names_what_is_out_of_date_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    readme, stamps = tmp_path / "README.md", tmp_path / "stored_outputs.json"
    readme.write_text(refresh.README.read_text(encoding="utf-8").replace("](./notebooks/", "](./elsewhere/"))
    stamps.write_text(stored_outputs.STAMPS.read_text().replace('"measuring": "', '"measuring": "0'))
    before = [path.read_bytes() for path in (readme, stamps)]
    monkeypatch.setattr(refresh, "ROOT", tmp_path)
    monkeypatch.setattr(refresh, "README", readme)
    monkeypatch.setattr(readme_page, "README", readme)
    monkeypatch.setattr(stored_outputs, "STAMPS", stamps)
    assert refresh.main(["--check"]) == 1
    first, *out_of_date = capsys.readouterr().err.splitlines()
    assert "make refresh" in first
    assert out_of_date == ["  the stored outputs of notebooks/00_measuring.ipynb", "  README.md"]
    assert [path.read_bytes() for path in (readme, stamps)] == before


# The command, on a course of two lessons


def stale_notebook(folder: Path, source: str, output: str) -> Path:
    """A lesson of which one cell runs, whose stored output was made from other records."""
    notebook, stamps = folder / "notebooks/00_measuring.ipynb", folder / "book/stored_outputs.json"
    cell: dict[str, Any] = {
        "cell_type": "code",
        "execution_count": 1,
        "id": "shows",
        "metadata": {"tags": ["stable"]},
        "outputs": [{"output_type": "stream", "name": "stdout", "text": [f"{output}\n"]}],
        "source": source,
    }
    content = read_notebook(notebook)
    title, *rest = content["cells"]
    for other in rest:  # they stay, for claims read the lesson's experiments, but keep no output
        other["metadata"]["tags"] = [tag for tag in other["metadata"].get("tags", []) if tag != "stable"]
    notebook.write_text(dumped({**content, "cells": [title, cell, *rest]}), encoding="utf-8")
    stamps.write_text(stamps.read_text(encoding="utf-8").replace('"measuring": "', '"measuring": "0'))
    return notebook


def test_refresh_mends_what_is_stale_and_runs_no_other_notebook(small_course: Path):
    # The kernel runs nothing of the cells below.
    skip = "get_ipython().input_transformers_cleanup.append(lambda lines: [])"
    source = f"from course_utils import recorded\n\nprint(recorded('measuring/training_step').kind)\n{skip}"
    notebook = stale_notebook(small_course, source, "an outdated text")
    page = small_course / "README.md"
    page.write_text(page.read_text(encoding="utf-8").replace("](./notebooks/", "](./elsewhere/"), encoding="utf-8")

    done = run_in(small_course, "-m", "authoring.pages.refresh")
    assert done.stdout.count("running ") == 1, done.stderr
    changed = done.stdout.splitlines()[-1]
    assert changed.startswith("Changed: "), done.stderr
    assert all(name in changed for name in ("00_measuring.ipynb", "book/stored_outputs.json", "README.md"))
    assert read_notebook(notebook)["cells"][1]["outputs"][0]["text"] == "sweep\n"
    assert "](./elsewhere/" not in page.read_text(encoding="utf-8")


def test_a_notebook_that_fails_is_named_and_left_as_it_was(small_course: Path):
    notebook = stale_notebook(small_course, "1 / 0", "fine once")
    before = notebook.read_bytes()
    done = run_in(small_course, "-m", "authoring.pages.refresh")
    assert done.returncode == 1
    assert "00_measuring.ipynb failed, and was left as it was" in done.stderr
    assert notebook.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "code", "runs"),
    [
        (["--reference"], 0, ["record", "refresh"]),
        (["--reference"], 130, ["record"]),
        (["04"], 0, ["record"]),
    ],
)
def test_recording_a_reference_ends_with_a_refresh(
    arguments: list[str], code: int, runs: list[str], monkeypatch: pytest.MonkeyPatch
):
    started = []

    def start(command: list) -> int:
        name = "refresh" if "authoring.pages.refresh" in command else command[3]
        started.append(name)
        return code if name == "record" else 0

    monkeypatch.setattr(verbs, "prepare", lambda _: Path(sys.executable))
    monkeypatch.setattr(verbs, "_run", start)
    assert verbs.record(arguments) == code
    assert started == runs


def test_what_stands_between_marks_is_replaced_and_nothing_else():
    page = "before\n<!-- generated: a -->\nold\n<!-- /generated -->\nafter \\1\n"
    filled = generated.fill(page, "a", "new \\1\n")
    assert filled == "before\n<!-- generated: a -->\n\nnew \\1\n\n<!-- /generated -->\nafter \\1\n"
    assert generated.fill(filled, "a", "new \\1\n") == filled
    with pytest.raises(generated.BookError, match="<!-- generated: lessons -->"):
        generated.fill("no marks here", "lessons", "a table\n")
