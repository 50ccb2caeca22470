"""What each lesson asks, claims and promises: ``course_utils/lessons/<slug>/lesson.yml``, read and checked.

A lesson is planned until its notebook ``notebooks/NN_slug.ipynb`` exists. Its number and its part follow from its place
in ``course_utils/lessons/order.yml``. The dataclasses here and in `published` are the schema: cattrs reads each entry
into one, and each says itself what is wrong with it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import cattrs
import yaml

from authoring import expressions
from authoring.calls import Code, TorchFact
from authoring.expressions import EvidenceError
from authoring.published import PublishedRow, RowSays
from authoring.verdict_words import BY_OTHERS, RULED, VERDICTS, readers_word
from course_utils import lesson_order
from course_utils.lesson_notebooks import notebooks_root
from course_utils.lesson_order import OrderError
from course_utils.results.store import package_root


class LessonFileError(ValueError):
    """A lesson.yml cannot be used. The message names the place and says what to do."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    id: str
    claim: str
    kind: Literal["speed", "memory", "numerics", "API"]
    speaks_of: Literal["any", "CPU", "CUDA", "two GPUs"]
    lesson: str
    verdict: str
    sentence: str
    why: str = ""  # why that kind of device may decide it
    holds: str = ""  # one plain condition, or a list of them
    calls: tuple[tuple[str, Code], ...] = ()
    published: tuple[RowSays, ...] = ()
    number: str = ""  # what the page's table shows: words, with plain expressions in braces
    condition: str = ""
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"there is no verdict {self.verdict!r}; there are: {', '.join(VERDICTS)}")
        if self.verdict.startswith("documented") and not self.sources:
            raise ValueError("is documented: name the sources, each with its version or date.")
        if self.holds and self.verdict not in RULED:
            raise ValueError(f"has holds:, so it is one of {', '.join(RULED)}.")
        if self.verdict in RULED and not self.holds:
            raise ValueError(f"is stated as {self.verdict}, and nothing says why: add holds:, or make it open.")
        if self.holds and not self.experiments and "calls[" not in self.holds:
            raise ValueError(f"holds: {self.holds!r} reads no record and no call: nothing could refute it.")

    @property
    def word(self) -> str:
        return readers_word(self.verdict)

    @property
    def is_by_others(self) -> bool:
        return self.verdict in BY_OTHERS

    @property
    def experiments(self) -> tuple[str, ...]:
        return expressions.experiments_in(self.holds) if self.holds else ()


@dataclass(frozen=True, kw_only=True)
class LessonAnswer:
    says: str  # {number} stands for the number
    number: str


@dataclass(frozen=True)
class UseWhen:
    symptom: str
    try_: str


@dataclass(frozen=True)
class LessonFile:
    slug: str
    number: int
    title: str
    part: str
    question: str
    answer: LessonAnswer | None = None
    use_when: UseWhen | None = None  # if the table in its notebook does not begin with it
    claims: tuple[Claim, ...] = ()
    published: tuple[PublishedRow, ...] = ()
    expect: str | None = None  # the answer to its prediction: a plain expression
    facts: tuple[TorchFact, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.number:02d} · {self.title}"

    @property
    def stem(self) -> str:
        return f"{self.number:02d}_{self.slug}"

    @property
    def notebook(self) -> Path:
        return notebooks_root() / f"{self.stem}.ipynb"

    @property
    def built(self) -> bool:
        return self.notebook.is_file()


# The schema


def _text(value: Any, _: type) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text: put it in quotes")
    return " ".join(value.split())


