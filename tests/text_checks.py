"""Rules for the verdicts that people read, as functions: each returns what breaks it, with the sentence."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from authoring.course_texts import Passage, blank, passages, prose_only, sentences
from authoring.figures_in_text import MARKER
from authoring.lesson_files import Claim
from authoring.verdicts import VERDICTS
from course_utils.records.lessons import Lesson

_CLAIM_ID = re.compile(r"(?<![\w#/.-])[FLMST]\d{1,2}[a-z]?(?![\w.-]*\w)")
_VERDICT_LINE = re.compile(r"(?:[-*] )?\*\*(?P<id>[A-Z]\d+) · (?P<claim>[^*]+): (?P<verdict>[^*:]+?)\.?\*\*")
_VERDICT = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(VERDICTS, key=len, reverse=True)))})(?!\w)", re.I)


def untied_verdicts(texts: Iterable[Passage]) -> list[str]:
    """Sentences that give a claim's id and a verdict that no marker fills in, and are no verdict line of a lesson."""
    faults = []
    for passage in texts:
        text = blank(passage.text, MARKER)
        plain = prose_only(text, links=True)
        for sentence in sentences(text):
            shown = plain[sentence.start : sentence.end]
            is_line = passage.cell is not None and _VERDICT_LINE.match(sentence.text)
            if _CLAIM_ID.search(shown) and _VERDICT.search(shown) and not is_line:
                faults.append(f'{passage.where}: "{sentence.text}": write the verdict as <!--= claim T8 -->No<!--/-->.')
    return faults


def verdict_faults(lesson: Lesson, claims: Sequence[Claim], judged: Mapping[str, str] | None = None) -> list[str]:
    """Where a lesson states another verdict on a claim than the ledger (or ``judged``, by the claim's id), or none.

    A marker gives it. A lesson in the older form has lines such as ``**T8 · in a few words: refuted.** More words.``
    """
    stated: dict[str, list[str]] = defaultdict(list)
    texts = [passage.text for passage in passages(lesson.path)]
    marked = {match[1] for text in texts for match in re.finditer(r"<!--= claim (\w+) -->", text)}
    for text in texts:
        _, _, verdicts = text.partition("## Verdict")
        for sentence in sentences(re.sub(r"<!--.*?-->", "", verdicts, flags=re.S)):
            if match := _VERDICT_LINE.match(sentence.text):
                stated[match["id"]].append(match["verdict"])
    faults = [f"{lesson.path.name}: the ledger has no claim {each}" for each in stated.keys() - {c.id for c in claims}]
    for claim in claims:
        verdict = (judged or {}).get(claim.id, claim.verdict)
        known = {verdict, *(part.verdict for part in claim.parts if not part.aside)}
        words = {_stated_word(text) for text in stated[claim.id]}
        if claim.id not in marked and not (words and words <= known):
            faults.append(
                f"{lesson.path.name} states {sorted(map(str, words))} of {claim.id}, and the ledger has "
                f"{sorted(known)}: write <!--= claim {claim.id} -->{claim.word}<!--/-->"
            )
    return faults


def _stated_word(text: str) -> str | None:
    """The one verdict that a line gives; None if it gives none, or several."""
    words = _VERDICT.findall(text)
    return words[0] if len(words) == 1 else None
