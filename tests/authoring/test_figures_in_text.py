"""Figures in texts come from records; where one cannot be filled, or is out of date, a message names the sentence."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest

from authoring import figures_in_text
from authoring.figures_in_text import check, write
from course_utils.lesson_notebooks import dumped, find_lesson, read_notebook
from tests.made_up_notebooks import code
from tests.made_up_records import EPYC, edit_record, recorder_of

TAKEN = (
    f'It gives back <!--= recorded("caching_allocator/gap", "{EPYC}")["default"]["given back"] -->0<!--/--> segments.'
)
CASES = f'len(recorded("torch_compile/mlp", "{recorder_of("torch_compile")}").labels)'


def page(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_bytes(text.encode())
    return path


def three_segments(records: Path) -> None:
    def change(experiments: dict) -> None:
        table = experiments["caching_allocator/gap"]["data"]
        table["rows"][0][table["columns"].index("given back")] = 3

    edit_record(records / EPYC / "caching_allocator.json", change)


def test_figures_in_the_course_are_as_recorded():
    assert check() == []


def test_a_figure_is_filled_and_the_rest_stays(tmp_path: Path):
    text = f"# Title\r\n\r\nNot here: <!-- a comment -->.\r\n\r\n{TAKEN.replace('>0<', '><')} *Good.*  \r\n"
    path = page(tmp_path, text)
    assert write([path]) == ([path], [])
    assert path.read_bytes().decode() == text.replace("--><!--/-->", "-->0<!--/-->")
    assert write([path]) == ([], [])


def test_a_figure_in_a_notebook_keeps_the_normal_form(tmp_path: Path):
    path = Path(shutil.copy(find_lesson("caching_allocator").path, tmp_path))
    notebook = read_notebook(path)
    notebook["cells"][0]["source"] += "\n\n" + TAKEN.replace(">0<", ">17<")
    path.write_text(dumped(notebook), encoding="utf-8")
    (fault,) = check([path])
    assert "cell 1" in fault
    assert "It gives back 17 segments." in fault
    assert write([path]) == ([path], [])
    notebook["cells"][0]["source"] = notebook["cells"][0]["source"].replace(">17<", ">0<")
    assert path.read_text(encoding="utf-8") == dumped(notebook)


def test_a_record_that_changes_or_is_deleted_fails_and_names_the_sentence(tmp_path: Path, records: Path):
    path = page(tmp_path, f"Before. {TAKEN} After.")
    assert check([path], records) == []
    three_segments(records)
    (fault,) = check([path], records)
    assert '"It gives back 0 segments."' in fault
    assert "the records give '3'" in fault
    assert write([path], records) == ([path], [])
    assert ">3<" in path.read_text(encoding="utf-8")
    (records / EPYC / "caching_allocator.json").unlink()
    _, (fault,) = write([path], records)
    assert "It gives back not recorded segments." in fault
    assert "course record caching_allocator --reference" in fault
    assert "-->not recorded<!--/-->" in path.read_text(encoding="utf-8")


def recorded_by_one(lesson: str, records: Path) -> str:
    """The machine whose record of a lesson is left, of several."""
    machine = recorder_of(lesson)
    for path in records.glob(f"*/{lesson}.json"):
        if path.parent.name != machine:
            path.unlink()
    return machine


def test_the_time_of_a_lesson(tmp_path: Path, records: Path):
    texts = ["word " * 398 + "[two words](an/address)", "### Exercise 1 · Do · 7 min\n\n### Exercise 2 · Do · 5 min"]
    cells = [{"cell_type": "markdown", "id": text[:1], "metadata": {}, "source": text} for text in texts]
    cells.append(code("one = two(three)", id="c"))
    path = tmp_path / "10_torch_compile.ipynb"
    path.write_text(dumped({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")
    lesson = dataclasses.replace(find_lesson("torch_compile"), path=path)
    recorder = recorded_by_one("torch_compile", records)
    record = json.loads((records / recorder / "torch_compile.json").read_text(encoding="utf-8"))
    (records / "another").mkdir()
    for machine, seconds in ((recorder, 60), ("another", 120)):
        (records / machine / "torch_compile.json").write_text(json.dumps(record | {"seconds": seconds}))
    words = 400 + 10 + 2
    minutes = figures_in_text.lesson_minutes(lesson, records)
    assert minutes == pytest.approx(words / figures_in_text.WORDS_A_MINUTE + 12 + 2, abs=0.02)
    assert re.fullmatch(r"\d+[05] minutes", figures_in_text.figure("time torch_compile"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A <!--= claim T8 --> B", "half a marker"),
        (f"- <!--= {CASES} -->2<!--/--> is two.", "beginning of a line"),
        (f"```\na <!--= {CASES} -->2<!--/-->\n```", "in code"),
        (f"A <!--= {CASES} --1 -->3<!--/--> B", "two dashes"),
        (f"A <!--= {CASES[4:].removesuffix('.labels)')} -->2<!--/--> B", "gives .*write it with one of"),
        ('A <!--= recorded("torch_compile/mlp", "nowhere") -->2<!--/--> B', "no machine 'nowhere'"),
        ("A <!--= 1 + 1 -->2<!--/--> B", "reads no experiment"),
        ("A <!--= claim X1 -->2<!--/--> B", "no claim 'X1'"),
        ("A <!--= time 99 -->2<!--/--> B", "There is no lesson '99'"),
    ],
)
def test_a_marker_that_is_wrong_is_seen_and_left(tmp_path: Path, text: str, message: str):
    path = page(tmp_path, text)
    faults = check([path])
    assert any(re.search(message, fault, re.S) for fault in faults), faults
    write([path])
    assert path.read_text(encoding="utf-8") == text
