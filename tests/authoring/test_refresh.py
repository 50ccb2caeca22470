"""What is committed and follows from records is up to date, and parting from them is noticed: by these tests, by
``make refresh``, and by a build of the book.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from authoring.pages import build, claims_page, generated, lesson_list, refresh, stored_outputs
from course_utils.records import store
from course_utils.records.notebook_files import dumped, read_notebook
from tools import verbs

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20


@pytest.fixture(scope="module")
def lessons() -> list[lesson_list.Lesson]:
    return lesson_list.load_lessons()


def test_everything_committed_follows_from_the_records(lessons: list[lesson_list.Lesson]):
    assert refresh.stale(lessons) == [], "run `make refresh` and commit what changes"


def test_the_repository_is_at_most_25_mb():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is no git checkout")
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert len(files) > 100
    assert sum(file.stat().st_size for file in files if file.is_file()) <= 25 * MIB


# A copy to damage


@pytest.fixture
def copied_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the reference records, which this process reads."""
    folder = tmp_path / "records"
    shutil.copytree(store.reference_root(), folder)
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(folder))
    return folder


def edit(record: Path, change: Callable[[dict], None]) -> None:
    content = json.loads(record.read_text(encoding="utf-8"))
    change(content["experiments"])
    record.write_text(json.dumps(content), encoding="utf-8")


def a_record(folder: Path, slug: str) -> Path:
    return next(folder.glob(f"*/{slug}.json"))


def test_a_record_that_is_gone_stops_the_build(copied_records: Path, lessons: list[lesson_list.Lesson]):
    for path in copied_records.glob("*/caching_allocator.json"):
        path.unlink()
    with pytest.raises(generated.BookError, match=r"no machine has a record of .*caching_allocator/no_cap") as stopped:
        build.check(lessons, claims_page.judge_all())
    assert "11_caching_allocator.ipynb" in str(stopped.value)
    assert 'make record ARGS="11_caching_allocator --reference"' in str(stopped.value)


def test_a_stated_verdict_that_no_longer_follows_stops_the_build_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lessons: list[lesson_list.Lesson]
):
    entries = yaml.safe_load(claims_page.LEDGER.read_text(encoding="utf-8"))
    claim = next(entry for entry in entries if entry["id"] == "T8")
    claim["verdict"] = "confirmed"
    changed = tmp_path / "claims.yml"
    changed.write_text(yaml.safe_dump(entries), encoding="utf-8")
    monkeypatch.setattr(claims_page, "LEDGER", changed)
    with pytest.raises(generated.BookError, match="T8") as stopped:
        build.check(lessons, claims_page.judge_all())
    assert claim["sentence"].strip() in str(stopped.value)


def test_an_edited_record_makes_its_lesson_and_the_pages_stale(copied_records: Path, lessons: list[lesson_list.Lesson]):
    def speak_of_another_machine(experiments: dict) -> None:
        experiments.pop("pinned_memory/first_touch")

    assert stored_outputs.stale_notebooks(lessons) == []
    edit(a_record(copied_records, "pinned_memory"), speak_of_another_machine)
    assert [lesson.slug for lesson in stored_outputs.stale_notebooks(lessons)] == ["pinned_memory"]
    assert "the stored outputs of notebooks/04_pinned_memory.ipynb" in refresh.stale(lessons)


