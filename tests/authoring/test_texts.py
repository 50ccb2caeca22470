"""The texts of the course: a stated verdict is the ledger's, and lint names what looks measured and is typed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from authoring.claims import load_claims
from authoring.figures_in_text import MARKER
from authoring.markdown_texts import Passage, blank, passages, prose_only, sentences, text_files
from authoring.typed_numbers import warnings
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


def test_no_verdict_is_typed_and_each_lesson_gives_the_verdict_on_its_claims():
    assert [fault for path in text_files() for fault in untied_verdicts(passages(path))] == []
    for lesson in find_lessons():
        marked = {*re.findall(r"<!--= claim (\w+) -->", "\n".join(each.text for each in passages(lesson.path)))}
        own = {claim.id for claim in load_claims() if claim.lesson == lesson.slug}
        assert own <= marked, f"{lesson.path.name}: write <!--= claim {min(own - marked, default='')} -->No<!--/-->"


def test_only_what_the_last_commit_does_not_have_is_named(tmp_path: Path):
    (tmp_path / "README.md").write_text("It took 3 ms.\n", encoding="utf-8")
    notebook = save(tmp_path / "notebooks" / "05_things.ipynb", text_cell('It took "4 ms".'))
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert list(warnings(tmp_path)) == []
    fine = "`12 ms`, <!--= x -->12 ms<!--/-->, 12 and\n\n12 ms [1].\n\n12 ms ([a](https://b.org), 2024)."
    (tmp_path / "README.md").write_text(f"It took 3 ms.\n\nNow it takes 2 ms. {fine}\n", encoding="utf-8")
    save(notebook, text_cell('It took "4 ms".\nAnd "5 ms".'))
    assert [each.partition(" is typed")[0] for each in warnings(tmp_path)] == [
        "README.md: '2 ms'",
        "notebooks/05_things.ipynb, cell 1: '5 ms'",
    ]
