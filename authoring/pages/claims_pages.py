"""The ledger's pages: a table of what people say and what came out, and the evidence on each lesson's reference page.

Both are committed, as lessons link them, on GitHub too: they are functions of committed files alone. They are plain
Markdown with a few ``<span>``; style and filter come from ``_static``, and without them nothing is missing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from authoring import expressions
from authoring.claims import SPEAKS_OF, Claim, JudgedClaim
from authoring.expressions import EvidenceError
from authoring.lesson_answers import published_rows, rows_text
from authoring.lesson_files import LessonFile
from authoring.pages.generated import BOOK, BookError, fill, page
from authoring.verdict_words import SIGNS, signed
from course_utils.results.result import Result

PAGE = BOOK / "claims.md"
_BRACES = re.compile(r"\{((?:[^{}]|\{[^{}]*\})*)\}")


def badge(word: str) -> str:
    return f'<span class="claim-verdict claim-{word.lower()}">{SIGNS[word]} {word}</span>'


def _counts(claims: Sequence[Claim]) -> list[tuple[str, str, int]]:
    counts = Counter(claim.word for claim in claims)
    return [(word, badge(word), counts[word]) for word in SIGNS if counts[word]]


def summary(claims: Sequence[Claim]) -> str:
    """How many claims have which verdict: a bar, and words of which each leads to its claims, as Markdown."""
    return page("claims_summary.md", counts=_counts(claims))


def claims_page(lessons: Sequence[LessonFile]) -> str:
    """The table, as Markdown; the same ledger and records give the same text."""
    rows = [
        (lesson, claim, badge(claim.word), number_of(claim, lessons)) for lesson in lessons for claim in lesson.claims
    ]
    return page("claims.md", rows=rows, counts=_counts([claim for _, claim, *_ in rows]))


def number_of(claim: Claim, lessons: Sequence[LessonFile]) -> str:
    """The number that decides a claim, and whose it is, as Markdown; empty if the claim has none."""
    whose: dict[str, None] = {}
    rows = published_rows(lessons)

    def filled(braces: re.Match[str]) -> str:
        value, rests_on = expressions.evaluate(braces[1], published=rows)
        whose.update(dict.fromkeys(_worked_by(each.result) for each in rests_on.values()))
        quoted = re.findall(r"""published\[["'](\w+)["']\]""", braces[1])
        whose.update(dict.fromkeys(_of_others(rows[name].hardware) for name in quoted))
        return f"**{expressions.written(value, braces[1])}**"

    try:
        words = _BRACES.sub(filled, claim.number)
    except EvidenceError as error:
        raise EvidenceError(f"{claim.lesson}/lesson.yml, {claim.id}, number: {error}") from error
    return f"{words}<br>*{', '.join(whose)}*" if whose else words


def _worked_by(result: Result) -> str:
    """Who that is in a word or two: the GPU's name, ``CPU``, ``worked out`` or ``simulated``."""
    return "CPU" if result.worked_by == "cpu" else result.who.removeprefix("NVIDIA ").partition(",")[0]


def _of_others(hardware: str) -> str:
    named = re.split(r"[;,(]| of | with | by ", hardware)[0].strip()
    return f"others: {named}" if re.search(r"\d", named) else "others"


def evidence_pages(judged: Sequence[JudgedClaim], lessons: Sequence[LessonFile]) -> dict[Path, str]:
    pages = {}
    for lesson in lessons:
        if own := [each for each in judged if each.claim.lesson == lesson.slug]:
            path = BOOK / "reference" / f"{lesson.slug}.md"
            body = page("evidence_of_claims.md", judged=own, signed=signed, speaks_of=SPEAKS_OF, rows_text=rows_text)
            try:
                pages[path] = fill(path.read_text(encoding="utf-8"), "evidence", body)
            except (OSError, BookError) as error:
                raise BookError(
                    f"book/reference/{path.name} holds the evidence of {lesson.slug}'s claims: {error}"
                ) from error
    return pages
