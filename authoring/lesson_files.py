"""What each lesson asks, claims and promises: ``course_utils/lessons/<slug>/lesson.yml``, read and checked.

A lesson is planned until its notebook ``notebooks/NN_slug.ipynb`` exists. Its number and its part follow from its place
in ``course_utils/lessons/order.yml``. All that the book, README and the ledger say of lessons is put together from
these files.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import cattrs
import yaml

from authoring import evidence, expressions
from authoring.calls import Code, Fact
from authoring.evidence import ShownNumber
from authoring.published import Row, RowSays
from authoring.verdicts import OTHERWISE, RULED, RuledWord, VerdictWord, are_by_others, readers_word, together
from course_utils import lesson_order
from course_utils.lesson_order import OrderError
from course_utils.records.lessons import notebooks_root
from course_utils.records.store import package_root


class LessonFileError(ValueError):
    """A lesson.yml cannot be used. The message names the place and says what to do."""


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """What a claim and its parts have in common."""

    kind: Literal["speed", "memory", "numerics", "API"]
    speaks_of: Literal["any", "CPU", "CUDA", "two GPUs"]


@dataclass(frozen=True, kw_only=True)
class Part(_Judged):
    """What is judged by one rule: a whole claim, or one of the things that it says."""

    what: str
    verdict: VerdictWord
    why: str = ""
    let: tuple[tuple[str, str], ...] = ()
    steps: tuple[tuple[str, str], ...] = ()  # the rule as it is written, for people to read
    rule: tuple[tuple[RuledWord, str], ...] = ()  # with `let` put in
    holds: str = ""  # instead of a rule: one plain condition, or a list of them
    evidence: tuple[ShownNumber, ...] = ()
    calls: tuple[tuple[str, Code], ...] = ()
    published: tuple[RowSays, ...] = ()
    waits_for: str | None = None  # in words: what would settle an open part
    aside: bool = False

    @property
    def experiments(self) -> tuple[str, ...]:
        """Names of the experiments that the rule reads."""
        if self.holds:
            return expressions.experiments_in(self.holds)
        return tuple(dict.fromkeys(name for _, text in self.rule for name in evidence.experiments_in(text)))


@dataclass(frozen=True, kw_only=True)
class Claim(_Judged):
    """One entry of the ledger. A claim that says one thing has one part; the verdict on several follows from theirs."""

    id: str
    claim: str
    lesson: str
    lesson_title: str
    sentence: str
    parts: tuple[Part, ...]
    number: str = ""  # what the page's table shows: words, with plain expressions in braces
    condition: str = ""
    sources: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """What follows from the stated verdicts on its parts; asides do not count."""
        return together([part.verdict for part in self.parts if not part.aside])

    @property
    def word(self) -> str:
        """The verdict as readers see it: Holds, Half, No or Open."""
        return readers_word(self.verdict)

    @property
    def is_by_others(self) -> bool:
        """Whether documents and published rows alone decide it."""
        return are_by_others([part.verdict for part in self.parts if not part.aside])

    @property
    def calls(self) -> tuple[tuple[str, str], ...]:
        """The calls of all parts, in order."""
        return tuple(call for part in self.parts for call in part.calls)

    @property
    def experiments(self) -> tuple[str, ...]:
        """Names of the experiments that its rules read."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.experiments))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a lesson answers, with one number; lessons in the older form also say who can skip it, and when not."""

    says: str  # {number} stands for the number
    number: str
    skip: str = ""
    not_when: str = ""
    machine: str | None = None
    unit: str | None = None


@dataclass(frozen=True)
class UseWhen:
    """Which symptom leads to a lesson, and what to try first."""

    symptom: str
    try_: str


@dataclass(frozen=True)
class Expected:
    """The answer to a lesson's prediction: the expression that gives it, on one machine if it is named."""

    value: str
    unit: str | None = None
    machine: str | None = None


@dataclass(frozen=True)
class LessonFile:
    """One lesson, built or planned, as its lesson.yml has it."""

    slug: str
    number: int
    title: str
    part: str
    question: str
    answer: Answer | None = None
    use_when: UseWhen | None = None  # if the table in its notebook does not begin with it
    claims: tuple[Claim, ...] = ()
    published: tuple[Row, ...] = ()
    expect: Expected | None = None
    facts: tuple[Fact, ...] = ()

    @property
    def name(self) -> str:
        """Number and title as pages show them."""
        return f"{self.number:02d} · {self.title}"

    @property
    def stem(self) -> str:
        """File name of the notebook, without its suffix."""
        return f"{self.number:02d}_{self.slug}"

    @property
    def notebook(self) -> Path:
        """Where the notebook is, or will be."""
        return notebooks_root() / f"{self.stem}.ipynb"

    @property
    def built(self) -> bool:
        """Whether the lesson can be taken: its notebook exists."""
        return self.notebook.is_file()


def _text(value: Any, _: type) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text: put it in quotes")
    return " ".join(value.split())


def _number(value: Any, _: type) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    return value


