"""The generated pages say what is judged, and what is not."""

from __future__ import annotations

import dataclasses

import pytest

from authoring.claims import Judgement, MachineJudgement, PartJudgement, judge_all
from authoring.lesson_files import load_lessons
from authoring.pages import claims_page, readme
from authoring.pages.generated import BookError
from authoring.verdicts import WORDINGS

LESSONS = load_lessons()


@pytest.fixture(scope="module")
def judgements() -> list[Judgement]:
    return judge_all(LESSONS)


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
    rows = readme.table_with_findings(LESSONS, [], "notebooks", "claims.md").splitlines()
    for lesson in LESSONS:
        row = next(row for row in rows if row.startswith(f"| {lesson.number:02d} "))
        assert lesson.question in row
        assert (f"(notebooks/{lesson.stem}.ipynb)" in row) == lesson.built
        assert ("planned" in row) != lesson.built
    assert len({lesson.question for lesson in LESSONS}) == len(LESSONS)


def test_a_finding_that_the_ledger_does_not_have_is_an_error_that_names_it(judgements: list[Judgement]):
    lesson = next(lesson for lesson in LESSONS if lesson.finding)
    wrong = dataclasses.replace(lesson, finding=(lesson.finding[0], "no such label"))
    with pytest.raises(BookError, match="'no such label'"):
        readme.table_with_findings([wrong], judgements, "notebooks", "book/claims.md")


def test_a_number_with_an_interval_is_shown_before_a_bare_one(judgements: list[Judgement]):
    judgement, judged, machine = judged_on_a_machine(judgements)
    numbers = (("bytes", "3 B"), ("time", "2 s (1 s to 3 s)"))
    machine = dataclasses.replace(machine, verdict=judged.verdict, numbers=numbers)
    claim = dataclasses.replace(judgement.claim, lesson=LESSONS[7].slug, verdict="depends", parts=(judged.part,))
    judgement = Judgement(claim, (dataclasses.replace(judged, machines=(machine,)),))
    lesson = dataclasses.replace(LESSONS[7], finding=())
    table = readme.table_with_findings([lesson], [judgement], "n", "c.md")
    assert "Time: **2 s (1 s to 3 s)**<sup>1</sup>" in table
    assert "3 B" not in table
    assert f"<sup>1</sup> {machine.caption}" in table
