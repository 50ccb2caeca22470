"""Rules for the verdicts that people read, as functions: each returns what breaks it, with the sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from authoring.markdown_texts import Passage, blank, passages, prose_only, sentences
from authoring.figures_in_text import MARKER
from authoring.lesson_files import Claim
from authoring.verdict_words import VERDICTS
from course_utils.results.lessons import Lesson

_CLAIM_ID = re.compile(r"(?<![\w#/.-])[FLMST]\d{1,2}[a-z]?(?![\w.-]*\w)")
_VERDICT = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(VERDICTS, key=len, reverse=True)))})(?!\w)", re.I)


def untied_verdicts(texts: Iterable[Passage]) -> list[str]:
    """Sentences that give a claim's id and a verdict that no marker fills in."""
    faults = []
    for passage in texts:
        text = blank(passage.text, MARKER)
        plain = prose_only(text, links=True)
        for sentence in sentences(text):
            shown = plain[sentence.start : sentence.end]
            if _CLAIM_ID.search(shown) and _VERDICT.search(shown):
                faults.append(f'{passage.where}: "{sentence.text}": write the verdict as <!--= claim T8 -->No<!--/-->.')
    return faults


def missing_verdicts(lesson: Lesson, claims: Sequence[Claim]) -> list[str]:
    """Claims whose verdict a lesson does not give."""
    texts = "\n".join(passage.text for passage in passages(lesson.path))
    marked = {*re.findall(r"<!--= claim (\w+) -->", texts)}
    return [
        f"{lesson.path.name}: write <!--= claim {claim.id} -->{claim.word}<!--/-->"
        for claim in claims
        if claim.id not in marked
    ]
