"""The generated pages say what is judged, and what is not."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from markdown_it import MarkdownIt
from mdit_py_plugins.anchors.index import slugify

from authoring import expressions
from authoring.claims import JudgedClaim, judge_all
from authoring.expressions import EvidenceError
from authoring.lesson_answers import answer_text
from authoring.lesson_files import LessonFile, UseWhen, load_lessons
from authoring.pages import claims_page, evidence_pages, readme
from authoring.pages.generated import BOOK, BookError
from course_utils.results.store import recorded
from tests.made_up_notebooks import save, text

LESSONS = load_lessons()


@pytest.fixture(scope="module")
def judgements() -> list[JudgedClaim]:
    return judge_all(LESSONS)


# The ledger's page, and what it rests on


def test_the_ledgers_page_is_short_and_has_a_row_for_each_claim(judgements: list[JudgedClaim]):
    page = claims_page.claims_page(judgements, LESSONS)
    assert len(page.split()) <= 4600
    rows = [line for line in page.splitlines() if line.startswith('| <a id="')]
    assert [re.match(r'\| <a id="(\w+)"', row)[1] for row in rows] == [each.claim.id.lower() for each in judgements]
    for row, judgement in zip(rows, judgements, strict=True):
        claim, cells = judgement.claim, re.split(r"(?<!\\)\|", row.strip("| "))
        assert len(cells) == 4, row
        assert f"**{claim.claim}**<br>{claim.sentence}" in cells[0]
        assert f"{claim.word}</span>{'<br>by others' * claim.is_by_others}" in cells[1]
        assert bool(cells[2].strip()) == bool(claim.number)
        address = re.search(r"\[evidence\]\(([\w/]+\.md)#", cells[3])[1]
        assert f'<a id="{claim.id.lower()}"></a>\n###' in (BOOK / address).read_text(encoding="utf-8")


def test_a_number_of_a_claim_is_worked_out_and_says_whose_it_is():
    def number(text: str) -> str:
        claim = next(claim for lesson in LESSONS for claim in lesson.claims)
        return claims_page.number_of(dataclasses.replace(claim, number=text), LESSONS)

    gain = 'recorded("batch_size/throughput", "nvidia-h200")["batch 64"].speedup'
    row = "published['hf_gpt2_titan_rtx']['dp_s']"
    assert re.fullmatch(r"up to \*\*[\d.]+ times\*\* as fast<br>\*H200\*", number(f"up to {{times({gain})}} as fast"))
    assert number(f'{{f"{{{row}:.0f}} s"}}') == "**111 s**<br>*others: 2x TITAN RTX*"
    assert number("never") == "never"
    with pytest.raises(EvidenceError, match=r"lesson.yml, \w+, number: .*gives [\d.]+: write it with one of us"):
        number(f"{{{gain}}}")


def test_the_evidence_has_all_that_a_verdict_rests_on(judgements: list[JudgedClaim]):
    pages = evidence_pages.evidence_pages(judgements, LESSONS)
    assert {path.stem for path in pages} == {judgement.claim.lesson for judgement in judgements}
    for path, page in pages.items():
        entries = {entry.split('"')[0]: entry for entry in page.split('\n<a id="')[1:]}
        for judgement in judgements:
            claim = judgement.claim
            if claim.lesson != path.stem:
                continue
            shown = [claim.sentence, claim.condition, *claim.sources, *(code.strip() for _, code in claim.calls)]
            shown += [words for machine in judgement.machines for _, words in machine.numbers]
            shown += [machine.caption for machine in judgement.machines]
            shown += [claim.holds, *(says.row.source.link for says in claim.published)]
            assert [text for text in shown if text.rstrip(".") not in entries[claim.id.lower()]] == []


def test_evidence_stands_in_its_place_on_the_reference_page(judgements, tmp_path, monkeypatch):
    monkeypatch.setattr(evidence_pages, "BOOK", tmp_path)
    lesson = next(lesson for lesson in LESSONS if lesson.slug == "fsdp")
    with pytest.raises(BookError, match=r"book/reference/fsdp.md holds the evidence"):
        evidence_pages.evidence_pages(judgements, [lesson])
    reference = tmp_path / "reference" / "fsdp.md"
    reference.parent.mkdir()
    reference.write_text("# FSDP\n\nText.\n\n<!-- generated: evidence -->\n<!-- /generated -->\n", encoding="utf-8")
    for _ in range(2):  # the second time, what is there is replaced
        pages = evidence_pages.evidence_pages(judgements, [lesson])
        reference.write_text(pages[reference], encoding="utf-8")
    page = pages[reference]
    assert page.startswith("# FSDP\n\nText.\n\n<!-- generated: evidence -->\n\n## Evidence\n")
    assert page.count('<a id="t17"></a>') == page.count("<!-- /generated -->") == 1


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


# The glossary


def test_the_glossarys_index_leads_to_each_term_in_order():
    page = (BOOK / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^### (.+)$", page, re.MULTILINE)
    indexed = re.findall(r"\[([^\]]+)\]\(#([\w-]+)\)", page.partition("\n## ")[0])
    assert indexed == [(term, slugify(term)) for term in sorted(terms, key=str.lower)]
    assert page.count("<!--=") >= 12, "the words that live by a number have one"
