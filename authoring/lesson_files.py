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

from authoring import expressions
from authoring.calls import Code, Fact
from authoring.published import Row, RowSays
from authoring.verdicts import OTHERWISE, RULED, VerdictWord, is_by_others, readers_word
from course_utils import lesson_order
from course_utils.lesson_notebooks import notebooks_root
from course_utils.lesson_order import OrderError
from course_utils.results.store import package_root


class LessonFileError(ValueError):
    """A lesson.yml cannot be used. The message names the place and says what to do."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One entry of the ledger: a thing that people say, and what its verdict follows from."""

    id: str
    claim: str
    kind: Literal["speed", "memory", "numerics", "API"]
    speaks_of: Literal["any", "CPU", "CUDA", "two GPUs"]
    lesson: str
    lesson_title: str
    verdict: VerdictWord
    sentence: str
    why: str = ""  # why that kind of device may decide it
    holds: str = ""  # one plain condition, or a list of them
    calls: tuple[tuple[str, Code], ...] = ()
    published: tuple[RowSays, ...] = ()
    number: str = ""  # what the page's table shows: words, with plain expressions in braces
    condition: str = ""
    sources: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """The verdict as readers see it: Holds, Half, No or Open."""
        return readers_word(self.verdict)

    @property
    def is_by_others(self) -> bool:
        """Whether documents and published rows alone decide it."""
        return is_by_others(self.verdict)

    @property
    def experiments(self) -> tuple[str, ...]:
        """Names of the experiments that its condition reads."""
        return expressions.experiments_in(self.holds) if self.holds else ()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a lesson answers, with one number."""

    says: str  # {number} stands for the number
    number: str


@dataclass(frozen=True)
class UseWhen:
    """Which symptom leads to a lesson, and what to try first."""

    symptom: str
    try_: str


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
    expect: str | None = None  # the answer to its prediction: a plain expression
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
    """What a claim's entry under ``published`` says: the row, one verdict, and its condition."""
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


def _claim(entry: dict[str, Any], lesson: LessonFile) -> Claim:
    where = f"{lesson.slug}/lesson.yml, {entry.get('id', 'a claim without an id')}"
    try:
        entry = dict(entry)
        if entry.pop("contradicted", False):
            if entry.get("verdict") not in OTHERWISE:
                raise ValueError(
                    f"is {entry.get('verdict')} and contradicted; that is for what is documented or published."
                )
            entry["verdict"] = OTHERWISE[entry["verdict"]]
        if entry.get("verdict") == "open":
            entry = {"sentence": f"Open: lesson {lesson.name} will judge it.", **entry}
        rows = [_row_says(each, lesson) for each in entry.get("published", ())]
        more = {"lesson": lesson.slug, "lesson_title": lesson.name, "published": rows}
        claim = _structured(Claim, {**entry, **more, "calls": [*entry.get("calls", {}).items()]}, where)
        _check(claim)
    except LessonFileError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        raise LessonFileError(f"{where}: {error}") from error
    return claim


def _check(claim: Claim) -> None:
    """Raise for what is wrong with a claim whose form is right."""
    if claim.verdict in ("documented", OTHERWISE["documented"]) and not claim.sources:
        raise ValueError("is documented: name the sources, each with its version or date.")
    if claim.holds and claim.verdict not in RULED:
        raise ValueError(f"has holds:, so it is one of {', '.join(RULED)}.")
    if claim.verdict in RULED and not claim.holds:
        raise ValueError(f"is stated as {claim.verdict}, and nothing says why: add holds:, or make it open.")
    if claim.holds and not claim.experiments and "calls[" not in claim.holds:
        raise ValueError(f"holds: {claim.holds!r} reads no record and no call: nothing could refute it.")


_CONVERTER.register_structure_hook(RowSays, lambda says, _: says)
