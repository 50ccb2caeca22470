"""The report of ``make report``: the claims of the ledger that one's own records decide."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from authoring import __main__ as command
from authoring import claims
from authoring import report as authoring_report
from authoring.expressions import EvidenceError
from course_utils.results import store


@pytest.fixture(params=["caching_allocator"])
def recorded_here(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One lesson's committed record as one's own."""
    source = next(store.reference_root().glob(f"*/{request.param}.json"))
    copied = tmp_path / "results" / source.parent.name / source.name
    copied.parent.mkdir(parents=True)
    copied.write_bytes(source.read_bytes())
    monkeypatch.setenv("COURSE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(tmp_path / "no-references"))
    return copied


def test_your_own_records_judge_the_claims_that_they_can(recorded_here: Path, tmp_path: Path, capsys):
    judged = authoring_report.judged_here()
    own = [claim for claim in claims.load_claims() if claim.lesson == "caching_allocator"]
    assert judged
    assert all(claim in own and machine.verdict == claim.verdict for claim, machine in judged)
    machine = judged[0][1]
    assert machine.numbers
    path = tmp_path / "page.html"
    assert command.main(["report", "--output", str(path)]) == 0
    assert capsys.readouterr().out.startswith(f"{path}\n")
    page = path.read_text(encoding="utf-8")
    assert "The claims, judged by your records" in page
    assert "none otherwise than the ledger" in page
    assert all(words in page for _, words in machine.numbers)


@pytest.mark.parametrize("recorded_here", ["fsdp"], indirect=True)
def test_your_own_record_takes_the_place_of_the_one_that_a_condition_names(recorded_here: Path):
    folder = recorded_here.parent.rename(recorded_here.parent.with_name("a-machine-of-mine"))
    record = store.load_lesson(folder / recorded_here.name)
    mine = dataclasses.replace(record, environment=dataclasses.replace(record.environment, machine=folder.name))
    store.save_lesson(mine, folder.parent)
    pairs = authoring_report.judged_here()
    assert pairs
    assert all((judged.machine, judged.verdict) == (folder.name, claim.verdict) for claim, judged in pairs)
    assert any(judged.numbers for _, judged in pairs)


def test_what_the_page_lacks_is_said_at_the_end(recorded_here: Path, tmp_path: Path, capsys):
    (recorded_here.parent / "ddp.json").write_text('{"schema_version": 99}')
    assert command.main(["report", "--output", str(tmp_path / "page.html")]) == 1
    assert "ddp.json has schema version 99" in capsys.readouterr().err


def test_a_claim_that_your_records_judge_otherwise_is_said(recorded_here: Path, monkeypatch: pytest.MonkeyPatch):
    (claim,) = (claim for claim in claims.load_claims() if claim.id == "T9")
    stated = [dataclasses.replace(claim, verdict="confirmed")]
    monkeypatch.setattr(claims, "load_claims", lambda: stated)
    section = authoring_report.claims_section()
    assert re.search(r"decide 1 claim of the course's ledger,\s+1 of them otherwise", section)
    assert "<strong>Half</strong>" in section


def test_a_damaged_ledger_is_said_and_without_records_nothing_is_judged(
    recorded_here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def damaged() -> None:
        raise EvidenceError("lessons/ddp/lesson.yml is damaged")

    monkeypatch.setattr(claims, "load_claims", damaged)
    assert "lessons/ddp/lesson.yml is damaged" in authoring_report.claims_section()
    monkeypatch.undo()
    monkeypatch.setenv("COURSE_RESULTS", str(tmp_path / "nothing"))
    assert authoring_report.claims_section() == ""
