"""The rooms of the house: none has more lines than its budget, and every file has one."""

from __future__ import annotations

from tools import counts


def test_every_room_keeps_to_its_budget_and_every_file_has_a_room():
    rooms, without = counts.rooms()
    assert [room.over for room in rooms if room.over] == []
    assert without == []


def test_a_room_over_its_budget_is_told_what_to_do_and_the_table_sums_up():
    room = counts.Room("show", ["course_utils/show/*"], 1500, 1502)
    assert room.over.startswith("show has 2 lines more than its budget of 1,500: delete something in it, or raise")
    assert room._replace(lines=1500).over == ""
    rooms = [room, room._replace(name="measure", lines=98), counts.Room("tests", ["tests/*.py"], 9000, 8000)]
    assert [line.split()[-2:] for line in counts.table(rooms).splitlines()] == [
        ["lines", "budget"],
        ["1,502", "1,500"],
        ["98", "1,500"],
        ["1,600", "3,000"],
        ["8,000", "9,000"],
    ]
