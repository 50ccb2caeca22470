"""Texts of the course: each lesson gives the verdicts on its claims; lint names what looks measured and is typed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from authoring.claims import load_claims
from authoring.markdown_texts import passages
from authoring.typed_numbers import warnings
from course_utils.lesson_notebooks import find_lessons
from tests.made_up_notebooks import save
from tests.made_up_notebooks import text as text_cell


def test_each_lesson_gives_the_ledgers_verdict_on_its_claims():
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
