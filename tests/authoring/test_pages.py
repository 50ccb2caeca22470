"""The generated pages say what is recorded and judged, and what is not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from authoring.claims import Judgement, MachineJudgement, PartJudgement, judge_all
from authoring.lesson_files import load_lessons
from authoring.pages import claims_page, landing, lesson_list, readme, status_page
from authoring.pages.generated import BookError
from authoring.verdicts import WORDINGS
from course_utils.records import store
from course_utils.records.kinds.environment import Environment
from tests import made_up_records as made

LESSONS = load_lessons()


@pytest.fixture(scope="module")
def judgements() -> list[Judgement]:
    return judge_all(LESSONS)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No records at all, yet."""
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(tmp_path / "records"))
    monkeypatch.setenv("COURSE_RESULTS", str(tmp_path / "results"))
    return tmp_path / "records"


def save_copies(root: Path, environment: Environment, sizes: tuple[int, ...] = (64, 4096)) -> None:
    copies = made.sweep("pinned_memory/copy", sizes, lambda size: {"pageable": 2e-3, "pinned": 1e-3})
    made.write(root, environment, [copies])


# What is recorded


def test_without_records_the_pages_say_so(records: Path):
    page = status_page.status_page(LESSONS)
    assert "No GPU run is recorded yet" in page
    assert "Nothing is recorded at all yet" in page
    example, figure = landing.headline(LESSONS)
    assert "Nothing is recorded yet" in example
    assert figure is None


def test_a_cpu_record_alone_still_says_that_no_gpu_run_is_recorded(records: Path):
    save_copies(records, made.CPU)
    page = status_page.status_page(LESSONS)
    assert "No GPU run is recorded yet" in page
    assert "Some CPU, 16 cores" in page
    assert "2026-03-01, smoke" in page
    row = next(line for line in page.splitlines() if line.startswith("| `pinned_memory/overlap`"))
    assert "*not recorded yet*: needs a CUDA GPU" in row


def test_a_gpu_record_takes_the_headline_and_ends_the_notice(records: Path):
    save_copies(records, made.CPU)
    save_copies(records, made.GPU)
    page = status_page.status_page(LESSONS)
    assert "No GPU run is recorded yet" not in page
    assert "80 GiB" in page
    assert "`pinned_memory/copy`" in page
    example, figure = landing.headline(LESSONS)
    assert "Some GPU" in example
    assert "At value = 4096, against pageable:" in example
    assert example.count("FASTER") == 1
    drawn = landing.svg(figure)
    assert "<svg" in drawn
    assert drawn == landing.svg(landing.headline(LESSONS)[1]), "the same record gives the same figure"


def test_your_own_runs_are_kept_apart(records: Path):
    save_copies(store.results_root(), made.GPU)
    page = status_page.status_page(LESSONS)
    assert "No GPU run is recorded yet" in page
    assert "Some GPU" in page.split("## Your own runs")[1]


def test_the_status_page_says_what_waits_for_which_hardware(judgements: list[Judgement]):
    page = status_page.status_page(LESSONS, judgements)
    waiting = page.split("## What waits for hardware")[1].split("## ")[0]
    row = next(line for line in waiting.splitlines() if line.startswith("| two CUDA GPUs |"))
    assert "`ddp/data_parallel`" in row
    assert "[L5](claims.md#l5)" in row


# The ledger's page


def test_the_ledgers_page_tells_of_every_claim_all_that_is_known_of_it(judgements: list[Judgement]):
    page = claims_page.claims_page(judgements, LESSONS)
    entries = {entry.split("\n")[0]: entry for entry in page.split("\n### ")[1:]}
    assert set(entries) == {judgement.claim.id for judgement in judgements}
    for judgement in judgements:
        claim, entry = judgement.claim, entries[judgement.claim.id]
        shown = [claim.sentence, claim.condition, *claim.sources, *(code.strip() for _, code in claim.calls)]
        for judged in judgement.parts:
            shown += [f"{verdict}: {text}" for verdict, text in judged.part.steps]
            shown += [f"{name} = {text}" for name, text in judged.part.let]
            shown += [words for machine in judged.machines for _, words in machine.numbers]
            shown += [machine.caption for machine in judged.machines] + [judged.waits_for or ""]
        assert [text for text in shown if text.rstrip(".") not in entry] == []
        assert entry.index(f"{WORDINGS[claim.word].sign} {claim.word}<") < entry.index(f"**{claim.claim}**")