def _number(value: Any, _: type) -> float | str:
    """A number, or an expression that gives one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is no number")
    return value


_CONVERTER = cattrs.Converter(forbid_extra_keys=True)
_CONVERTER.register_structure_hook(str, _text)
_CONVERTER.register_structure_hook(float | str, _number)
_CONVERTER.register_structure_hook(Code, lambda code, _: str(code))
_CONVERTER.register_structure_hook(RowSays, lambda says, _: says)
_CONVERTER.register_structure_hook(UseWhen, lambda entry, _: UseWhen(entry["symptom"], entry["try"]))


def _structured(kind: Any, entry: dict[str, Any], where: str, **more: Any) -> Any:
    try:
        return _CONVERTER.structure({**entry, **more}, kind)
    except (cattrs.BaseValidationError, AttributeError, TypeError) as error:
        problems = cattrs.transform_error(error, format_exception=_in_words)
        raise LessonFileError(f"{where}: {'; '.join(problems)}") from error


def _in_words(error: BaseException, kind: type | None) -> str:
    if type(error) in (ValueError, Exception, EvidenceError):
        return str(error)
    return cattrs.v.format_exception(error, kind)


# Reading

# The same as `yaml.safe_load`, several times as fast where libyaml is there.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_lessons(folder: Path | None = None) -> list[LessonFile]:
    folder = package_root() / "lessons" if folder is None else folder
    try:
        listed = lesson_order.slugs(folder / "order.yml")
    except (OSError, OrderError) as error:
        raise LessonFileError(f"the order of the lessons cannot be read: {error}") from error
    if unlisted := sorted({path.parent.name for path in folder.glob("*/lesson.yml")} - {*listed}):
        raise LessonFileError(f"{', '.join(unlisted)}: put each lesson into course_utils/lessons/order.yml")
    lessons = [read_lesson(folder / slug / "lesson.yml") for slug in listed]
    ids = [each.id for lesson in lessons for each in (*lesson.claims, *lesson.published)]
    if repeated := sorted({each for each in ids if ids.count(each) > 1}):
        raise LessonFileError(f"two claims or published rows are called {repeated[0]}: give each an id of its own")
    return lessons


def read_lesson(path: Path) -> LessonFile:
    try:
        order = path.parents[1] / "order.yml"
        slug = path.parent.name
        place = lesson_order.number(slug, order), lesson_order.part(slug, order)
        return _lesson(slug, *place, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OrderError) as error:
        raise LessonFileError(
            f"{path.parent.name}/{path.name} cannot be read: {error}. Mend it, or restore it from git."
        ) from error


@functools.lru_cache(maxsize=256)  # each figure in a text asks for all lessons
def _lesson(slug: str, number: int, part: str, text: str) -> LessonFile:
    entry = yaml.load(text, _Loader)
    where = f"{slug}/lesson.yml"
    if not isinstance(entry, dict):
        raise LessonFileError(f"{where} begins with title: and question:.")
    own = {key: value for key, value in entry.items() if key not in ("claims", "facts", "published")}
    lesson = _structured(LessonFile, own, where, slug=slug, number=number, part=part)
    rows = tuple(
        _structured(PublishedRow, each, f"{where}, published {each.get('id')}", lesson=slug)
        for each in entry.get("published", ())
    )
    claims = tuple(_claim(each, {row.id: row for row in rows}, slug) for each in entry.get("claims", ()))
    return dataclasses.replace(lesson, published=rows, claims=claims, facts=_facts(entry.get("facts", ()), where))


def _facts(entries: Iterable[dict[str, Any]], where: str) -> tuple[TorchFact, ...]:
    """What a lesson states of torch; an entry with ``before`` alone is run before each fact below it."""
    facts, before = [], ""
    for entry in entries:
        if {*entry} == {"before"}:
            before = entry["before"]
            continue
        stated = f"{where}, facts, {entry.get('says') or entry.get('message')}"
        by_version = {key: _by_version(entry[key]) for key in ("ends", "message") if key in entry}
        facts.append(_structured(TorchFact, {"before": before, **entry}, stated, **by_version))
    return tuple(facts)


def _by_version(stated: Any) -> dict[str, str]:
    return {key: str(value) for key, value in stated.items()} if isinstance(stated, dict) else {"": str(stated)}


def _claim(entry: dict[str, Any], rows: dict[str, PublishedRow], slug: str) -> Claim:
    where = f"{slug}/lesson.yml, {entry.get('id', 'a claim without an id')}"
    try:
        says = [_row_says(each, rows) for each in entry.get("published", ())]
    except ValueError as error:
        raise LessonFileError(f"{where}: {error}") from error
    return _structured(Claim, entry, where, lesson=slug, published=says, calls=[*entry.get("calls", {}).items()])


def _row_says(entry: dict[str, str], rows: dict[str, PublishedRow]) -> RowSays:
    """What a claim's entry under ``published`` says: the row, one verdict, and its condition."""
    if not isinstance(entry, dict):
        raise ValueError(f"published: {entry!r}: write {{row: {entry}, confirmed: a condition on its numbers}}")
    if entry.get("row") not in rows:
        raise ValueError(f"there is no published row {entry.get('row')!r}; there are: {', '.join(rows) or 'none'}")
    row, words = rows[entry["row"]], {key: value for key, value in entry.items() if key != "row"}
    if len(words) != 1 or not {*words} <= {*RULED}:
        raise ValueError(f"a row says one of {', '.join(RULED)}, with the condition that its numbers bear out")
    ((verdict, condition),) = words.items()
    return RowSays(row=row, verdict=verdict, condition=condition)
