"""The ledger's page: a table of what people say, what came out, the number that decides and the lesson.

The page is committed (``book/claims.md``): it is a function of committed files alone, and lessons link its rows, on
GitHub too. It is plain Markdown with a few ``<span>``; style and filter come from ``_static``, and without them nothing
is missing. What a verdict rests on stands on the lesson's page of evidence (:mod:`authoring.pages.evidence_pages`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from authoring import expressions
from authoring.claims import Claim, Judgement
from authoring.evidence import EvidenceError
from authoring.lesson_answers import published_values
from authoring.lesson_files import LessonFile
from authoring.pages.generated import BOOK, markdown_table, page
from authoring.verdicts import SIGNS
from course_utils.results.result import Result

PAGE = BOOK / "claims.md"
_BRACES = re.compile(r"\{((?:[^{}]|\{[^{}]*\})*)\}")


def badge(word: str) -> str:
    """A verdict with its sign."""
    return f'<span class="claim-verdict claim-{word.lower()}">{SIGNS[word]} {word}</span>'


def _counts(judgements: Iterable[Judgement]) -> dict[str, int]:
    counts = Counter(judgement.claim.word for judgement in judgements)
    return {word: counts[word] for word in SIGNS if counts[word]}


def summary(judgements: Sequence[Judgement]) -> str:
    """How many claims have which verdict: a bar, and words of which each leads to its claims, as Markdown."""
    counts = _counts(judgements)
    parts = "".join(
        f'<span class="claim-{word.lower()}" style="flex-grow: {count}" title="{count} {word}"></span>'
        for word, count in counts.items()
    )
    said = ", ".join(f"{count} {word}" for word, count in counts.items())
    words = " ".join(
        f'<a href="claims.html#verdict={word.lower()}">{badge(word)}&nbsp;{count}</a>' for word, count in counts.items()
    )
    return f'<div class="claim-bar" role="img" aria-label="{said}">{parts}</div>\n\n{words}\n'


def claims_page(judgements: Sequence[Judgement], lessons: Sequence[LessonFile]) -> str:
    """The whole page, as Markdown; the same ledger and records give the same text."""
    by_slug = {lesson.slug: lesson for lesson in lessons}
    rows = [_row(judgement.claim, by_slug[judgement.claim.lesson], lessons) for judgement in judgements]
    legend = [(badge(word), count) for word, count in _counts(judgements).items()]
    table = markdown_table(["What people say, and what came out", "Verdict", "The number", "Lesson"], rows)
    return page("claims.md", count=len(rows), legend=legend, table=table)


def _row(claim: Claim, lesson: LessonFile, lessons: Sequence[LessonFile]) -> tuple[str, ...]:
    by_others = "<br>by others" if claim.is_by_others else ""
    where = f"[{lesson.name}](../notebooks/{lesson.stem}.ipynb)" if lesson.built else lesson.name
    evidence = f"[evidence](reference/{lesson.slug}.md#{claim.id.lower()})"
    return (
        f'<a id="{claim.id.lower()}"></a>**{claim.claim}**<br>{claim.sentence}',
        badge(claim.word) + by_others,
        number_of(claim, lessons),
        f'<span title="{lesson.part}">{where}</span><br>{evidence}',
    )


def number_of(claim: Claim, lessons: Sequence[LessonFile]) -> str:
    """The number that decides a claim, and whose it is, as Markdown; empty if the claim has none.

    Raises:
        EvidenceError: if it cannot be worked out. It names the claim.
    """
    whose: dict[str, None] = {}

    def filled(braces: re.Match[str]) -> str:
        value, rests_on = expressions.evaluate(braces[1], published=published_values(lessons))
        whose.update(dict.fromkeys(_worked_by(each.result) for each in rests_on.values()))
        quoted = re.findall(r"""published\[["'](\w+)["']\]""", braces[1])
        rows = {row.id: row for lesson in lessons for row in lesson.published}
        whose.update(dict.fromkeys(_of_others(rows[name].hardware) for name in quoted))
        return f"**{expressions.written(value, braces[1])}**"

    try:
        words = _BRACES.sub(filled, claim.number)
    except EvidenceError as error:
        raise EvidenceError(f"{claim.lesson}/lesson.yml, {claim.id}, number: {error}") from error
    return f"{words}<br>*{', '.join(whose)}*" if whose else words


def _worked_by(result: Result) -> str:
    """Who that is in a word or two: the GPU's name, ``CPU``, ``worked out`` or ``simulated``."""
    if result.worked_by == "cpu":
        return "CPU"
    return result.who.removeprefix("NVIDIA ").partition(",")[0]


def _of_others(hardware: str) -> str:
    """The same for a published row, of whose hardware the first words will do."""
    named = re.split(r"[;,(]| of | with | by ", hardware)[0].strip()
    return f"others: {named}" if re.search(r"\d", named) else "others"
