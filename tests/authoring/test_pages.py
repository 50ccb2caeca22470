"""The generated pages say what is judged, and what is not."""

from __future__ import annotations

import dataclasses
import re

import pytest
import yaml

from authoring.claims import Judgement, MachineJudgement, PartJudgement, judge_all
from authoring.evidence import EvidenceError
from authoring.lesson_answers import answer_of, answer_text
from authoring.lesson_files import load_lessons
from authoring.pages import claims_page, front, readme
from authoring.pages.generated import BookError
from authoring.typed_numbers import typed_numbers
from authoring.verdicts import WORDINGS
from tests.figure_checks import problems_of_texts

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
    assert f"{claims_page.badge('refuted')} on [Another machine](../course_utils/records/another/" in page
    assert f"{claims_page.badge('confirmed')} on [{first.caption}](" in page


# The front


# In answers: sizes that say what was tried, and what follows from the size of a number. They are no measurement.
INPUTS = (
    *("100 times the work", "a copy of 256 MiB", "one of 4 KiB"),
    *("16 bytes on every rank", "1.5 times DDP's bytes", "16 bytes a parameter and the activations"),
)
CHOSEN = [entry["claim"] for entry in yaml.safe_load(front.CHOSEN.read_text(encoding="utf-8"))["findings"]]


def links_of(text: str) -> list[tuple[str, str]]:
    return re.findall(r"(?<!!)\[([^\[\]]*)\]\(([^()\s]+)\)", text)


def unlinked_numbers(text: str, *known: str) -> list[str]:
    """The measurements of a text that stand outside of links; ``known`` are texts that may have some."""
    for each in known:
        text = text.replace(each, "")
    # A table's row may cite its source once, so no row may look like one.
    plain = re.sub(r"!?\[[^\[\]]*\]\([^()\s]+\)", "LINK", text).replace("|", "")
    return [number for number, _ in typed_numbers(plain)]


def is_there(link: str, rows: set[str]) -> bool:
    """Whether a link leads to a file of the repository, or to the source of a published row."""
    return link in rows or (front.BOOK / link.partition("#")[0]).is_file()


def test_every_number_of_the_front_leads_to_its_record_or_source(judgements: list[Judgement]):
    sources = {row.source.link for lesson in LESSONS for row in lesson.published}
    findings = front.findings(judgements)
    caption = re.sub(r"!\[.*?\]\(.*?\)", "", front.front_text(judgements, ".."))
    table = readme.lessons_table(LESSONS, "..").partition("Planned")[0]
    whose = [answer_of(lesson.slug, "..").whose for lesson in LESSONS if lesson.built]
    assert unlinked_numbers(caption, *(finding.said for finding in findings)) == []
    assert unlinked_numbers(table, *whose, *(lesson.question for lesson in LESSONS), *INPUTS) == []
    links = [link for _, link in links_of(caption + table)]
    assert [link for link in links if not is_there(link, sources)] == []
    records = [link for text, link in links_of(caption) if re.search(r"\d", text)]
    assert len(records) == sum(len(finding.bars) for finding in findings)
    assert all("/records/" in link for link in records)
    rows = [line for line in table.splitlines() if re.match(r"\| \d\d ", line)]
    assert len(rows) == sum(lesson.built for lesson in LESSONS)
    assert all(len(re.findall(r"\[\*\*[^*]+\*\*\]\(", row)) == 1 for row in rows), "an answer has one number"


def test_a_number_without_a_link_is_seen():
    assert unlinked_numbers("It takes [2 ms](a.json).") == []
    assert unlinked_numbers("| It takes [2 ms](https://a.org), and 3 ms in 2026 |") == ["3 ms"]


@pytest.mark.parametrize("identifier", CHOSEN)
def test_a_finding_that_no_longer_surprises_stops_the_build(judgements: list[Judgement], identifier: str):
    def confirmed(judgement: Judgement) -> Judgement:
        if judgement.claim.id != identifier:
            return judgement
        return dataclasses.replace(
            judgement, parts=tuple(dataclasses.replace(part, verdict="confirmed") for part in judgement.parts)
        )

    with pytest.raises(BookError, match=rf"front.yml, {identifier}: its verdict is now 'confirmed'"):
        front.front_text([confirmed(judgement) for judgement in judgements], "..")
    with pytest.raises(BookError, match=f"names {identifier}, and the ledger has no such claim"):
        front.findings([judgement for judgement in judgements if judgement.claim.id != identifier])


def test_the_picture_shows_each_finding_with_its_numbers_and_says_so(judgements: list[Judgement]):
    figure = front.picture(judgements)
    drawn = [text.get_text() for text in figure.axes[0].texts]
    for finding in front.findings(judgements):
        assert f"“{finding.said}”" in drawn
        assert finding.verdict in drawn
        for bar in finding.bars:
            assert bar.short_words in drawn
            assert bar.words in figure.alt
        # The machine with its date; of what was worked out, there is neither.
        assert all(part in figure.alt for part in re.split(r"(\d{4}-\d\d-\d\d)", finding.caption))
    width, height = figure.get_size_inches()
    assert width / height >= 1.7
    # At 350 pixels, the width of a phone, rows keep letters of 9 pixels.
    sizes = [text.get_fontsize() for text in figure.axes[0].texts if text.get_weight() == "bold"]
    assert min(sizes) / 72 / width * 350 >= 9
    assert problems_of_texts(figure) == []


# The table of lessons


def test_the_table_answers_built_lessons_and_lists_planned_ones_below():
    table, _, planned = readme.lessons_table(LESSONS, ".").partition("Planned")
    for lesson in LESSONS:
        rows = [row for row in table.splitlines() if row.startswith(f"| {lesson.number:02d} ")]
        assert len(rows) == lesson.built
        assert (f"- {lesson.number:02d} {lesson.title}: *{lesson.question}*" in planned) != lesson.built
        for row in rows:
            assert lesson.question in row
            assert f"(./notebooks/{lesson.stem}.ipynb)" in row
            assert answer_text(lesson, LESSONS, ".").sentence in row
            assert re.search(r"\d+ minutes\]", row)
            assert re.search(r"(no|a|two) GPUs? (needed|for a part) \|", row)
    assert len({lesson.question for lesson in LESSONS}) == len(LESSONS)
    assert not re.search(r"\b[A-Z]\d{1,2}\b", table), "no ids of claims"


def test_a_lesson_without_an_answer_is_an_error_that_names_it():
    lesson = dataclasses.replace(next(lesson for lesson in LESSONS if lesson.built), answer=None)
    with pytest.raises(EvidenceError, match=rf"{lesson.slug}/lesson.yml has no answer"):
        readme.lessons_table([lesson], ".")
