"""`reproducible_runs`: its code to paste, its cases, and the image."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from course_utils.lessons.reproducible_runs import cases
from course_utils.measure.fresh import RandomState, Switches
from tests.lessons.pasted import pasted, source

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _as_before():
    before = RandomState.now()
    with Switches.kept():
        torch.set_num_threads(1)
        yield
    before.restore()


@pytest.fixture
def lesson() -> dict[str, Any]:
    """The lesson's code to paste, and `build`, `run`, `save_it` and `load_it`, as the text has them."""
    names = pasted("reproducible_runs", "def save(", "def assert_resumes(")
    text = source("reproducible_runs", "def build")
    exec(re.search(r"```python\n(.*?)\nassert_resumes", text, re.DOTALL)[1], names)
    return names


def _next_numbers() -> list[float]:
    return [random.random(), np.random.rand(), torch.rand(1).item()]


def test_what_is_saved_passes_through_torch_load_and_brings_numbers_and_place_back(lesson, tmp_path: Path):
    lesson["save"](tmp_path / "checkpoint.pt", {}, [2, 7])
    expected = _next_numbers()
    assert lesson["load"](tmp_path / "checkpoint.pt", {}) == [2, 7]
    assert _next_numbers() == expected


def _resumes(lesson: dict[str, Any]) -> None:
    lesson["assert_resumes"](*(lesson[name] for name in ("build", "run", "save_it", "load_it")))


def test_the_pasted_check_passes_a_training_that_resumes(lesson, capsys: pytest.CaptureFixture[str]):
    _resumes(lesson)
    assert "8 numbers, all equal to the bit" in capsys.readouterr().out


@pytest.mark.parametrize(("left_out", "number"), [("optimizer", 2), ("scheduler", 3)])
def test_the_pasted_check_names_the_first_number_that_is_off(lesson, left_out: str, number: int, monkeypatch):
    part = lesson["build"]()["parts"][left_out]
    monkeypatch.setattr(type(part), "load_state_dict", lambda part, state: None)
    with pytest.raises(AssertionError, match=f"number {number} of 8 is off"):
        _resumes(lesson)


def test_the_pasted_check_tells_a_training_that_is_not_deterministic(lesson):
    with pytest.raises(AssertionError, match="two equal resumes differ"):
        _resumes(lesson | {"run": lambda training: [*lesson["run"](training), os.urandom(8)]})


def test_every_remedy_ends_its_cause():
    rows = {row["cause"]: row for row in cases.causes()}
    assert {row["with it"] for row in rows.values()} == {"same"}
    # A race is this machine's.
    for cause in ("2 workers for 1", "a look at a loader"):
        assert rows[cause]["left alone"] == "differs", cause


def test_what_is_left_out_shows_where_the_text_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COURSE_SIZE", "smoke")
    rows, _ = cases.resumed()
    first = {row["left out"]: row["first other loss"] for row in rows}
    assert first == {
        **dict.fromkeys(["nothing", "BatchNorm's averages", "the averaged weights"], "never"),
        **dict.fromkeys(["torch's random state", "NumPy's random state", "the place in the epoch"], "step 1"),
        **dict.fromkeys(["the optimizer", "the optimizer's averages"], "step 2"),
        "the scheduler": "step 5",
    }
    at_once, later = ({row["left out"]: row[when] for row in rows} for when in ("validation at once", "and at the end"))
    assert {part for part in first if at_once[part]} == {"BatchNorm's averages", "the averaged weights"}
    assert at_once["BatchNorm's averages"] > 5 * later["BatchNorm's averages"] > 0  # they heal
    assert later["nothing"] == 0 > later["the optimizer"]


def test_the_image_installs_what_is_pinned_with_a_python_that_the_course_supports():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "-r requirements.txt -c constraints.txt" in text
    (version,) = re.findall(r"^FROM python:3\.(\d+)-slim$", text, re.MULTILINE)
    supported = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert int(supported[1]) <= int(version) < int(supported[2])