_CONVERTER = cattrs.Converter(forbid_extra_keys=True)
_CONVERTER.register_structure_hook(str, _text)
_CONVERTER.register_structure_hook(float, _number)
_CONVERTER.register_structure_hook(Code, lambda code, _: str(code))
_CONVERTER.register_structure_hook(UseWhen, lambda entry, _: UseWhen(entry["symptom"], entry["try"]))


def _in_words(error: BaseException, kind: type | None) -> str:
    return str(error) if type(error) in (ValueError, Exception) else cattrs.v.format_exception(error, kind)


def _structured(kind: Any, entry: Any, where: str) -> Any:
    try:
        return _CONVERTER.structure(entry, kind)
    except (cattrs.BaseValidationError, AttributeError, TypeError) as error:
        problems = cattrs.transform_error(error, format_exception=_in_words)
        raise LessonFileError(f"{where}: {'; '.join(problems)}") from error


# Reading

# The same as `yaml.safe_load`, several times as fast where libyaml is there.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _unreadable(path: Path, error: Exception) -> LessonFileError:
    shown = f"{path.parent.name}/{path.name}"
    return LessonFileError(f"{shown} cannot be read: {error}. Mend it, or restore it from git.")


def load_lessons(folder: Path | None = None) -> list[LessonFile]:
    """All lessons, built and planned, in order; ``folder`` holds the lessons' folders.

    Raises:
        LessonFileError: if a file is damaged, or the files do not fit each other and the notebooks.
    """
    folder = package_root() / "lessons" if folder is None else folder
    try:
        listed = lesson_order.slugs(folder / "order.yml")
    except (OSError, OrderError) as error:
        raise LessonFileError(f"the order of the lessons cannot be read: {error}") from error
    if unlisted := sorted({path.parent.name for path in folder.glob("*/lesson.yml")} - {*listed}):
        raise LessonFileError(f"{', '.join(unlisted)}: put each lesson into course_utils/lessons/order.yml")
    lessons = [read_lesson(folder / slug / "lesson.yml") for slug in listed]
    for kind, ids in (
        ("claims", [claim.id for lesson in lessons for claim in lesson.claims]),
        ("published rows", [row.id for lesson in lessons for row in lesson.published]),
    ):
        if repeated := sorted({each for each in ids if ids.count(each) > 1}):
            raise LessonFileError(f"two {kind} are called {repeated[0]}: give each an id of its own")
    if unknown := sorted({path.stem for path in notebooks_root().glob("*.ipynb")} - {each.stem for each in lessons}):
        raise LessonFileError(f"{', '.join(unknown)}: is no lesson of order.yml by its number and name: make renumber")
    return lessons


def read_lesson(path: Path) -> LessonFile:
    """One lesson."""
    try:
        order = path.parents[1] / "order.yml"
        slug = path.parent.name
        place = lesson_order.number(slug, order), lesson_order.part(slug, order)
        return _lesson(slug, *place, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OrderError) as error:
        raise _unreadable(path, error) from error


@functools.lru_cache(maxsize=256)  # each figure in a text asks for all lessons
def _lesson(slug: str, number: int, part: str, text: str) -> LessonFile:
    entry = yaml.load(text, _Loader)
    where = f"{slug}/lesson.yml"
    if not isinstance(entry, dict):
        raise LessonFileError(f"{where} begins with title: and question:.")
    own = {key: value for key, value in entry.items() if key not in ("claims", "facts", "published")}
    if placed := {"slug", "number", "part"} & {*own}:
        raise LessonFileError(f"{where}: {', '.join(sorted(placed))} follows from lessons/order.yml: take it out here")
    lesson = _structured(LessonFile, {"slug": slug, "number": number, "part": part, **own}, where)
    rows = tuple(_row(each, slug) for each in entry.get("published", ()))
    lesson = dataclasses.replace(lesson, published=rows)
    claims = tuple(_claim(each, lesson) for each in entry.get("claims", ()))
    return dataclasses.replace(lesson, claims=claims, facts=_facts(entry.get("facts", ()), where))


# Facts


def _facts(entries: Iterable[dict[str, Any]], where: str) -> tuple[Fact, ...]:
    """What a lesson states of torch; an entry with ``before`` alone is run before each fact below it."""
    facts, before = [], ""
    for entry in entries:
        if {*entry} == {"before"}:
            before = entry["before"]
            continue
        stated = f"{where}, facts, {entry.get('says') or entry.get('message')}"
        by_version = {key: _by_version(entry[key]) for key in ("ends", "message") if key in entry}
        facts.append(_structured(Fact, {"before": before, **entry, **by_version}, stated))
    return tuple(facts)


def _by_version(stated: Any) -> dict[str, str]:
    return {key: str(value) for key, value in stated.items()} if isinstance(stated, dict) else {"": str(stated)}


# Published rows


def _row(entry: Any, slug: str) -> Row:
    identifier = entry.get("id", "a row without an id") if isinstance(entry, dict) else entry
    where = f"{slug}/lesson.yml, published {identifier}"
    return _structured(Row, {**entry, "lesson": slug} if isinstance(entry, dict) else entry, where)


