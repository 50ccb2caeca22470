"""The ledger's page: every claim with its verdict, its numbers and the rule that the verdict follows from.

The page is committed (``book/claims.md``): it is a function of committed files alone, and lessons link its claims, on
GitHub too. It is plain Markdown with a few ``<span>`` and ``<details>``; style and filter come from ``_static``, and
without them nothing is missing.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from mdit_py_plugins.anchors.index import slugify

from authoring.claims import SPEAKS_OF, Claim, Judgement
from authoring.evidence import experiments_in
from authoring.lesson_answers import rows_text
from authoring.lesson_files import LessonFile
from authoring.pages.generated import BOOK, markdown_table, page
from authoring.verdicts import WORDINGS
from course_utils.records.notebook_files import read_notebook

PAGE = BOOK / "claims.md"


def badge(verdict: str, word: str = "") -> str:
    """A verdict, as `Claim.word` has it, with its sign; ``word`` stands for it where it would mislead."""
    return f'<span class="claim-verdict {_css(verdict)}">{WORDINGS[verdict].sign} {word or verdict}</span>'


def _css(verdict: str) -> str:
    return f"claim-{slugify(verdict)}"


def _counts(judgements: Iterable[Judgement]) -> dict[str, int]:
    counts = Counter(judgement.claim.word for judgement in judgements)
    return {verdict: counts[verdict] for verdict in WORDINGS}


def counts_bar(judgements: Iterable[Judgement]) -> str:
    """How many claims have which verdict: a bar. Its parts carry no text; the same numbers stand beside it in words."""
    counts = {f"{count} {verdict}": (verdict, count) for verdict, count in _counts(judgements).items() if count}
    parts = "".join(
        f'<span class="{_css(verdict)}" style="flex-grow: {count}" title="{words}"></span>'
        for words, (verdict, count) in counts.items()
    )
    return f'<div class="claim-bar" role="img" aria-label="{", ".join(counts)}">{parts}</div>\n'


def summary(judgements: Sequence[Judgement]) -> str:
    """What the landing page says of the ledger, as Markdown: each count leads to the claims that it counts."""
    words = " ".join(
        f'<a href="claims.html#verdict={slugify(verdict)}">{badge(verdict)}&nbsp;{count}</a>'
        for verdict, count in _counts(judgements).items()
        if count
    )
    return f"{counts_bar(judgements)}\n{words}\n"


def claims_page(judgements: Sequence[Judgement], lessons: Sequence[LessonFile]) -> str:
    """The whole page, as Markdown; the same ledger and records give the same text."""
    by_slug = {lesson.slug: lesson for lesson in lessons}
    topics = itertools.groupby(judgements, key=lambda judgement: by_slug[judgement.claim.lesson].part)
    counts = [[badge(word), str(count), WORDINGS[word].meaning] for word, count in _counts(judgements).items()]
    return page(
        "claims.md",
        count=len(judgements),
        counts_bar=counts_bar(judgements),
        counts_table=markdown_table(["Verdict", "Claims", "Meaning"], counts),
        topics=[(topic, list(members)) for topic, members in topics],
        badge=badge,
        speaks_of=SPEAKS_OF,
        where=lambda claim: _where(claim, by_slug),
        rows_text=rows_text,
        record_of=lambda machine, lesson: f"../course_utils/records/{machine}/{lesson}.json",
    )


def _where(claim: Claim, lessons: dict[str, LessonFile]) -> str:
    """Which lesson judges it, and the sections that measure what its rules read."""
    about = f"*{claim.kind[0].upper()}{claim.kind[1:]}, {SPEAKS_OF[claim.speaks_of]}.*"
    if not lessons[claim.lesson].built:
        return about
    names: dict[str, list[str]] = {}
    shown = (name for number in claim.evidence for name in experiments_in(number.show))
    for name in dict.fromkeys((*claim.experiments, *shown)):
        names.setdefault(_section(lessons[name.partition("/")[0]], name), []).append(f"`{name}`")
    if not names:
        return f"{about} See [{claim.lesson_title}](../notebooks/{lessons[claim.lesson].stem}.ipynb)."
    return f"{about} See " + "; ".join(f"{link} ({', '.join(these)})" for link, these in names.items()) + "."


def _section(lesson: LessonFile, experiment: str) -> str:
    """A link to the section that measures an experiment."""
    heading = heading_of(lesson.notebook, experiment)
    if heading is None:
        return f"[{lesson.name}](../notebooks/{lesson.stem}.ipynb)"
    return f"[{lesson.name} › {heading}](../notebooks/{lesson.stem}.ipynb#{lesson.number:02d}-{slugify(heading)})"


def heading_of(notebook: Path, experiment: str) -> str | None:
    """The heading above the cell that measures an experiment, as text; None if no cell names it below a heading."""
    heading = None
    for cell in read_notebook(notebook)["cells"]:
        if cell["cell_type"] == "markdown":
            prose = re.sub(r"```.*?```", "", cell["source"], flags=re.DOTALL)
            heading = [heading, *re.findall(r"^#{2,3}\s+(.+?)\s*$", prose, re.MULTILINE)][-1]
        elif re.search(rf"""(name\s*=\s*|ceilings\()["']{re.escape(experiment)}["']""", cell["source"]):
            return heading
    return None
