"""The generated parts of README.md: the picture, and the table from questions to lessons and to what they found."""

from __future__ import annotations

from collections.abc import Sequence

from authoring.claims import SPEAKS_OF, Judgement, MachineJudgement
from authoring.lesson_files import LessonFile
from authoring.pages.generated import BOOK, ROOT, BookError, fill
from authoring.pages.lesson_list import lessons_table
from authoring.verdicts import WORDINGS

README = ROOT / "README.md"
PICTURE = BOOK / "images" / "headline.png"


def picture() -> bytes:
    """README's picture: the trial of the timers, from its newest record."""
    from course_utils.lessons.measuring.timer_trial import timer_quality

    return timer_quality().plot()._repr_png_()


def table_with_findings(
    lessons: Sequence[LessonFile], judgements: Sequence[Judgement], notebooks: str, claims_page: str
) -> str:
    """The table of lessons with what each found, what the signs mean, and the machines that its numbers come from.

    The notebooks and the ledger's page are given by their paths from the page that the table stands on.
    """
    captions: list[str] = []
    findings = {}
    for lesson in lessons:
        own = [judgement for judgement in judgements if judgement.claim.lesson == lesson.slug]
        if lesson.built and own:
            findings[lesson.slug] = _finding(lesson, own, captions, claims_page)
    table = f'<div class="lessons">\n\n{lessons_table(lessons, findings, notebooks)}\n</div>\n'
    if findings:
        signs = (f"{words.sign}&nbsp;{verdict} ({words.in_few_words})" for verdict, words in WORDINGS.items())
        table += f"\nVerdicts on the [course's claims]({claims_page}): {', '.join(signs)}.\n"
    notes = [f"{_raised(number)} {caption}" for number, caption in enumerate(captions, start=1)]
    return table + (f"\nMeasured on {'; '.join(notes)}.\n" if notes else "")


def _finding(lesson: LessonFile, judgements: Sequence[Judgement], captions: list[str], claims_page: str) -> str:
    """The verdicts of one lesson's claims, and a number. The machine's caption is added to those there are."""
    verdicts = []
    for verdict, words in WORDINGS.items():
        ids = [judgement.claim.id for judgement in judgements if judgement.claim.word == verdict]
        if ids:
            links = ", ".join(f"[{each}]({claims_page}#{each.lower()})" for each in ids)
            verdicts.append(f"{words.sign}&nbsp;{verdict}: {links}")
    text = "; ".join(verdicts)
    machine, numbers = _chosen_numbers(lesson, judgements) if lesson.finding else _first_numbers(judgements)
    if machine is not None:
        if machine.caption not in captions:
            captions.append(machine.caption)
        shown = "; ".join(f"{label}: **{value}**" for label, value in numbers).replace("|", "\\|")
        text += f".<br>{shown[0].upper()}{shown[1:]}{_raised(captions.index(machine.caption) + 1)}"
    elif all(judgement.claim.verdict == "open" for judgement in judgements):
        needed = dict.fromkeys(SPEAKS_OF[judgement.claim.speaks_of] for judgement in judgements)
        text += f" (needs {', '.join(needed)})"
    return text


_Numbers = tuple[MachineJudgement | None, list[tuple[str, str]]]


def _chosen_numbers(lesson: LessonFile, judgements: Sequence[Judgement]) -> _Numbers:
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
    return None, []


def _first_numbers(judgements: Sequence[Judgement]) -> _Numbers:
    """The first number with an interval, or the first, of the first claim that is decided."""
    decided = [judgement for judgement in judgements if judgement.claim.verdict != "open"]
    for machine in (machine for judgement in decided for machine in judgement.machines):
        if machine.numbers:
            return machine, sorted(machine.numbers, key=lambda number: "interval" not in number[1])[:1]
    return None, []


def _raised(number: int) -> str:
    return f"<sup>{number}</sup>"


def readme(lessons: Sequence[LessonFile], judgements: Sequence[Judgement]) -> str:
    """README.md with its generated parts as they have to be."""
    table = table_with_findings(lessons, judgements, "notebooks", "book/claims.md")
    return fill(README.read_text(encoding="utf-8"), "lessons", table)
