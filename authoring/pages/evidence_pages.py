"""What each verdict rests on, lesson by lesson: parts, numbers by machine, rules, published rows and sources.

It stands on the lesson's reference page, where that has a line ``<!-- evidence -->``, and else on a page of its own,
``book/evidence/<slug>.md``. Both are committed: the table of claims links them, on GitHub too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from authoring.claims import SPEAKS_OF, Judgement
from authoring.lesson_answers import rows_text
from authoring.lesson_files import LessonFile
from authoring.pages.generated import BOOK, page
from authoring.verdicts import signed

_PLACE = re.compile(r"^(?:<!-- evidence -->|<!-- generated: evidence -->\n.*?^<!-- /generated -->)$", re.M | re.S)


def address_of(lesson: LessonFile) -> str:
    """Where the evidence of a lesson stands, as seen from the table of claims."""
    reference = BOOK / "reference" / f"{lesson.slug}.md"
    has_place = reference.is_file() and _PLACE.search(reference.read_text(encoding="utf-8"))
    return f"{'reference' if has_place else 'evidence'}/{lesson.slug}.md"


def evidence_pages(judgements: Sequence[Judgement], lessons: Sequence[LessonFile]) -> dict[Path, str]:
    """The pages that hold evidence, and what they have to contain."""
    pages = {}
    for lesson in lessons:
        own = [judgement for judgement in judgements if judgement.claim.lesson == lesson.slug]
        if not own:
            continue
        path = BOOK / address_of(lesson)
        values = {"judgements": own, "signed": signed, "speaks_of": SPEAKS_OF, "rows_text": rows_text}
        body = page("evidence_of_claims.md", **values)
        if path.parent.name == "evidence":
            pages[path] = page("evidence.md", lesson=lesson, body=body)
        else:
            placed = f"<!-- generated: evidence -->\n\n{body}\n<!-- /generated -->"
            pages[path] = _PLACE.sub(lambda _, placed=placed: placed, path.read_text(encoding="utf-8"), count=1)
    return pages


def obsolete_pages(expected: Sequence[Path]) -> list[Path]:
    """Pages of evidence that have moved to a reference page, or whose lesson is gone."""
    return sorted({*(BOOK / "evidence").glob("*.md")} - {*expected})
