"""What is committed and follows from records is up to date, and parting from them is noticed: by these tests, by
``make refresh``, and by a build of the book.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from authoring.claims import judge, judge_all
from authoring.lesson_files import load_lessons
from authoring.pages import build, generated, refresh
from course_utils.lesson_order import file_name
from tests.made_up_records import edit_record
from tools import verbs

ROOT = Path(__file__).resolve().parents[2]
LESSONS = load_lessons()


def test_everything_committed_follows_from_the_records():
    assert refresh.stale(LESSONS, judge_all(LESSONS)) == [], "run `make refresh` and commit what changes"


def test_the_repository_is_at_most_25_mb():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is no git checkout")
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert len(files) > 100
    assert sum(file.stat().st_size for file in files if file.is_file()) <= 25 * 2**20


def test_a_record_that_is_edited_or_gone_is_noticed(records: Path):
    assert refresh.stale_notebooks(LESSONS) == []
    path = next(records.glob("*/pinned_memory.json"))
    edit_record(path, lambda experiments: experiments.pop("pinned_memory/arrived_batch"))
    assert [lesson.slug for lesson in refresh.stale_notebooks(LESSONS)] == ["pinned_memory"]
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
