"""The generated pages say what is judged, and what is not."""

from __future__ import annotations

import dataclasses
import re

import pytest
from bs4 import BeautifulSoup
from markdown_it import MarkdownIt
from mdit_py_plugins.anchors.index import slugify

from authoring.claims import JudgedClaim, judge_all
from authoring.expressions import EvidenceError, evaluate
from authoring.lesson_answers import answer_text
from authoring.lesson_files import load_lessons
from authoring.pages import claims_pages, readme
from authoring.pages.generated import BOOK
from course_utils.results.store import recorded

LESSONS = load_lessons()
BUILT = [lesson for lesson in LESSONS if lesson.built]


@pytest.fixture(scope="module")
def judged() -> list[JudgedClaim]:
    return judge_all(LESSONS)


def test_the_ledgers_page_is_short_and_has_a_row_for_each_claim():
    page = claims_pages.claims_page(LESSONS)
    assert len(page.split()) <= 50 * len([claim for lesson in LESSONS for claim in lesson.claims])
    rows = [line for line in page.splitlines() if line.startswith('| <a id="')]
    claims = [claim for lesson in LESSONS for claim in lesson.claims]
    for row, claim in zip(rows, claims, strict=True):
        cells = re.split(r"(?<!\\)\|", row.strip("| "))
        assert len(cells) == 4, row
        assert f'<a id="{claim.id.lower()}"></a>**{claim.claim}**<br>{claim.sentence}' in cells[0]
        assert f"{claim.word}</span>{'<br>by others' * claim.is_by_others}" in cells[1]
        assert bool(cells[2].strip()) == bool(claim.number)
        address = re.search(r"\[evidence\]\(([\w/]+\.md)#", cells[3])[1]
        assert f'<a id="{claim.id.lower()}"></a>\n###' in (BOOK / address).read_text(encoding="utf-8")


def test_a_number_of_a_claim_is_worked_out_and_says_whose_it_is():
    def number(text: str) -> str:
        claim = next(claim for lesson in LESSONS for claim in lesson.claims)
        return claims_pages.number_of(dataclasses.replace(claim, number=text), LESSONS)

    gain = 'recorded("batch_size/throughput", "nvidia-h200")["batch 64"].speedup'
    row = "published['hf_gpt2_titan_rtx']['dp_s']"
    assert re.fullmatch(r"up to \*\*[\d.]+ times\*\* as fast<br>\*H200\*", number(f"up to {{times({gain})}} as fast"))
    assert number(f'{{f"{{{row}:.0f}} s"}}') == "**111 s**<br>*others: 2x TITAN RTX*"
    assert number("never") == "never"
    with pytest.raises(EvidenceError, match=r"lesson.yml, \w+, number: .*gives [\d.]+: write it with one of us"):
        number(f"{{{gain}}}")


def test_the_evidence_has_all_that_a_verdict_rests_on(judged: list[JudgedClaim]):
    pages = claims_pages.evidence_pages(judged, LESSONS)
    assert {path.stem for path in pages} == {each.claim.lesson for each in judged}
    for path, page in pages.items():
        entries = {entry.split('"')[0]: entry for entry in page.split('\n<a id="')[1:]}
        for each in judged:
            claim = each.claim
            if claim.lesson != path.stem:
                continue
            shown = [claim.sentence, claim.condition, *claim.sources, *(code.strip() for code in claim.calls.values())]
            shown += [words for machine in each.machines for _, words in machine.numbers]
            shown += [machine.caption for machine in each.machines]
            shown += [claim.holds, *(says.row.source.link for says in claim.published)]
            assert [text for text in shown if text.rstrip(".") not in entries[claim.id.lower()]] == []


# The front


def shown(markdown: str) -> BeautifulSoup:
    return BeautifulSoup(MarkdownIt().enable("table").render(markdown), "html.parser")


def test_the_table_asks_and_answers_in_the_order_of_the_course():
    table = shown(readme.lessons_table(LESSONS))
    rows = [row.select("td") for row in table.select("tr:has(a[href])")]
    answers = [answer_text(lesson, LESSONS, ".") for lesson in BUILT]
    assert [row[0].a["href"] for row in rows] == [f"./notebooks/{lesson.stem}.ipynb" for lesson in BUILT]
    assert [row[1].get_text() for row in rows] == [shown(lesson.question).get_text().strip() for lesson in BUILT]
    assert [row[2].get_text() for row in rows] == [shown(each.sentence).get_text().strip() for each in answers]
    assert [row[3].get_text() for row in rows] == [each.letter for each in answers]
    whose = {"H": "NVIDIA H200", "C": "2 cores", "S": "by us, with torch", "P": "Published by"}
    assert all(whose[each.letter] in each.whose for each in answers)
    assert all(len(lesson.answer.says.split()) <= 20 for lesson in BUILT)


def test_every_number_of_readme_leads_to_its_record_or_source():
    sources = {row.source.link for lesson in LESSONS for row in lesson.published}
    text = readme.README.read_text(encoding="utf-8")
    linked = [(link, link["href"]) for link in shown(text).select("a:has(strong)")]
    records = [place for _, place in linked if place not in sources]
    assert all((readme.ROOT / place).is_file() for place in records)
    assert len(linked) > len(BUILT)
    for expression, place in re.findall(r"\*\*<!--= (.+?) -->.+?<!--/-->.*?\*\*\]\((.+?)\)", text):
        ((lesson, machine),) = {(name.partition("/")[0], machine) for name, machine in evaluate(expression).rests_on}
        assert place.endswith(f"/{machine}/{lesson}.json")


def test_readme_is_short_and_shows_what_diagnose_said():
    lines = readme.README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 92 + len(BUILT)
    assert {"make lab", "make test"} <= {line.partition("  ")[0] for line in lines}
    card = readme.card_text()
    assert all(advice.saving in card for advice in recorded(readme.CARD).plan)
    assert max(map(len, card.splitlines())) <= 98, "wider than GitHub's column"


def test_the_glossarys_index_leads_to_each_term_in_order():
    page = (BOOK / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^### (.+)$", page, re.MULTILINE)
    indexed = re.findall(r"\[([^\]]+)\]\(#([\w-]+)\)", page.partition("\n## ")[0])
    assert indexed == [(term, slugify(term)) for term in sorted(terms, key=str.lower)]
    assert page.count("<!--=") >= 12, "the words that live by a number have one"
