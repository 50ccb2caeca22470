"""The generated parts of README.md: the picture, and the table from questions to lessons and to what they found."""

from __future__ import annotations

from collections.abc import Sequence

from authoring import claims as ledger
from authoring.claims import Judgement, MachineJudgement
from authoring.pages.claims_page import SIGNS
from authoring.pages.generated import BOOK, ROOT, BookError, fill
from authoring.pages.lesson_list import Lesson, lessons_table

README = ROOT / "README.md"
# A line under a table has no room for claims_page.MEANINGS.
_IN_FEW_WORDS = {
    "confirmed": "borne out by what was measured or run",
    "depends": "on a condition or a machine",
    "refuted": "by what was measured or run",
    "outdated API": "right for a call that has changed",
    "documented": "by a cited source",
    ledger.DOCUMENTED_OTHERWISE: "a cited source says the opposite",
    "open": "nothing decides it yet",
}
PICTURE = BOOK / "images" / "headline.png"


def picture() -> bytes:
    """README's picture: the trial of the timers, from its newest record.

    Raises:
        course_utils.records.store.RecordError: if there is no record of it, or if it is damaged.
    """
    from course_utils.lessons.measuring.timer_trial import timer_quality

    return timer_quality().plot()._repr_png_()


def table_with_findings(
    lessons: Sequence[Lesson], judgements: Sequence[Judgement], notebooks: str, claims_page: str
) -> str:
    """The table of lessons with what each found, what the signs mean, and the machines that its numbers come from.

    Args:
        lessons: all lessons.
        judgements: of all claims.
        notebooks: path of the notebooks, relative to the page that the table stands on.
        claims_page: path of the ledger's page, likewise.

    Returns:
        Markdown.
    """
    captions: list[str] = []
    findings = {}
    for lesson in lessons:
        own = [judgement for judgement in judgements if judgement.claim.lesson == lesson.slug]
        if lesson.built and own:
            findings[lesson.slug] = _finding(lesson, own, captions, claims_page)
    table = f'<div class="lessons">\n\n{lessons_table(lessons, findings, notebooks)}\n</div>\n'
    notes = [f"{_raised(number)} {caption}" for number, caption in enumerate(captions, start=1)]
    if findings:
        table += f"\n{legend(claims_page)}\n"
    return table + (f"\nMeasured on {'; '.join(notes)}.\n" if notes else "")


def legend(claims_page: str) -> str:
    """The signs of the verdicts, in one line.

    Args:
        claims_page: path of the ledger's page, which says more.
    """
    signs = ", ".join(f"{sign}&nbsp;{verdict} ({_IN_FEW_WORDS[verdict]})" for verdict, sign in SIGNS.items())
    return f"Verdicts on the [course's claims]({claims_page}): {signs}."


def _finding(lesson: Lesson, judgements: Sequence[Judgement], captions: list[str], claims_page: str) -> str:
    """The verdicts of one lesson's claims, and a number."""
    told = []
    for verdict in SIGNS:
        ids = [judgement.claim.id for judgement in judgements if judgement.claim.word == verdict]
        if ids:
            links = ", ".join(f"[{one}]({claims_page}#{one.lower()})" for one in ids)
            told.append(f"{SIGNS[verdict]}&nbsp;{verdict}: {links}")
    words = "; ".join(told)
    machine, numbers = _numbers(lesson, judgements)
    if machine is not None:
        if machine.caption not in captions:
            captions.append(machine.caption)
        shown = "; ".join(f"{label}: **{value}**" for label, value in numbers).replace("|", "\\|")
        words += f".<br>{shown[0].upper()}{shown[1:]}{_raised(captions.index(machine.caption) + 1)}"
    elif all(judgement.claim.verdict == "open" for judgement in judgements):
        needed = dict.fromkeys(ledger.SPEAKS_OF[judgement.claim.speaks_of] for judgement in judgements)
        words += f" (needs {', '.join(needed)})"
    return words


def _numbers(lesson: Lesson, judgements: Sequence[Judgement]) -> tuple[MachineJudgement | None, list[tuple[str, str]]]:
    """The numbers to show of a lesson, and the machine that they come from."""
    if lesson.finding:
        wanted, *labels = lesson.finding
        claim = next((judgement.claim for judgement in judgements if judgement.claim.id == wanted), None)
        known = {number.label for number in claim.evidence} if claim else set()
        if unknown := sorted({*labels} - known):
            raise BookError(
                f"book/lessons.yml: lesson {lesson.slug} shows {unknown[0]!r} of {wanted}, which book/claims.yml does "
                "not have: correct its `finding`"
            )
        judgements = [judgement for judgement in judgements if judgement.claim.id == wanted]
    for judgement in judgements:
        if judgement.claim.verdict != "open" or lesson.finding:
            # A lesson may choose a number of an aside, such as what a CPU says beside a claim about GPUs.
            beside = [machine for part in judgement.parts if part.part.aside for machine in part.machines]
            for machine in (*judgement.machines, *(beside if lesson.finding else ())):
                if lesson.finding:
                    numbers = [number for number in machine.numbers if number[0] in labels]
                else:
                    numbers = [number for number in machine.numbers if "interval" in number[1]] or [*machine.numbers]
                    numbers = numbers[:1]
                if numbers:
                    return machine, numbers
    return None, []


def _raised(number: int) -> str:
    return f"<sup>{number}</sup>"


def readme(lessons: Sequence[Lesson], judgements: Sequence[Judgement]) -> str:
    """README.md with its generated parts as they have to be.

    Raises:
        BookError: if its marks are gone.
    """
    table = table_with_findings(lessons, judgements, "notebooks", "book/claims.md")
    return fill(README.read_text(encoding="utf-8"), "lessons", table)
