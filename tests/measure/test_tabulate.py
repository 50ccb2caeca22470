"""Tables and curves of what a notebook found out: what they take, what they refuse, and that they are recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from course_utils import tabulate
from course_utils.measure.tabulate import curves
from course_utils.results.table import Table


def test_rows_become_a_table():
    table = tabulate(
        [
            {"dtype": "float16", "size": 2, "exact": False, "error": np.float64(1e-3)},
            {"dtype": "float32", "size": torch.tensor(4), "exact": True, "error": math.inf},
        ],
        units={"size": "bytes", "error": "relative"},
    )
    assert table.columns == ("dtype", "size", "exact", "error")
    assert table["float16"] == {"dtype": "float16", "size": 2, "exact": False, "error": 1e-3}
    assert table["float32"]["size"] == 4
    assert table["float32"]["error"] is None
    shown = repr(table)
    for part in ("4 B", "1.0e-03", "yes", "no", "–"):
        assert part in shown


@pytest.mark.parametrize(
    ("rows", "units", "message"),
    [
        ([{"a": 1, "b": 2}, {"a": 3}], None, "same keys"),
        ([{"a": 1}, {"a": 1}], None, "'a', names the rows.* '1' twice"),
        ([{"a": 1}], {"a": "metres"}, "'metres'"),
    ],
)
def test_what_makes_no_table_is_named(rows: list, units: dict | None, message: str):
    with pytest.raises(ValueError, match=message):
        tabulate(rows, units=units)


def test_a_value_that_a_record_cannot_hold_is_named():
    with pytest.raises(TypeError, match="'dtype' holds a"):
        tabulate([{"case": "a", "dtype": torch.float16}])


def test_values_become_curves():
    result = curves({"all": [3.0, math.nan, 1.0], "every tenth": ([10, 20], [2.5, 1.5])}, x="step", y="loss")
    assert result["all"].x == (1, 2, 3)
    assert result["all"].y == (3.0, None, 1.0)
    assert result["every tenth"].x == (10, 20)
    assert result["every tenth"].final == 1.5


def test_a_card_says_what_the_notebook_says_and_a_wording_that_fails_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COURSE_RECORD_TO", str(tmp_path))
    rows, units = [{"dtype": "float16", "size": 2}, {"dtype": "float32", "size": 4}], {"size": "bytes"}

    def made(says: Callable[[Table], str] | None) -> tuple[Table, Table]:
        table = tabulate(rows, units=units, name="tiny/sizes", says=says)
        return table, Table.from_record(json.loads((tmp_path / "tiny__sizes.json").read_text())["data"])

    plain, _ = made(None)
    assert plain.card().words == "dtype: float16 and float32."  # nothing is picked out of the numbers
    table, again = made(lambda t: f"A float32 takes {t.text('float32', 'size')}.")
    assert table.card().words == again.card().words == "A float32 takes 4 B."
    failed, kept = made(lambda t: t.text("float64", "size"))
    assert failed.rows == kept.rows == table.rows
    assert failed.card().words == plain.card().words
    assert "no row 'float64' in this table; there are: float16, float32" in failed.card().notes[-1]
    assert not kept.notes  # the next wording needs no new recording
