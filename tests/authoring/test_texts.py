"""The texts of the course: a stated verdict is the ledger's, and lint names what looks measured and is typed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from authoring.claims import load_claims
from authoring.figures_in_text import MARKER
from authoring.markdown_texts import Passage, blank, passages, prose_only, sentence_at, sentences, text_files
from authoring.typed_numbers import typed_numbers, warnings
from authoring.verdict_words import VERDICTS
from course_utils.lesson_notebooks import find_lessons
from tests.made_up_notebooks import save
from tests.made_up_notebooks import text as text_cell

CLAIM_ID = re.compile(r"(?<![\w#/.-])[FLMST]\d{1,2}[a-z]?(?![\w.-]*\w)")
VERDICT = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, VERDICTS))})(?!\w)", re.I)


def untied_verdicts(texts: Iterable[Passage]) -> list[str]:
    """Sentences that give a claim's id and a verdict that no marker fills in."""
    shown = [sentence for each in texts for sentence in sentences(prose_only(blank(each.text, MARKER), links=True))]
    return [sentence for sentence in shown if CLAIM_ID.search(sentence) and VERDICT.search(sentence)]


@pytest.mark.parametrize(
    ("text", "is_seen"),
    [
        ("The claim T8 is confirmed.", True),
        ("The claim T8 is <!--= claim T8 -->No<!--/-->.", False),
        ("<!-- generated: lessons -->\nrefuted: [T8](x.md#t8)\n<!-- /generated -->", False),
        ("A T4 confirms it. See T8. Another is refuted.", False),
    ],
)
def test_a_verdict_on_a_claim_that_is_typed_is_seen(text: str, is_seen: bool):
    assert bool(untied_verdicts([Passage("README.md", None, text)])) is is_seen


def test_no_verdict_is_typed_and_each_lesson_gives_the_verdict_on_its_claims():
    assert [fault for path in text_files() for fault in untied_verdicts(passages(path))] == []
    for lesson in find_lessons():
        marked = {*re.findall(r"<!--= claim (\w+) -->", "\n".join(each.text for each in passages(lesson.path)))}
        own = {claim.id for claim in load_claims() if claim.lesson == lesson.slug}
        assert own <= marked, f"{lesson.path.name}: write <!--= claim {min(own - marked, default='')} -->No<!--/-->"


def test_code_and_comments_are_no_prose():
    text = "A `1 s` and ``2 ` s`` and [3 s](4.md) and <!-- 5 s --> and $6$ s."
    text += "\n\n```python\n7 s\n```\n\n~~~\n8 s\n~~~\n\n9 s"
    plain = prose_only(text)
    assert len(plain) == len(text)
    assert re.findall(r"\d", plain) == ["9"]
    generated = "```{note}\n1 s\n```\n\n<!-- generated: x -->\n2 s\n<!-- /generated -->"
    assert re.findall(r"\d", prose_only(generated)) == ["1"]


def test_the_sentence_at_a_place_is_without_comments():
    text = "# Head\nBefore. It is <!--= a. b -->3<!--/--> long! After."
    assert sentence_at(text, text.index("3")) == "It is 3 long!"
    assert sentence_at(text, text.index("Head")) == "# Head"
    assert sentence_at(text, len(text) - 2) == "After."


@pytest.mark.parametrize(
    "text", ["It takes 3\u00a0µs.", "It is 1.62x faster.", "| pinned | 3 ms |", "1,200 samples per second"]
)
def test_a_typed_measurement_is_seen(text: str):
    assert [*typed_numbers(text)]


@pytest.mark.parametrize(
    "text",
    [
        "It takes <!--= x -->`12 ms`<!--/-->.",
        "Write `sleep 12 ms` or 12.",
        "It takes 12 ms [2, 1].",
        "It takes 12 ms ([a report](https://example.org), 2024).",
        "### Exercise 1 · Find it · 10 min",
    ],
)
def test_what_is_no_typed_measurement_is_left_alone(text: str):
    assert [*typed_numbers(text)] == []


def test_only_what_the_last_commit_does_not_have_is_named(tmp_path: Path):
    (tmp_path / "README.md").write_text("It took 3 ms.\n", encoding="utf-8")
    notebook = save(tmp_path / "notebooks" / "05_things.ipynb", text_cell('It took "4 ms".'))
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert list(warnings(tmp_path)) == []
    (tmp_path / "README.md").write_text("It took 3 ms.\n\nNow it takes 2 ms.\n", encoding="utf-8")
    save(notebook, text_cell('It took "4 ms".\nAnd "5 ms".'))
    assert [each.partition(" is typed")[0] for each in warnings(tmp_path)] == [
        "README.md: '2 ms'",
        "notebooks/05_things.ipynb, cell 1: '5 ms'",
    ]
