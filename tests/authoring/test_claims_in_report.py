"""The report of ``make report``: the claims of the ledger that one's own records decide."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from authoring import __main__ as command
from authoring import claims, claims_in_report
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


def test_your_own_record_takes_the_place_of_the_one_that_a_condition_names(own_record: Path, tmp_path: Path, capsys):
    judged = [*claims_in_report.judged_here()]
    assert judged
    assert all(each.verdict == each.claim.verdict for each in judged)
    assert {machine.machine for each in judged for machine in each.machines} == {"a-machine-of-mine"}
    path = tmp_path / "page.html"
    assert command.main(["report", "--output", str(path)]) == 0
    assert capsys.readouterr().out.startswith(f"{path}\n")
    page = path.read_text(encoding="utf-8")
    assert "The claims, judged by your records" in page
    assert "none otherwise than the ledger" in page
    (own_record.parent / "ddp.json").write_text('{"schema_version": 99}')
    assert command.main(["report", "--output", str(path)]) == 1
    assert "ddp.json has schema version 99" in capsys.readouterr().err


def test_a_claim_that_your_records_judge_otherwise_is_said(own_record: Path, monkeypatch: pytest.MonkeyPatch):
    claim = next(claims_in_report.judged_here()).claim
    stated = [dataclasses.replace(claim, verdict="depends" if claim.verdict != "depends" else "confirmed")]
    monkeypatch.setattr(claims, "load_claims", lambda: stated)
    section = claims_in_report.claims_section()
    assert re.search(r"decide 1 claim of the course's ledger,\s+1 of them otherwise", section)
    assert "<strong>" in section
    monkeypatch.setenv("COURSE_RESULTS", str(own_record.parent / "nothing"))
    assert claims_in_report.claims_section() == ""
