"""The generated pages say what is judged, and what is not."""

from __future__ import annotations

import dataclasses
import re

import pytest
import yaml
from mdit_py_plugins.anchors.index import slugify

from authoring.claims import Judgement, judge_all
from authoring.evidence import EvidenceError
from authoring.lesson_answers import answer_of, answer_text
from authoring.lesson_files import load_lessons
from authoring.pages import claims_page, evidence_pages, front, readme
from authoring.pages.generated import BOOK, BookError
from authoring.typed_numbers import typed_numbers
from tests.figure_checks import problems_of_texts

LESSONS = load_lessons()


@pytest.fixture(scope="module")
def judgements() -> list[Judgement]:
    return judge_all(LESSONS)


# The ledger's page, and what it rests on


def test_the_ledgers_page_is_short_and_has_a_row_for_each_claim(judgements: list[Judgement]):
    page = claims_page.claims_page(judgements, LESSONS)
    assert len(page.split()) <= 4000
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


def test_the_evidence_has_all_that_a_verdict_rests_on(judgements: list[Judgement]):
    pages = evidence_pages.evidence_pages(judgements, LESSONS)
    assert {path.stem for path in pages} == {judgement.claim.lesson for judgement in judgements}
    for path, page in pages.items():
        entries = {entry.split('"')[0]: entry for entry in page.split('\n<a id="')[1:]}
        for judgement in judgements:
            claim = judgement.claim
            if claim.lesson != path.stem:
                continue
            shown = [claim.sentence, claim.condition, *claim.sources, *(code.strip() for _, code in claim.calls)]
            for judged in judgement.parts:
                shown += [f"{verdict}: {text}" for verdict, text in judged.part.steps]
                shown += [f"{name} = {text}" for name, text in judged.part.let]
                shown += [words for machine in judged.machines for _, words in machine.numbers]
                shown += [machine.caption for machine in judged.machines]
                shown += [judged.part.holds, judged.waits_for or ""]
                shown += [says.row.source.link for says in judged.part.published]
            assert [text for text in shown if text.rstrip(".") not in entries[claim.id.lower()]] == []


def test_evidence_stands_on_the_reference_page_that_has_a_place_for_it(judgements, tmp_path, monkeypatch):
    monkeypatch.setattr(evidence_pages, "BOOK", tmp_path)
    lesson = next(lesson for lesson in LESSONS if lesson.slug == "fsdp")
    assert evidence_pages.address_of(lesson) == "evidence/fsdp.md"
    own, reference = tmp_path / "evidence" / "fsdp.md", tmp_path / "reference" / "fsdp.md"
    for path in (own, reference):
        path.parent.mkdir()
    own.touch()
    reference.write_text("# FSDP\n\n## Errors\n\nA <!-- evidence --> in a line.\n", encoding="utf-8")
    assert evidence_pages.address_of(lesson) == "evidence/fsdp.md"
    reference.write_text("# FSDP\n\nText.\n\n<!-- evidence -->\n", encoding="utf-8")
    assert evidence_pages.address_of(lesson) == "reference/fsdp.md"
    for _ in range(2):  # the second time, what is there is replaced
        pages = evidence_pages.evidence_pages(judgements, [lesson])
        reference.write_text(pages[reference], encoding="utf-8")
    page = pages[reference]
    assert page.startswith("# FSDP\n\nText.\n\n<!-- generated: evidence -->\n\n## Evidence\n")
    assert page.count('<a id="t17"></a>') == page.count("<!-- /generated -->") == 1
    assert evidence_pages.obsolete_pages([*pages]) == [own]


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


# The glossary


def test_the_glossarys_index_leads_to_each_term_in_order():
    page = (BOOK / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^### (.+)$", page, re.MULTILINE)
    indexed = re.findall(r"\[([^\]]+)\]\(#([\w-]+)\)", page.partition("\n## ")[0])
    assert indexed == [(term, slugify(term)) for term in sorted(terms, key=str.lower)]
    assert page.count("<!--=") >= 12, "the words that live by a number have one"
