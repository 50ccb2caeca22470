"""The rooms of the house: none has more lines than its budget, and every file has one."""

from __future__ import annotations

from tools import counts


def test_every_room_keeps_to_its_budget_and_every_file_has_a_room():
    assert counts.counted()[1] == []