def test_the_section_that_measures_an_experiment_is_found():
    notebook = LESSONS[11].notebook
    assert claims_page.heading_of(notebook, "caching_allocator/no_cap") == "The simulated training"
    assert claims_page.heading_of(notebook, "caching_allocator/no_such_thing") is None


def judged_on_a_machine(judgements: list[Judgement]) -> tuple[Judgement, PartJudgement, MachineJudgement]:
    return next(
        (judgement, judged, judged.machines[0])
        for judgement in judgements
        for judged in judgement.parts
        if judged.machines and not judged.part.aside
    )


def test_machines_that_disagree_are_listed_with_their_own_verdicts(judgements: list[Judgement]):
    judgement, judged, machine = judged_on_a_machine(judgements)
    first = dataclasses.replace(machine, verdict="confirmed")
    second = dataclasses.replace(first, machine="another", caption="Another machine", verdict="refuted")
    parts = (dataclasses.replace(judged, machines=(first, second), verdict="depends"),)
    page = claims_page.claims_page([dataclasses.replace(judgement, parts=parts)], LESSONS)
    assert "The recorded machines do not agree" in page
    assert f"{claims_page.badge('refuted')} on Another machine" in page
    assert f"{claims_page.badge('confirmed')} on {first.caption}" in page


# The table of lessons


def test_the_table_links_built_lessons_and_marks_planned_ones():
    rows = lesson_list.lessons_table(LESSONS, {}).splitlines()
    for lesson in LESSONS:
        row = next(row for row in rows if row.startswith(f"| {lesson.number:02d} "))
        assert lesson.question in row
        assert (f"(notebooks/{lesson.stem}.ipynb)" in row) == lesson.built
        assert ("planned" in row) != lesson.built
    assert len({lesson.question for lesson in LESSONS}) == len(LESSONS)


def test_one_line_under_the_table_says_what_every_sign_means(judgements: list[Judgement]):
    table = readme.table_with_findings(LESSONS, judgements, "notebooks", "c.md")
    (line,) = [line for line in table.split("</div>")[1].splitlines() if "](c.md): " in line]
    assert all(f"{words.sign}&nbsp;{verdict} (" in line for verdict, words in WORDINGS.items())


def test_a_finding_that_the_ledger_does_not_have_is_an_error_that_names_it(judgements: list[Judgement]):
    lesson = next(lesson for lesson in LESSONS if lesson.finding)
    wrong = dataclasses.replace(lesson, finding=(lesson.finding[0], "no such label"))
    with pytest.raises(BookError, match="'no such label'"):
        readme.table_with_findings([wrong], judgements, "notebooks", "book/claims.md")


def test_a_number_with_an_interval_is_shown_before_a_bare_one(judgements: list[Judgement]):
    judgement, judged, machine = judged_on_a_machine(judgements)
    numbers = (("bytes", "3 B"), ("time", "2 s (95% interval 1 s to 3 s)"))
    machine = dataclasses.replace(machine, verdict=judged.verdict, numbers=numbers)
    claim = dataclasses.replace(judgement.claim, lesson=LESSONS[7].slug, verdict="depends", parts=(judged.part,))
    judgement = Judgement(claim, (dataclasses.replace(judged, machines=(machine,)),))
    lesson = dataclasses.replace(LESSONS[7], finding=())
    table = readme.table_with_findings([lesson], [judgement], "n", "c.md")
    assert "Time: **2 s (95% interval 1 s to 3 s)**<sup>1</sup>" in table
    assert "3 B" not in table
    assert f"<sup>1</sup> {machine.caption}" in table
