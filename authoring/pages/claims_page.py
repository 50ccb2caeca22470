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

from authoring import claims as ledger
from authoring.claims import Claim, Judgement, MachineJudgement, PartJudgement
from authoring.pages.generated import BOOK, BookError, markdown_table
from authoring.pages.lesson_list import Lesson
from course_utils.records.notebook_files import read_notebook

PAGE = BOOK / "claims.md"
LEDGER = BOOK / "claims.yml"
# A sign beside the word, so that nobody has to tell colours apart.
SIGNS = {
    "confirmed": "✓",
    "depends": "◐",
    "refuted": "✗",
    "outdated API": "↻",
    "documented": "§",
    ledger.DOCUMENTED_OTHERWISE: "§",
    "open": "○",
}
MEANINGS = {
    "confirmed": "What was measured or run bears it out, most of it clearly, and none of it says otherwise.",
    "depends": "It holds under a condition, in some cases or on some machines: the entry says which.",
    "refuted": "What was measured or run contradicts it.",
    "outdated API": "It was right for a call that has changed or gone.",
    "documented": "It is not measured here: a cited source says so.",
    ledger.DOCUMENTED_OTHERWISE: "It is not measured here: a cited source says something else.",
    "open": "Nothing decides it yet: the entry says what it waits for.",
}


def judge_all() -> list[Judgement]:
    """Judge every claim of the ledger.

    Raises:
        BookError: if the ledger or a record that it reads cannot be used.
    """
    try:
        claims = ledger.load_claims(LEDGER)
        ledger.outcomes_of(call for claim in claims for call in claim.calls)  # all in one process
        return [ledger.judge(claim) for claim in claims]
    except (ledger.ClaimError, ValueError) as error:
        raise BookError(f"the ledger cannot be judged: {error}") from error


def badge(verdict: str, word: str = "") -> str:
    """A verdict, as `Claim.word` has it, with its sign; ``word`` stands for it where it would mislead."""
    return f'<span class="claim-verdict claim-{_css(verdict)}">{SIGNS[verdict]} {word or verdict}</span>'


def _css(verdict: str) -> str:
    return verdict.lower().replace(" ", "-")


def counts_bar(judgements: Iterable[Judgement]) -> str:
    """How many claims have which verdict: a bar. Its parts carry no text; the same numbers stand beside it in words."""
    counts = Counter(judgement.claim.word for judgement in judgements)
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in SIGNS if counts[verdict])
    parts = "".join(
        f'<span class="claim-{_css(verdict)}" style="flex-grow: {counts[verdict]}" title="{counts[verdict]} {verdict}">'
        "</span>"
        for verdict in SIGNS
        if counts[verdict]
    )
    return f'<div class="claim-bar" role="img" aria-label="{words}">{parts}</div>\n'


def counts_table(judgements: Iterable[Judgement]) -> str:
    """How many claims have which verdict, and what the verdicts mean."""
    counts = Counter(judgement.claim.word for judgement in judgements)
    return markdown_table(
        ["Verdict", "Claims", "Meaning"],
        [[badge(verdict), str(counts[verdict]), MEANINGS[verdict]] for verdict in SIGNS],
    )


def summary(judgements: Sequence[Judgement]) -> str:
    """What the landing page says of the ledger, as Markdown."""
    counts = Counter(judgement.claim.word for judgement in judgements)
    words = " ".join(f"{badge(verdict)}&nbsp;{counts[verdict]}" for verdict in SIGNS if counts[verdict])
    return f"{counts_bar(judgements)}\n{words}\n"


def claims_page(judgements: Sequence[Judgement], lessons: Sequence[Lesson]) -> str:
    """The whole page, as Markdown.

    Args:
        judgements: of all claims.
        lessons: all lessons, built and planned.

    Returns:
        The page; the same ledger and records give the same text.
    """
    by_slug = {lesson.slug: lesson for lesson in lessons}
    page = [
        "<!-- `make refresh` writes this page from book/claims.yml and the records: change those, not this. -->",
        "",
        "# The claims, judged",
        "",
        f"The course began from five widely read posts on PyTorch performance. These are the {len(judgements)} things "
        "that they say, in our words. No verdict is an opinion: each follows by a rule from recorded numbers, or from "
        "running the call. The rule stands under each claim, and a test works it out again whenever a record changes. "
        "A record of a CPU never decides what a claim says about GPUs.",
        "",
        counts_bar(judgements),
        counts_table(judgements),
        '<div id="claims-filter"></div>',
        "",
    ]
    ordered = sorted(judgements, key=lambda judgement: by_slug[judgement.claim.lesson].number)
    for topic, members in itertools.groupby(ordered, key=lambda judgement: judgement.claim.topic):
        page += [f"## {topic}", ""]
        for judgement in members:
            page += _entry(judgement, by_slug)
    return "\n".join(page)


