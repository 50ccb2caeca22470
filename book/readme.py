"""The generated parts of README.md: the picture, and the table from questions to lessons and to what they found."""

from __future__ import annotations

from collections.abc import Sequence

from book.claims_page import SIGNS
from book.generated import BOOK, ROOT, fill
from book.lesson_list import Lesson, lessons_table
from course_utils import claims as ledger
from course_utils.claims import Judgement

README = ROOT / "README.md"
PICTURE = BOOK / "images" / "headline.png"
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def picture() -> bytes:
    """README's picture: the trial of the timers, from its newest record.

    Raises:
        course_utils.store.RecordError: if there is no record of it, or if it is damaged.
    """
    from course_utils.timer_quality import timer_quality

    return timer_quality().plot()._repr_png_()


def table_with_findings(
    lessons: Sequence[Lesson], judgements: Sequence[Judgement], notebooks: str, claims_page: str
) -> str:
    """The table of lessons with what each found, and the machines that its numbers come from.

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
            findings[lesson.slug] = _finding(own, captions, claims_page)
    table = f'<div class="lessons">\n\n{lessons_table(lessons, findings, notebooks)}\n</div>\n'
    notes = [f"{_raised(number)} {caption}" for number, caption in enumerate(captions, start=1)]
    return table + (f"\nMeasured on {'; '.join(notes)}.\n" if notes else "")


def _finding(judgements: Sequence[Judgement], captions: list[str], claims_page: str) -> str:
    """The verdicts of one lesson's claims, and the first number of the first that has one."""
    told = []
    for verdict in SIGNS:
        ids = [judgement.claim.id for judgement in judgements if judgement.claim.verdict == verdict]
        if ids:
            links = ", ".join(f"[{one}]({claims_page}#{one.lower()})" for one in ids)
            told.append(f"{SIGNS[verdict]}&nbsp;{verdict}: {links}")
    words = "; ".join(told)
    for judgement in judgements:
        if judgement.claim.verdict == "open":
            continue
        for machine in judgement.machines:
            if machine.numbers:
                label, value = machine.numbers[0]
                if machine.caption not in captions:
                    captions.append(machine.caption)
                words += f". {_cell(label)}: **{_cell(value)}**{_raised(captions.index(machine.caption) + 1)}"
                return words
    if all(judgement.claim.verdict == "open" for judgement in judgements):
        needed = dict.fromkeys(ledger.SPEAKS_OF[judgement.claim.speaks_of] for judgement in judgements)
        words += f" (needs {', '.join(needed)})"
    return words


def _raised(number: int) -> str:
    return str(number).translate(_RAISED)


def _cell(text: str) -> str:
    """Text that may stand in a cell of a Markdown table."""
    return text.replace("|", "\\|")


def readme(lessons: Sequence[Lesson], judgements: Sequence[Judgement]) -> str:
    """README.md with its generated parts as they have to be.

    Raises:
        BookError: if its marks are gone.
    """
    table = table_with_findings(lessons, judgements, "notebooks", "book/claims.md")
    return fill(README.read_text(encoding="utf-8"), "lessons", table)
