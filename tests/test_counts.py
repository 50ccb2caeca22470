"""The rooms of the house: none grows beyond what it has reached, and every file has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import counts

ROOMS = counts.rooms()


def test_no_room_has_grown():
    assert not counts.over(ROOMS, counts.lines(ROOMS))


def test_every_file_has_a_room():
    assert [path for path in counts.files() if counts.room_of(path, ROOMS) is None] == []


def test_what_is_over_is_told_and_what_is_under_is_written_and_never_raised(tmp_path: Path):
    budgets = tmp_path / "budgets.yml"
    text = counts.BUDGETS.read_text(encoding="utf-8")
    budgets.write_text(text, encoding="utf-8")
    reached = {room.name: room.reached for room in ROOMS}
    counted = reached | {"show": reached["show"] - 3, "measure": reached["measure"] + 2}
    (sentence,) = counts.over(ROOMS, counted)
    assert sentence.startswith("measure has 2 lines more than it has reached")
    assert "delete something in it, or raise `reached` in tools/budgets.yml" in sentence
    assert counts.lower(counted, budgets) == ["show"]
    assert {room.name: room.reached for room in counts.rooms(budgets)} == reached | {"show": counted["show"]}
    assert len(budgets.read_text(encoding="utf-8").splitlines()) == len(text.splitlines())


@pytest.mark.parametrize(
    ("path", "room"),
    [
        ("course_utils/memory/trace.py", "memory"),
        ("own_program/snapshots/replay.py", "own program"),
        ("course_utils/lessons/ddp/cases.py", "lessons"),
        ("course_utils/lessons/order.yml", "YAML of lessons"),
        ("elsewhere/new.py", None),
    ],
)
def test_a_file_is_in_the_first_room_that_it_fits(path: str, room: str | None):
    assert counts.room_of(path, ROOMS) == room


def test_the_table_ends_with_what_stands_outside_of_tests(capsys: pytest.CaptureFixture[str]):
    counts.main([])
    *_, outside, tests, _ = capsys.readouterr().out.splitlines()
    assert outside.startswith("outside of tests ")
    assert (outside.split()[-1], tests.split()[-1]) == ("27,100", "16,000")