def _entry(judgement: Judgement, lessons: dict[str, Lesson]) -> list[str]:
    claim = judgement.claim
    lines = [
        f"### {claim.id}",
        "",
        f"{badge(claim.word)} **{claim.claim}**",
        "",
        f"{claim.sentence}" + (f" {claim.condition}" if claim.condition else ""),
        "",
    ]
    if judgement.verdict != claim.verdict:
        lines += [f"> **Check this** The ledger states *{claim.verdict}*; its rule gives *{judgement.verdict}*.", ""]
    if not judgement.agree:
        lines += ["The recorded machines do not agree; each is listed with its own verdict.", ""]
    for part in judgement.parts:
        lines += _part(part, several=len(judgement.parts) > 1)
    lines += [_where(claim, lessons), ""]
    if claim.sources:
        lines += [f"Sources: {'; '.join(source.rstrip('.') for source in claim.sources)}.", ""]
    return lines + _rules(judgement)


def _part(judged: PartJudgement, several: bool) -> list[str]:
    part, lines = judged.part, []
    if several:
        aside = " (an aside, which the verdict does not rest on)" if part.aside else ""
        lines += [f"{badge(part.word)} {part.what[0].upper()}{part.what[1:]}{aside}", ""]
    for machine in judged.machines:
        lines += _machine(machine, alone=len(judged.machines) == 1)
    if judged.outcomes:
        lines += [f"- `{_one_line(code)}`: {outcome}" for code, outcome in _ended(judged)] + [""]
    if judged.waits_for:
        lines += [f"Waits for {'; '.join(judged.waits_for)}.", ""]
    return lines


def _machine(machine: MachineJudgement, alone: bool) -> list[str]:
    says = "undecided" if machine.verdict == "open" else machine.verdict
    where = f"On {machine.caption}" if alone else f"{badge(machine.verdict, says)} on {machine.caption}"
    lines = [f"- {label}: **{words}**" for label, words in machine.numbers]
    lines += [f"- *{notice}*" for notice in machine.notices]
    return [f"{where}:", "", *lines, ""] if lines else [f"{where}.", ""]


def _ended(judged: PartJudgement) -> list[tuple[str, str]]:
    return [(call.name, judged.outcomes[call.name]) for call in judged.part.calls]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _where(claim: Claim, lessons: dict[str, Lesson]) -> str:
    """Which lesson judges it, and the sections that measure what its rules read."""
    lesson = lessons[claim.lesson]
    about = f"*{claim.kind[0].upper()}{claim.kind[1:]}, {ledger.SPEAKS_OF[claim.speaks_of]}.*"
    if not lesson.built:
        return about
    places: dict[str, list[str]] = {}
    for name in claim.experiments:
        slug = name.partition("/")[0]
        if slug in lessons and lessons[slug].built:
            heading = heading_of(lessons[slug].notebook, name)
            home = lessons[slug]
            title = f"{home.number:02d} · {home.title}" + (f" › {heading}" if heading else "")
            anchor = f"#{slugify(heading)}" if heading else ""
            places.setdefault(f"[{title}](../notebooks/{home.stem}.ipynb{anchor})", []).append(f"`{name}`")
    if not places:
        return f"{about} See [{claim.lesson_title}](../notebooks/{lesson.stem}.ipynb)."
    return f"{about} See " + "; ".join(f"{link} ({', '.join(names)})" for link, names in places.items()) + "."


def _rules(judgement: Judgement) -> list[str]:
    """The rules word for word, folded."""
    claim = judgement.claim
    if not (claim.rule or claim.calls):
        return []
    lines = ["<details><summary>The rule</summary>", ""]
    shown: dict[object, str] = {}
    for judged in judgement.parts:
        part = judged.part
        if len(judgement.parts) > 1 and (part.rule or part.calls):
            lines += [f"For “{part.what}”, judged on {ledger.SPEAKS_OF[part.speaks_of]}:", ""]
        if part.why:
            lines += [part.why, ""]
        for call in part.calls:
            lines += [f"The call *{call.name}*:", "", "```python", call.code.strip(), "```", ""]
        if (written := (part.let, part.steps)) in shown:
            lines += [f"By the rule for “{shown[written]}”.", ""]
        elif part.rule:
            shown[written] = part.what
            named = [f"{name} = {text}" for name, text in part.let]
            steps = [f"{verdict}: {text}" for verdict, text in part.steps]
            lines += ["```text", *named, *([""] if named else []), *steps, "```", ""]
    return [*lines, "</details>", ""]


# Where an experiment stands in its notebook


def heading_of(notebook: Path, experiment: str) -> str | None:
    """The heading above the cell that measures an experiment, as text; None if no cell names it below a heading."""
    heading = None
    for cell in read_notebook(notebook)["cells"]:
        if cell["cell_type"] == "markdown":
            heading = ([match[2].strip() for match in _headings(cell["source"])] or [heading])[-1]
        elif re.search(rf"""(name\s*=\s*|ceilings\()["']{re.escape(experiment)}["']""", cell["source"]):
            return heading
    return None


def _headings(source: str) -> list[re.Match[str]]:
    return list(re.finditer(r"^(#{2,3})\s+(.+)$", re.sub(r"```.*?```", "", source, flags=re.DOTALL), re.MULTILINE))
