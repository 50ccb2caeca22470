"""What tells of all lessons: their table with what each found, in README and the book, and the table of contents."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from authoring.claims import Judgement, MachineJudgement
from authoring.lesson_files import Claim, LessonFile
from authoring.pages.generated import BOOK, ROOT, BookError, fill, page

README = ROOT / "README.md"
PICTURE = BOOK / "images" / "headline.png"
TOC = BOOK / "_toc.yml"


class LessonFinding(NamedTuple):
    """What a lesson found: the claim that speaks for it, and numbers with their machine."""

    claim: Claim
    numbers: str
    caption: str


def picture() -> bytes:
    """README's picture: the trial of the timers, from its newest record."""
    from course_utils.lessons.measuring.timer_trial import timer_quality

    return timer_quality().plot()._repr_png_()


def table_with_findings(
    lessons: Sequence[LessonFile], judgements: Sequence[Judgement], notebooks: str, claims_page: str
) -> str:
    """The table of lessons with what each found, and the machines that its numbers come from.

    The notebooks and the ledger's page are given by their paths from the page that the table stands on.
    """
    findings = {}
    for lesson in lessons:
        own = [judgement for judgement in judgements if judgement.claim.lesson == lesson.slug]
        if lesson.built and own:
            findings[lesson.slug] = _finding(lesson, own)
    captions = dict.fromkeys(finding.caption for finding in findings.values() if finding.numbers)
    return page(
        "lessons.md",
        parts=_by_part(lessons),
        findings=findings,
        captions=list(captions),
        notebooks=notebooks,
        claims_page=claims_page,
    )


def _by_part(lessons: Iterable[LessonFile]) -> list[tuple[str, list[LessonFile]]]:
    return [(part, list(members)) for part, members in itertools.groupby(lessons, key=lambda lesson: lesson.part)]


def _finding(lesson: LessonFile, judgements: Sequence[Judgement]) -> LessonFinding:
    machine, numbers = _chosen_numbers(lesson, judgements) if lesson.finding else _first_numbers(judgements)
    shown = "; ".join(f"{label}: **{value}**" for label, value in numbers).replace("|", "\\|")
    claims = {judgement.claim.id: judgement.claim for judgement in judgements}
    decided = [claim for claim in claims.values() if claim.verdict != "open"]
    claim = claims[lesson.finding[0]] if lesson.finding else next(iter([*decided, *claims.values()]))
    return LessonFinding(claim, shown, machine.caption if machine else "")


def _chosen_numbers(
    lesson: LessonFile, judgements: Sequence[Judgement]
) -> tuple[MachineJudgement | None, Sequence[tuple[str, str]]]:
    """The numbers that lesson.yml names under ``finding``, and the machine that they come from."""
    wanted, *labels = lesson.finding
    judgement = next((each for each in judgements if each.claim.id == wanted), None)
    known = {number.label for number in judgement.claim.evidence} if judgement else set()
    if unknown := sorted({*labels} - known):
        raise BookError(
            f"{lesson.slug}/lesson.yml: `finding` names {unknown[0]!r}, and {wanted} has no such evidence: correct it"
        )
    # A lesson may choose a number of an aside, such as what a CPU says beside a claim about GPUs.
    asides = [machine for part in judgement.parts if part.part.aside for machine in part.machines]
    for machine in (*judgement.machines, *asides):
        if numbers := [number for number in machine.numbers if number[0] in labels]:
            return machine, numbers
    return None, ()


def _first_numbers(judgements: Sequence[Judgement]) -> tuple[MachineJudgement | None, Sequence[tuple[str, str]]]:
    """The first number with an interval, or the first, of the first claim that is decided."""
    decided = [judgement for judgement in judgements if judgement.claim.verdict != "open"]
    for machine in (machine for judgement in decided for machine in judgement.machines):
        if machine.numbers:
            return machine, sorted(machine.numbers, key=lambda number: "(" not in number[1])[:1]
    return None, ()


def readme(lessons: Sequence[LessonFile], judgements: Sequence[Judgement]) -> str:
    """README.md with its generated parts as they have to be."""
    table = table_with_findings(lessons, judgements, "notebooks", "book/claims.md")
    return fill(README.read_text(encoding="utf-8"), "lessons", table)


def table_of_contents(lessons: Sequence[LessonFile]) -> str:
    """What ``_toc.yml`` has to contain: our own pages, and the lessons that are built."""
    return page("_toc.yml", parts=_by_part(lesson for lesson in lessons if lesson.built))