def _row_says(entry: dict[str, str], lesson: LessonFile) -> RowSays:
    """What a part's entry under ``published`` says: the row, one verdict, and its condition."""
    rows = {row.id: row for row in lesson.published}
    if entry.get("row") not in rows:
        raise ValueError(f"there is no published row {entry.get('row')!r}; there are: {', '.join(rows) or 'none'}")
    row, words = rows[entry["row"]], {key: value for key, value in entry.items() if key != "row"}
    if len(words) != 1 or not {*words} <= {*_ROW_WORDS}:
        raise ValueError(f"a row says one of {', '.join(_ROW_WORDS)}, with the condition that its numbers bear out")
    ((verdict, condition),) = words.items()
    if not {*row.values, "samples"} & {*re.findall(r"\w+", condition)}:
        raise ValueError(f"the condition {condition!r} reads no number of {row.id}: it has {', '.join(row.values)}")
    return RowSays(row=row, verdict=verdict, condition=condition)


# Claims

_ROW_WORDS = ("confirmed", "refuted", "depends")
_OF_BOTH = {"kind", "speaks_of"}
_OF_PARTS = {"verdict", "contradicted", "why", "let", "rule", "holds", "evidence", "calls", "published", "waits_for"}


def _claim(entry: dict[str, Any], lesson: LessonFile) -> Claim:
    where = f"{lesson.slug}/lesson.yml, {entry.get('id', 'a claim without an id')}"
    if "parts" in entry:
        inherited = {key: entry[key] for key in ("kind", "speaks_of") if key in entry}
        parts = [inherited | part for part in entry["parts"]]
    else:
        parts = [{key: entry[key] for key in (_OF_BOTH | _OF_PARTS) & entry.keys()} | {"what": entry.get("claim")}]
        if parts[0].get("verdict") == "open" and "rule" not in parts[0]:
            entry = {"sentence": f"Open: lesson {lesson.name} will judge it.", **entry}
    try:
        parts = [
            {**_with_let(_judged(part)), "published": [_row_says(each, lesson) for each in part.get("published", ())]}
            for part in parts
        ]
        entry = {key: value for key, value in entry.items() if key not in _OF_PARTS}
        more = {"lesson": lesson.slug, "lesson_title": lesson.name, "parts": parts}
        claim = _structured(Claim, entry | more, where)
        _check(claim)
    except LessonFileError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        raise LessonFileError(f"{where}: {error}") from error
    return claim


def _judged(part: dict[str, Any]) -> dict[str, Any]:
    """A part with the verdict that follows where its source or the rows contradict it."""
    part = dict(part)
    if part.pop("contradicted", False):
        if part.get("verdict") not in OTHERWISE:
            raise ValueError(f"is {part.get('verdict')} and contradicted; that is for what is documented or published.")
        part["verdict"] = OTHERWISE[part["verdict"]]
    return part


def _with_let(part: dict[str, Any]) -> dict[str, Any]:
    """A part with what ``let`` defines put in for ``{name}``; the language itself has no braces."""
    let = part.get("let", {})

    def expanded(text: str) -> str:
        for _ in let:  # what is put in may hold names itself, in any order
            for name, stands_for in let.items():
                text = text.replace(f"{{{name}}}", stands_for)
        return text

    steps = [step for each in part.get("rule", ()) for step in each.items()]
    # What else may happen is spelled as a word: a bare True in the file would read as a slip.
    rule = [(verdict, "True" if text == "otherwise" else expanded(text)) for verdict, text in steps]
    numbers = [number | {"show": expanded(number["show"])} for number in part.get("evidence", ())]
    calls = [*part.get("calls", {}).items()]
    return {**part, "let": [*let.items()], "steps": steps, "rule": rule, "evidence": numbers, "calls": calls}


def _check(claim: Claim) -> None:
    """Raise for what is wrong with a claim whose form is right."""
    for part in claim.parts:
        if part.verdict in ("documented", OTHERWISE["documented"]) and not claim.sources:
            raise ValueError("is documented: name the sources, each with its version or date.")
        if part.holds and (part.rule or part.evidence or part.verdict not in RULED):
            raise ValueError(f"has holds:, so it has no let, rule or evidence, and is one of {', '.join(RULED)}.")
        if part.holds and len(claim.parts) > 1:
            raise ValueError("has parts and holds: a claim of two things is two claims, each with its own condition.")
        if part.verdict in RULED and not (part.rule or part.holds):
            raise ValueError(f"is stated as {part.verdict}, and no rule says why: add holds:, or make it open.")
        if part.holds and not expressions.experiments_in(part.holds) and "calls[" not in part.holds:
            raise ValueError(f"holds: {part.holds!r} reads no record and no call: nothing could refute it.")
        for text in (*(text for _, text in part.rule), *(number.show for number in part.evidence)):
            evidence.experiments_in(text)


_CONVERTER.register_structure_hook(RowSays, lambda says, _: says)
