"""The report of ``make report``: the claims of the ledger that one's own records decide."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from authoring import __main__ as command
from authoring import claims_in_report
from course_utils.results import store


@pytest.fixture
def own_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One lesson's committed record as one's own, of a machine with another name."""
    source = next(store.reference_root().glob("*/fsdp.json"))
    record = store.load_lesson(source)
    environment = dataclasses.replace(record.environment, machine="a-machine-of-mine")
    store.save_lesson(dataclasses.replace(record, environment=environment), tmp_path / "results")
    monkeypatch.setenv("COURSE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(tmp_path / "no-references"))  # a report of all takes a minute
    return tmp_path / "results" / "a-machine-of-mine" / "fsdp.json"


def test_your_own_record_takes_the_place_of_the_one_that_a_condition_names(own_record: Path, tmp_path: Path):
    judged = [*claims_in_report.judged_here()]
    assert judged
    assert all(each.verdict == each.claim.verdict for each in judged)
    assert {machine.machine for each in judged for machine in each.machines} == {"a-machine-of-mine"}
    path = tmp_path / "page.html"
    assert command.main(["report", "--output", str(path)]) == 0
    page = path.read_text(encoding="utf-8")
    assert "The claims, judged by your records" in page
    assert "none otherwise than the ledger" in page
