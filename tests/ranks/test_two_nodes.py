"""A node is lost and comes back, as `book/reference/several_machines.md` shows it."""

from __future__ import annotations

import sys

import pytest

from course_utils import recorded
from tests.launches import NOTEBOOKS
from tests.ranks.lost_node import NAME, lost_node


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="torchrun's rendezvous is not there")
def test_a_lost_node_comes_back_and_the_losses_are_those_of_an_unbroken_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(NOTEBOOKS)
    rows, said = lost_node()
    assert "restart 1: from step" in said
    assert rows[-1]["step"] == "5, after the restart"
    assert max(row["off by"] for row in rows) < 1e-5
    table = recorded(NAME, machine="intel-xeon")  # it is on a page: python -m tests.ranks.lost_node makes it anew
    shown = {label.partition(",")[0]: table[label]["loss"] for label in table.labels}
    for row in rows:
        assert row["loss"] == pytest.approx(shown[row["step"].partition(",")[0]], rel=1e-3), row
