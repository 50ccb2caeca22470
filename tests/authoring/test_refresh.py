"""What is committed and follows from records is up to date, and parting from them is noticed: by these tests, by
``make refresh``, and by a build of the book.
"""

from __future__ import annotations

from pathlib import Path

from authoring.claims import judge_all
from authoring.lesson_files import load_lessons
from authoring.pages import refresh
from tests.made_up_records import edit_record

ROOT = Path(__file__).resolve().parents[2]
LESSONS = load_lessons()


def test_everything_committed_follows_from_the_records():
    assert refresh.stale(LESSONS, judge_all(LESSONS)) == [], "run `make refresh` and commit what changes"


def test_a_record_that_is_edited_or_gone_is_noticed(records: Path):
    assert refresh.stale_notebooks(LESSONS) == []
    path = next(records.glob("*/pinned_memory.json"))
    edit_record(path, lambda experiments: experiments.pop("pinned_memory/arrived_batch"))
    assert [lesson.slug for lesson in refresh.stale_notebooks(LESSONS)] == ["pinned_memory"]
