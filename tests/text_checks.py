"""Rules for the texts that people read, as functions: each returns what breaks it, with the sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from authoring import sentences as text_model
from authoring.prose import ProseError, figure
from authoring.sentences import BLANK, Passage, one_line, passages, prose_only, sentence_at
from course_utils.records.lessons import Lesson

LISTED = Path(__file__).with_name("typed_numbers.yml")
REASONS = ("input", "rule", "arithmetic")

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
_MARKER = re.compile(r"<!--=.*?-->.*?<!--/-->", re.S)
_TIMED_LINE = re.compile(r"^(?:#+ Exercise \d+ · .+ · \d+ min|\*\*Time\*\*.*)$", re.M)
_CITATION = re.compile(r"(?<!\w)\[(\d+(?:\s*,\s*\d+)*)\](?!\()")
_DATED = re.compile(r"\b(?:19|20)\d\d\b|\b\d+\.\d+")
_ADDRESS = re.compile(r"\]\(https?://|<?https?://")


@dataclass(frozen=True)
class Typed:
    """A number with a unit that nobody took from a record.

    Attributes:
        passage: where.
        number: the number as it is written.
        sentence: the whole sentence.
        start: where the number begins.
    """

    passage: Passage
    number: str
    sentence: str
    start: int

    def __str__(self) -> str:
        return f'{self.passage.where}: {self.number!r} is typed: "{self.sentence}"'


def numbered_sources(texts: Iterable[Passage]) -> set[str]:
    """The numbers of the entries under Sources that give a version or a date."""
    return {match[1] for entry in sources(texts) if (match := re.match(r"- \[(\d+)\] ", entry)) and is_dated(entry)}


def typed_numbers(texts: Sequence[Passage]) -> Iterator[Typed]:
    """The measurements in the texts of one file that are neither filled in nor cited.

    Such are numbers with a unit, in inline code too where it holds nothing else, and what says as much without a unit.

    Args:
        texts: all of one page or one lesson: a citation is resolved in its Sources.
    """
    known = numbered_sources(texts)
    for passage in texts:
        unfilled = _MARKER.sub(_blanked, passage.text)
        plain = _TIMED_LINE.sub(_blanked, prose_only(unfilled))
        found = [match for pattern in (_TYPED, _TYPED_OTHERWISE) for match in pattern.finditer(plain)]
        # Backticks make a number no less measured. Fences, links and generated parts are blanked here, too.
        bare = prose_only(_INLINE.sub(_uncoded, unfilled))
        coded = [match for match in _INLINE.finditer(unfilled) if _TYPED.fullmatch(match["code"].strip())]
        found += [match for match in coded if bare[match.start("code")] != BLANK]
        for match in sorted(found, key=lambda match: match.start()):
            sentence = sentence_at(passage.text, match.start())
            entry = re.match(r"(?:[-*+]|\d+[.)])\s|\|", sentence.unit)
            if not _is_cited(sentence.unit if entry else sentence.text, known):
                yield Typed(passage, one_line(match[0].strip("`")), sentence.text, match.start())


def _uncoded(match: re.Match[str]) -> str:
    """Inline code that is a number alone, as prose; a character stays where it is."""
    return f" {match['code']} " if _TYPED.fullmatch(match["code"].strip()) else match[0]


def _blanked(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", BLANK, match[0])


def _is_cited(text: str, known: set[str]) -> bool:
    cited = {number for match in _CITATION.finditer(text) for number in re.findall(r"\d+", match[1])}
    return bool(cited & known) or bool(_ADDRESS.search(text) and is_dated(text))


@dataclass
class Listed:
    """A line of ``typed_numbers.yml``: a number that is an input, a rule or arithmetic, and no measurement."""

    file: str
    text: str
    reason: str

    def holds(self, typed: Typed) -> bool:
        """Whether the number stands in this fragment of its sentence."""
        return typed.passage.file == self.file and self.text in typed.sentence and typed.number in self.text


def listed(path: Path = LISTED) -> list[Listed]:
    """The list of numbers that may be typed.

    Raises:
        ValueError: if an entry has another reason than `REASONS`.
    """
    entries = [
        Listed(file, one_line(entry["text"]), entry["reason"])
        for file, found in yaml.safe_load(path.read_text(encoding="utf-8")).items()
        for entry in found
    ]
    for entry in entries:
        if entry.reason not in REASONS:
            raise ValueError(f"{path.name}: {entry.text!r} has the reason {entry.reason!r}; there are: {REASONS}")
    return entries


def typed_faults(files: Iterable[Path], allowed: Sequence[Listed], folder: Path | None = None) -> list[str]:
    """What is typed and on no list, and what is on the list and in no text.

    Args:
        files: all texts.
        allowed: the list.
        folder: the repository's, if it is another one.
    """
    used: set[int] = set()
    faults = []
    for path in files:
        for typed in typed_numbers(passages(path, folder)):
            holding = [number for number, entry in enumerate(allowed) if entry.holds(typed)]
            used.update(holding)
            if not holding:
                faults.append(
                    f"{typed}. Take it from a record (<!--= ... -->), cite its source, or, if it is no measurement, "
                    f"list it in tests/{LISTED.name}."
                )
    faults += [
        f"tests/{LISTED.name}: {entry.text!r} matches no number in {entry.file}; take it off the list."
        for number, entry in enumerate(allowed)
        if number not in used
    ]
    return faults


# Verdicts

_CLAIM_ID = re.compile(r"(?<![\w#/.-])[FLMST]\d{1,2}(?![\w.-]*\w)")
_VERDICT_LINE = re.compile(r"(?:[-*] )?\*\*[A-Z]\d+ · .+\*\*")


def untied_verdicts(texts: Iterable[Passage], words: Iterable[str]) -> list[str]:
    """Sentences that give a claim's id and a verdict, though no marker fills the verdict in.

    A verdict line of a lesson, and the parts of a page that are generated, are checked elsewhere.

    Args:
        texts: where to look.
        words: the verdicts.
    """
    verdict = re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b", re.I)
    found = []
    for passage in texts:
        of_a_lesson = passage.cell is not None
        text = _MARKER.sub(_blanked, passage.text)
        plain = prose_only(text, links=True)
        for one in text_model.sentences(text):
            said = plain[one.start : one.end]
            line = of_a_lesson and _VERDICT_LINE.fullmatch(one.text)
            if _CLAIM_ID.search(said) and verdict.search(said) and not line:
                found.append(f'{passage.where}: "{one.text}": write the verdict as <!--= claim T8 -->refuted<!--/-->.')
    return found


# Sources


def sources(texts: Iterable[Passage]) -> list[str]:
    """The entries under Sources."""
    text = "\n\n".join(passage.text for passage in texts)
    part = re.search(r"^(?:#+ |\*\*)Sources\b.*?$(.*?)(?=^#|^\*\*|\Z)", text, re.M | re.S)
    entries = re.split(r"^(?=[-*] )", part[1] if part else "", flags=re.M)
    return [one_line(entry) for entry in entries if entry.strip()]


def is_dated(entry: str) -> bool:
    """Whether an entry says, outside of addresses, which version or which year it speaks of."""
    return bool(_DATED.search(re.sub(r"\]\([^)]*\)|<?https?://\S+", "]", entry)))


def undated_sources(texts: Sequence[Passage]) -> list[str]:
    """Entries under Sources that give neither a version nor a year."""
    return [
        f"{texts[0].file}: a source has neither version nor date: {one}" for one in sources(texts) if not is_dated(one)
    ]


# The glossary

GLOSSARY = "../book/glossary.md"
# Words that every reader knows, or that lessons use in another sense as well: these need no link.
PLAIN_WORDS = frozenset(
    {"block", "bucket", "buffer", "device", "event", "host", "record", "retry", "round", "storage", "temporary"}
    | {"verdict", "warm-up", "worker"}
)


def terms(glossary: str) -> list[str]:
    """The terms of the glossary, each a heading of the third level."""
    return re.findall(r"^### (.+?)\s*$", glossary, re.M)


def anchor(heading: str) -> str:
    """The anchor that GitHub and the book give to a heading.

    Example:
        >>> anchor("A/A control")
        'aa-control'
    """
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def unlinked_terms(texts: Sequence[Passage], glossary: str) -> list[str]:
    """The terms of the glossary that a lesson uses and does not link where it first does.

    A link is written ``[pinned memory](../book/glossary.md#pinned-memory)``; its words may be another form of the term.
    Headings, code, quotations of claims and what follows Sources count as no use, nor does a term in a longer one.
    """
    found = []
    known = terms(glossary)
    for term in known:
        if term in PLAIN_WORDS:
            continue
        longer = [other for other in known if term in other and other != term]
        first = next(_uses(texts, term, longer), None)
        if first is not None and not first[1]:
            found.append(f'{first[0].where}: "{first[2]}": link {term!r}: [{term}]({GLOSSARY}#{anchor(term)})')
    return found


def _use(term: str) -> re.Pattern[str]:
    case = re.NOFLAG if term.isupper() else re.I
    return re.compile(rf"(?<![\w/-]){re.escape(term)}s?(?![\w-])".replace(r"\ ", r"\s+"), case)


def _uses(texts: Sequence[Passage], term: str, longer: Sequence[str]) -> Iterator[tuple[Passage, bool, str]]:
    """Where a term is used: the place, whether it is linked there, and the sentence."""
    link = re.compile(rf"\[[^\]]+\]\({re.escape(GLOSSARY)}#{re.escape(anchor(term))}\)")
    for passage in texts:
        plain = prose_only(passage.text, links=True)
        if its_sources := re.search(r"^#+ Sources\b", passage.text, re.M):
            plain = plain[: its_sources.start()]
        plain = re.sub(r"^(?:#|\*[^*].*\?\*$|> \*|(?:- )?\*\*\[?[A-Z]\d+\b).*$", _blanked, plain, flags=re.M)
        links = list(link.finditer(plain))
        plain = re.sub(r"\[[^\]]*\]\([^)]*\)", _blanked, plain)
        for other in longer:
            plain = _use(other).sub(_blanked, plain)
        places = [(match.start(), True) for match in links]
        places += [(match.start(), False) for match in _use(term).finditer(plain)]
        for place, linked in sorted(places):
            yield passage, linked, sentence_at(passage.text, place).text


def dead_glossary_links(texts: Iterable[Passage], glossary: str) -> list[str]:
    """Links into the glossary that lead to no term."""
    known = {anchor(term) for term in terms(glossary)}
    return [
        f"{passage.where}: the glossary has no {match[1]!r}"
        for passage in texts
        for match in re.finditer(rf"\]\({re.escape(GLOSSARY)}#([^)]*)\)", passage.text)
        if match[1] not in known
    ]


# Times


def wrong_time(lesson: Lesson) -> list[str]:
    """Where a lesson states another time than its words, exercises and recorded runs give."""
    texts = passages(lesson.path)
    stated = next((match for one in texts if (match := re.search(r"\*\*Time\*\*(.*)", one.text))), None)
    shown = re.sub(r"<!--.*?-->", "", stated[1]) if stated else ""
    try:
        right = figure(f"time {lesson.number:02d}")
    except ProseError as error:
        return [f"{lesson.path.name}: {error}"]
    said = re.search(r"\d+ minutes", shown)
    if said and said[0] == right:
        return []
    return [
        f"{lesson.path.name}: its Time line says {said[0] if said else 'nothing'}, and its words, exercises and runs "
        f"give {right}: write **Time** about <!--= time {lesson.number:02d} -->{right}<!--/-->."
    ]


def page_files(folder: Path | None = None) -> list[Path]:
    """All texts of the course, or of a copy of it."""
    return text_model.text_files(folder)
