"""What is committed and follows from records is up to date, and parting from them is noticed: by these tests, by
``make refresh``, and by a build of the book.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from authoring.claims import judge_all
from authoring.lesson_files import load_lessons
from authoring.pages import build, generated, refresh
from course_utils.lesson_order import file_name
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
    for path in records.glob("*/caching_allocator.json"):
        path.unlink()
    with pytest.raises(generated.BookError, match=r"no machine has a record of .*caching_allocator/gap") as stopped:
        build.check(LESSONS, [])
    assert f'make record ARGS="{file_name("caching_allocator")} --reference"' in str(stopped.value)


def test_what_stands_between_marks_is_replaced_and_nothing_else():
    page = "before\n<!-- generated: a -->\nold\n<!-- /generated -->\nafter \\1\n"
    filled = generated.fill(page, "a", "new \\1\n")
    assert filled == "before\n<!-- generated: a -->\n\nnew \\1\n\n<!-- /generated -->\nafter \\1\n"
    assert generated.fill(filled, "a", "new \\1\n") == filled
    with pytest.raises(generated.BookError, match="<!-- generated: lessons -->"):
        generated.fill("no marks here", "lessons", "a table\n")
