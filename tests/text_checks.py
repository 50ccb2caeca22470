"""Rules for the texts that people read, as functions: each returns what breaks it, with the sentence."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from authoring.course_texts import Passage, blank, one_line, passages, prose_only, sentence_at, sentences
from authoring.figures_in_text import MARKER
from authoring.lesson_files import Claim
from authoring.verdicts import WORDINGS
from course_utils.records.lessons import Lesson

LISTED = Path(__file__).with_name("typed_numbers.yml")

# Numbers and units

_WORDS = (
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|sixteen|twenty|thirty|forty|fifty|sixty|ninety|"
    "hundred|thousand|million|dozen"
)
_DIGITS = r"\d+(?:[.,\u202f]\d+)*(?:e[+-]?\d+)?"
_UNITS = (
    r"ns|µs|us|ms|s|sec|min|h|(?:nano|micro|milli)?seconds?|minutes?|hours?|bytes|kB|[KMGTP]i?B|"
    r"(?:[kKMGTP]i?)?B/s|[kKMGTP]?FLOP/?s|x|×|times|-?fold|%|percent|per cent"
)
_SPELT_UNITS = r"(?:nano|micro|milli)?seconds?|minutes?|hours?|bytes|[KMGTP]iB|percent|per cent|-?fold"
# "Three times" may count; "three times as fast" is a ratio.
_RATIO = r"times\s+(?:as|the|more|less|faster|slower|larger|smaller|longer|shorter)"
_FRACTIONS = r"twice|double|half|(?:a|one)\s+(?:third|quarter|tenth)|two\s+thirds|three\s+quarters"
_PARTS = rf"(?:{_FRACTIONS})\s+(?:as|the|of\s+(?:the|its))"
_HALVES = r"half\s+an?\s+(?:(?:nano|micro|milli)?second|minute|hour)"
_TYPED = re.compile(
    rf"(?<![\w.,/-])(?:{_DIGITS}[\s\u00a0\u202f-]?(?:{_UNITS})|(?:{_WORDS})[\s-]?(?:{_SPELT_UNITS}|{_RATIO})|{_PARTS}|{_HALVES})"
    r"(?![\w/])",
    re.I,
)
# Measurements without a unit: a ratio in a verb, a speed-up, a rate, a decimal before and after.
_RATES = "tokens|samples|sequences|steps|images|batches|items|lines|calls|iterations"
_TYPED_OTHERWISE = re.compile(
    r"(?<!two )\bhalves\b|\b(?:halved|doubles|doubled|triples|tripled|quadruples|quadrupled)\b"
    rf"|\b(?:speed-?ups?|factors?)\s+(?:of|is|was|by)\s+(?:about\s+)?(?:{_DIGITS}|(?:{_WORDS})\b)"
    rf"|(?<![\w.,/-]){_DIGITS}k?\s?(?:{_RATES})(?:/s\b|\s(?:per|a|each)\s(?:second|minute|hour)\b)"
    r"|\bfrom\s+\d+\.\d+\s+(?:down\s+|up\s+)?to\s+\d+(?:\.\d+)?",
    re.I,
)
_INLINE = re.compile(r"(?<!`)`(?P<code>[^`\n]+)`(?!`)")
_TIMED_LINE = re.compile(r"^(?:#+ Exercise \d+ · .+ · \d+ min|\*\*Time\*\*.*)$", re.M)
_CITATION = re.compile(r"(?<!\w)\[(\d+(?:\s*,\s*\d+)*)\](?!\()")
_DATED = re.compile(r"\b(?:19|20)\d\d\b|\b\d+\.\d+")
_ADDRESS = re.compile(r"\]\(https?://|<?https?://")


@dataclass(frozen=True)
class Typed:
    """A number with a unit that nobody took from a record."""

    passage: Passage
    number: str
    sentence: str

    def __str__(self) -> str:
        return f'{self.passage.where}: {self.number!r} is typed: "{self.sentence}"'


def numbered_sources(texts: Iterable[Passage]) -> set[str]:
    """The numbers of the entries under Sources that give a version or a date outside of their addresses."""
    text = "\n\n".join(passage.text for passage in texts)
    part = re.search(r"^(?:#+ |\*\*)Sources\b.*?$(.*?)(?=^#|^\*\*|\Z)", text, re.M | re.S)
    entries = re.findall(r"^- \[(\d+)\] (.*?)(?=^[-*] |\Z)", part[1] if part else "", re.M | re.S)
    return {number for number, entry in entries if is_dated(entry)}


def is_dated(entry: str) -> bool:
    """Whether an entry says, outside of addresses, which version or which year it speaks of."""
    return bool(_DATED.search(re.sub(r"\]\([^)]*\)|<?https?://\S+", "]", entry)))


def typed_numbers(texts: Sequence[Passage]) -> Iterator[Typed]:
    """The measurements in the texts of one file that are neither filled in nor cited.

    Such are numbers with a unit, in inline code too where it holds nothing else, and what says as much without a unit.
    """
    known = numbered_sources(texts)
    for passage in texts:
        # Backticks make a number no less measured. Fences, links and generated parts are blanked, all else stays.
        bare = _INLINE.sub(_uncoded, blank(passage.text, MARKER))
        plain = blank(prose_only(bare), _TIMED_LINE)
        matches = [match for pattern in (_TYPED, _TYPED_OTHERWISE) for match in pattern.finditer(plain)]
        for match in sorted(matches, key=lambda match: match.start()):
            sentence = sentence_at(passage.text, match.start())
            entry = re.match(r"(?:[-*+]|\d+[.)])\s|\|", sentence.unit)
            if not _is_cited(sentence.unit if entry else sentence.text, known):
                yield Typed(passage, one_line(match[0]), sentence.text)


def _uncoded(match: re.Match[str]) -> str:
    """Inline code that is a number alone, as prose; a character stays where it is."""
    return f" {match['code']} " if _TYPED.fullmatch(match["code"].strip()) else match[0]


def _is_cited(text: str, known: set[str]) -> bool:
    cited = {number for match in _CITATION.finditer(text) for number in re.findall(r"\d+", match[1])}
    return bool(cited & known) or bool(_ADDRESS.search(text) and is_dated(text))


@dataclass(frozen=True)
class Listed:
    """A line of ``typed_numbers.yml``: a number that is an input, a rule or arithmetic, and no measurement."""

    file: str
    text: str
    reason: str

    def holds(self, typed: Typed) -> bool:
        """Whether the number stands in this fragment of its sentence."""
        return typed.passage.file == self.file and self.text in typed.sentence and typed.number in self.text


def listed() -> list[Listed]:
    """The list of numbers that may be typed."""
    files = yaml.safe_load(LISTED.read_text(encoding="utf-8"))
    return [Listed(file, one_line(entry["text"]), entry["reason"]) for file in files for entry in files[file]]


def typed_faults(files: Iterable[Path], allowed: Sequence[Listed], folder: Path | None = None) -> list[str]:
    """What is typed and on no list, and what is on the list and in no text."""
    unused = list(allowed)
    faults = []
    for path in files:
        for typed in typed_numbers(passages(path, folder)):
            unused = [entry for entry in unused if not entry.holds(typed)]
            if not any(entry.holds(typed) for entry in allowed):
                faults.append(
                    f"{typed}. Take it from a record (<!--= ... -->), cite its source, or, if it is no measurement, "
                    f"list it in tests/{LISTED.name}."
                )
    faults += [f"{entry.text!r} matches no number in {entry.file}; take it off the list." for entry in unused]
    return faults


# Verdicts

_CLAIM_ID = re.compile(r"(?<![\w#/.-])[FLMST]\d{1,2}(?![\w.-]*\w)")
_VERDICT_LINE = re.compile(r"(?:[-*] )?\*\*(?P<id>[A-Z]\d+) · (?P<claim>[^*]+): (?P<verdict>[^*:]+?)\.?\*\*")
_VERDICT = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(WORDINGS, key=len, reverse=True)))})(?!\w)", re.I)


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
                faults.append(
                    f'{passage.where}: "{sentence.text}": write the verdict as <!--= claim T8 -->refuted<!--/-->.'
                )
    return faults


def verdict_faults(lesson: Lesson, claims: Sequence[Claim], judged: Mapping[str, str] | None = None) -> list[str]:
    """Where a lesson states another verdict on a claim than the ledger (or ``judged``, by the claim's id), or none.

    A verdict stands in a line of the form ``**T8 · the claim in a few words: refuted.** More words.``
    """
    stated: dict[str, list[str]] = defaultdict(list)
    for passage in passages(lesson.path):
        _, _, verdicts = passage.text.partition("## Verdict")
        for sentence in sentences(re.sub(r"<!--.*?-->", "", verdicts, flags=re.S)):
            if match := _VERDICT_LINE.match(sentence.text):
                stated[match["id"]].append(match["verdict"])
    faults = [f"{lesson.path.name}: the ledger has no claim {each}" for each in stated.keys() - {c.id for c in claims}]
    for claim in claims:
        verdict = (judged or {}).get(claim.id, claim.word)
        # In several lines, a lesson gives the verdicts of the parts as well.
        parts = [part.word for part in claim.parts if not part.aside] if len(stated[claim.id]) > 1 else []
        words = {_stated_word(text) for text in stated[claim.id]}
        if words != {verdict, *parts}:
            faults.append(
                f"{lesson.path.name} states {sorted(map(str, words))} of {claim.id}, and the ledger has "
                f"{sorted({verdict, *parts})}: write **{claim.id} · the claim in a few words: {verdict}.**"
            )
    return faults


def _stated_word(text: str) -> str | None:
    """The one verdict that a line gives; None if it gives none, or several."""
    words = _VERDICT.findall(text)
    return words[0] if len(words) == 1 else None
