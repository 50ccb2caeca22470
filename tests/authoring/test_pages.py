"""The generated pages say what is judged, and what is not."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from markdown_it import MarkdownIt

from authoring import expressions
from authoring.claims import Judgement, MachineJudgement, PartJudgement, judge_all
from authoring.evidence import EvidenceError
from authoring.lesson_answers import answer_text
from authoring.lesson_files import LessonFile, UseWhen, load_lessons
from authoring.pages import claims_page, readme
from authoring.pages.generated import BookError
from authoring.verdicts import WORDINGS
from course_utils.records.store import recorded
from tests.made_up_notebooks import save, text

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


def built() -> list[LessonFile]:
    return [lesson for lesson in LESSONS if lesson.built]


def shown(markdown: str) -> BeautifulSoup:
    return BeautifulSoup(MarkdownIt().enable("table").render(markdown), "html.parser")


def test_the_table_asks_and_answers_in_the_order_of_the_course():
    table = shown(readme.lessons_table(LESSONS))
    rows = [row.select("td") for row in table.select("tr:has(a[href])")]
    answers = [answer_text(lesson, LESSONS, ".") for lesson in built()]
    assert [row[0].a["href"] for row in rows] == [f"./notebooks/{lesson.stem}.ipynb" for lesson in built()]
    assert [row[1].get_text() for row in rows] == [shown(lesson.question).get_text().strip() for lesson in built()]
    assert [row[2].get_text() for row in rows] == [shown(each.sentence).get_text().strip() for each in answers]
    assert [row[3].get_text() for row in rows] == [each.letter for each in answers]
    assert [part["id"] for part in table.select("td a[id]")] == [
        part.lower().replace(" ", "-") for part in dict.fromkeys(lesson.part for lesson in built())
    ]


@pytest.mark.parametrize("lesson", built(), ids=lambda lesson: lesson.slug)
def test_an_answer_has_20_words_at_most_with_a_number_and_says_whose(lesson: LessonFile):
    assert len(lesson.answer.says.split()) <= 20
    answer = answer_text(lesson, LESSONS, ".")
    (number,) = re.findall(r"\[\*\*(.+?)\*\*\]", answer.sentence)
    assert 1 <= len(re.findall(r"\b\d[\d.,]*", number)) <= 2
    whose = {"H": "NVIDIA H200", "C": "2 cores", "S": "by us, with torch", "P": "Published by"}
    assert whose[answer.letter] in answer.whose


def test_every_number_of_readme_leads_to_its_record_or_source():
    sources = {row.source.link for lesson in LESSONS for row in lesson.published}
    text = readme.README.read_text(encoding="utf-8")
    linked = [(link, link["href"]) for link in shown(text).select("a:has(strong)")]
    records = [place for _, place in linked if place not in sources]
    assert all((readme.ROOT / place).is_file() for place in records)
    assert len(linked) > len(built())
    for expression, place in re.findall(r"\*\*<!--= (.+?) -->.+?<!--/-->.*?\*\*\]\((.+?)\)", text):
        (experiment,) = {name.partition("/")[0] for name in expressions.experiments_in(expression)}
        assert place.endswith(f"/{experiment}.json")


def test_readme_is_short_and_shows_what_diagnose_said():
    lines = readme.README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert {"make lab", "make test"} <= {line.partition("  ")[0] for line in lines}
    reading = recorded(readme.CARD)
    card = readme.card_text()
    assert all(advice.saving in card for advice in reading.plan)
    assert reading.caption in card
    assert max(map(len, card.splitlines())) <= 98, "wider than GitHub's column"


def test_a_lesson_without_an_answer_is_an_error_that_names_it():
    lesson = dataclasses.replace(built()[0], answer=None)
    with pytest.raises(EvidenceError, match=rf"{lesson.slug}/lesson.yml has no answer"):
        readme.lessons_table([lesson])


# What to use when


def test_every_lesson_has_a_symptom_and_what_to_try():
    page = shown(readme.USE_WHEN.read_text(encoding="utf-8"))
    rows = [row.select("td") for row in page.select("tr:has(td)")]
    assert [row[2].a["href"] for row in rows] == [f"../notebooks/{lesson.stem}.ipynb" for lesson in built()]
    assert all(cell.get_text().strip() for row in rows for cell in row)


def test_a_lesson_in_the_newer_form_says_it_in_the_table_of_its_notebook(tmp_path: Path, monkeypatch):
    lesson = dataclasses.replace(built()[0], use_when=None)
    save(tmp_path / f"book/reference/{lesson.slug}.md")
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    monkeypatch.setattr(LessonFile, "notebook", tmp_path / "a.ipynb")
    row = "| the *step* waits<!-- why --> | [more](06_data_loading.ipynb) workers |"
    table = text(f"## In your own program\n\nIf:\n\n| if | then |\n| --- | :-: |\n{row}\n| b | c |")
    save(lesson.notebook, text("# A\n\n| a | b |\n|-|-|\n| c | d |"), table)
    assert readme.use_when(lesson) == UseWhen("the *step* waits", "more workers")
    own = UseWhen("it is slow", "less")
    assert readme.use_when(dataclasses.replace(lesson, use_when=own)) == own
    save(lesson.notebook, text("## In your own program\n\nNo.\n\n## Exercise\n\n| a | b |\n|-|-|\n| c | d |"))
    with pytest.raises(BookError, match="has no table under '## In your own program'"):
        readme.use_when(lesson)