def test_a_lesson_that_shows_another_ones_records_is_stale_with_them(
    copied_records: Path, lessons: list[lesson_list.Lesson], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lesson = next(lesson for lesson in lessons if lesson.slug == "ddp")
    notebook = read_notebook(lesson.notebook)
    shown = tmp_path / "17_ddp.ipynb"
    monkeypatch.setattr(lesson_list.Lesson, "notebook", property(lambda _: shown))
    hashes = []
    for source in ('recorded("ddp/loss")', 'recorded("fsdp/loss")'):
        notebook["cells"][-1] = {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "id": "a"}
        shown.write_text(dumped(notebook), encoding="utf-8")
        hashes.append(stored_outputs.records_hash(lesson))
    assert hashes[0] != hashes[1]


# The commands, on a copy of the repository


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    for name in ("authoring", "book", "notebooks"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("_build", "_generated", "mathjax", "*.tmp")
        )
    shutil.copy(ROOT / "README.md", folder / "README.md")
    return folder


def run_refresh(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "authoring.pages.refresh", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_refresh_mends_what_is_stale_runs_no_other_notebook_and_then_has_nothing_to_do(copied: Path):
    notebook, stamps, page = (
        copied / name for name in ("notebooks/04_pinned_memory.ipynb", "book/stored_outputs.json", "README.md")
    )
    # A lesson of one cell: running a whole one would only take longer.
    cell = {
        "cell_type": "code",
        "execution_count": 1,
        "id": "shows",
        "metadata": {"tags": ["stable"]},
        "outputs": [{"output_type": "stream", "name": "stdout", "text": ["an outdated number\n"]}],
        "source": "from course_utils import recorded\n\nprint(recorded('pinned_memory/first_touch').rounds)",
    }
    notebook.write_text(dumped({**read_notebook(notebook), "cells": [cell]}), encoding="utf-8")
    stamps.write_text(stamps.read_text(encoding="utf-8").replace('"04_pinned_memory": "', '"04_pinned_memory": "0'))
    page.write_text(page.read_text(encoding="utf-8").replace("](notebooks/", "](elsewhere/"), encoding="utf-8")

    checked = run_refresh(copied, "--check")
    assert checked.returncode == 1
    assert "make refresh" in checked.stderr
    assert {"  the stored outputs of notebooks/04_pinned_memory.ipynb", "  README.md"} <= {*checked.stderr.splitlines()}
    assert "02_on_device_tensors" not in checked.stderr

    done = run_refresh(copied)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("running ") == 1
    changed = done.stdout.splitlines()[-1]
    assert changed.startswith("Changed: ")
    assert all(name in changed for name in ("04_pinned_memory.ipynb", "book/stored_outputs.json", "README.md"))
    rounds = store.recorded("pinned_memory/first_touch").rounds
    assert read_notebook(notebook)["cells"][0]["outputs"][0]["text"] == f"{rounds}\n"
    assert "](elsewhere/" not in page.read_text(encoding="utf-8")

    again = run_refresh(copied)
    assert (again.returncode, again.stdout) == (0, "Nothing had to change.\n")


def test_a_notebook_that_fails_is_named_and_left_as_it_was(copied: Path):
    notebook, stamps = copied / "notebooks/04_pinned_memory.ipynb", copied / "book/stored_outputs.json"
    cell = {
        "cell_type": "code",
        "execution_count": 1,
        "id": "fails",
        "metadata": {"tags": ["stable"]},
        "outputs": [{"output_type": "stream", "name": "stdout", "text": ["fine once\n"]}],
        "source": "1 / 0",
    }
    notebook.write_text(dumped({**read_notebook(notebook), "cells": [cell]}), encoding="utf-8")
    before = notebook.read_bytes()
    stamps.write_text(stamps.read_text(encoding="utf-8").replace('"04_pinned_memory": "', '"04_pinned_memory": "0'))
    done = run_refresh(copied)
    assert done.returncode == 1
    assert "04_pinned_memory.ipynb failed, and was left as it was" in done.stderr
    assert notebook.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "code", "runs"),
    [
        (["--reference"], 0, ["record", "refresh"]),
        (["--reference"], 1, ["record", "refresh"]),
        (["--reference"], 130, ["record"]),
        (["--reference", "--help"], 0, ["record"]),
        (["04"], 0, ["record"]),
    ],
)
def test_recording_a_reference_ends_with_a_refresh(
    arguments: list[str], code: int, runs: list[str], monkeypatch: pytest.MonkeyPatch
):
    started = []

    def run(command: list) -> int:
        name = "refresh" if "authoring.pages.refresh" in command else command[3]
        started.append(name)
        return code if name == "record" else 0

    monkeypatch.setattr(verbs, "prepare", lambda _: Path(sys.executable))
    monkeypatch.setattr(verbs, "_run", run)
    assert verbs.record(arguments) == code
    assert started == runs


# Marks in README.md


def test_readme_without_its_marks_is_an_error_that_says_so():
    with pytest.raises(generated.BookError, match=r"<!-- generated: lessons -->"):
        generated.fill("no marks here", "lessons", "a table\n")


def test_what_stands_between_marks_is_replaced_and_nothing_else():
    page = "before\n<!-- generated: a -->\nold\n<!-- /generated -->\nafter \\1\n"
    filled = generated.fill(page, "a", "new \\1\n")
    assert filled == "before\n<!-- generated: a -->\n\nnew \\1\n\n<!-- /generated -->\nafter \\1\n"
    assert generated.fill(filled, "a", "new \\1\n") == filled
