"""Figures in texts come from records; where one cannot be filled, or is out of date, a message names the sentence."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from authoring import figures_in_text
from authoring.figures_in_text import check, write
from course_utils.lesson_notebooks import find_lesson, read_notebook
from tests import made_up_records
from tests.made_up_notebooks import code, save
from tests.made_up_notebooks import text as text_cell

TAKEN = (
    'It gives back <!--= recorded("caching_allocator/gap", "some-gpu")["default"]["given back"] -->0<!--/--> segments.'
)


@pytest.fixture
def records(no_records: Path) -> Path:
    table = made_up_records.table("caching_allocator/gap", [{"setting": "default", "given back": 0}])
    other = made_up_records.table("pinned_memory/copy", [{"a": 1}])  # the machine stays when a record is deleted
    return made_up_records.write(no_records, made_up_records.GPU, [table, other])


def page(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_bytes(text.encode())
    return path


def test_a_figure_is_filled_and_the_rest_stays(tmp_path: Path, records: Path):
    text = f"# Title\r\n\r\nNot here: <!-- a comment -->.\r\n\r\n{TAKEN.replace('>0<', '><')} *Good.*  \r\n"
    path = page(tmp_path, text)
    assert write([path]) == ([path], [])
    assert path.read_bytes().decode() == text.replace("--><!--/-->", "-->0<!--/-->")
    assert write([path]) == ([], [])


def test_in_a_notebook_the_texts_are_filled_and_code_stays(tmp_path: Path, records: Path):
    empty = TAKEN.replace(">0<", "><")
    path = save(tmp_path / "10_things.ipynb", text_cell(empty), code(f"'''{empty}'''"))
    assert write([path]) == ([path], [])
    assert [cell["source"] for cell in read_notebook(path)["cells"]] == [TAKEN, f"'''{empty}'''"]


def test_a_record_that_changes_or_is_deleted_fails_and_names_the_sentence(tmp_path: Path, records: Path):
    path = page(tmp_path, f"Before. {TAKEN} After.")
    assert check([path]) == []
    changed = made_up_records.table("caching_allocator/gap", [{"setting": "default", "given back": 3}])
    made_up_records.write(records, made_up_records.GPU, [changed])
    (fault,) = check([path])
    assert '"It gives back 0 segments."' in fault
    assert "the records give '3'" in fault
    assert write([path]) == ([path], [])
    (records / "some-gpu" / "caching_allocator.json").unlink()
    _, (fault,) = write([path])
    assert '"It gives back 3 segments."' in fault
    assert "course record caching_allocator --reference" in fault


def test_the_time_of_a_lesson(tmp_path: Path, records: Path):
    texts = ["word " * 398 + "[two words](an/address)", "### Exercise 1 · Do · 7 min\n\n### Exercise 2 · Do · 5 min"]
    path = save(tmp_path / "10_caching_allocator.ipynb", *map(text_cell, texts), code("one = two(three)"))
    lesson = dataclasses.replace(find_lesson("caching_allocator"), path=path)  # made-up records take a second
    words = 400 + 10 + 2
    minutes = figures_in_text.lesson_minutes(lesson)
    assert minutes == pytest.approx(words / figures_in_text.WORDS_A_MINUTE + 12 + 1 / 60, abs=0.02)
    assert re.fullmatch(r"\d+[05] minutes", figures_in_text.figure("time caching_allocator"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A <!--= claim T8 --> B", "half a marker"),
        (TAKEN.removeprefix("It gives back "), "beginning of a line"),
        (TAKEN.replace('["default"]["given back"]', ""), "cannot be worked out|gives .*write it with one of"),
        (TAKEN.replace("some-gpu", "nowhere"), "no machine 'nowhere'"),
        ("A <!--= claim X1 -->2<!--/--> B", "no claim 'X1'"),
        ("A <!--= 1 + 1 -->2<!--/--> B", "reads no experiment"),
    ],
)
def test_a_marker_that_is_wrong_is_seen_and_left(tmp_path: Path, records: Path, text: str, message: str):
    path = page(tmp_path, text)
    faults = check([path])
    assert any(re.search(message, fault, re.S) for fault in faults), faults
    write([path])
    assert path.read_text(encoding="utf-8") == text
