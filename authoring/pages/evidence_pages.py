"""What each verdict rests on, on the lesson's reference page: numbers by machine, rules, published rows and sources.

It stands between ``<!-- generated: evidence -->`` and ``<!-- /generated -->``, and is committed: the table of claims
links it, on GitHub too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from authoring.claims import SPEAKS_OF, Judgement
from authoring.lesson_answers import rows_text
from authoring.lesson_files import LessonFile
from authoring.pages.generated import BOOK, BookError, fill, page
from authoring.verdicts import signed


def evidence_pages(judgements: Sequence[Judgement], lessons: Sequence[LessonFile]) -> dict[Path, str]:
    """The reference pages that hold evidence, and what they have to contain.

    Raises:
        BookError: if a lesson with claims has no such page, or the page has no place for it.
    """
    pages = {}
    for lesson in lessons:
        own = [judgement for judgement in judgements if judgement.claim.lesson == lesson.slug]
        if not own:
            continue
        path = BOOK / "reference" / f"{lesson.slug}.md"
        body = page("evidence_of_claims.md", judgements=own, signed=signed, speaks_of=SPEAKS_OF, rows_text=rows_text)
        try:
            pages[path] = fill(path.read_text(encoding="utf-8"), "evidence", body)
        except (OSError, BookError) as error:
            raise BookError(
                f"book/reference/{path.name} holds the evidence of {lesson.slug}'s claims: {error}"
            ) from error
    return pages
