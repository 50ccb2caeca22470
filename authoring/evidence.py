"""Expressions over records: what a rule of the claims ledger, or a figure in a text, reads from a recorded run.

An expression is a small part of Python. An experiment is written by its name, with the slash and no space round it;
what stands for it is the result as `recorded` gives it::

    pinned_memory/copy[1024]["pinned"].verdict == "FASTER"
    caching_allocator/no_cap["default"]["given back"] == 0
    all(point.comparison["flash"].speedup > 1 for point in flash_attention/forward)
    fsdp/peak["DDP"]["peak"] - fsdp/peak["FSDP"]["peak"]

A division has a space on both sides. Numbers keep their unit through arithmetic: a cell of a table has that of its
column, an attribute or a key that ends with ``_s`` or ``_bytes`` is in seconds or bytes, and ``quantity(x, "percent")``
gives one to a number without. ``tally(...)`` counts verdicts: ``faster in 9 of 16, too close to call in 7``.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple, Self

from course_utils.records import store
from course_utils.records.files import package_root
from course_utils.records.kinds.ceilings import Ceiling
from course_utils.records.kinds.rank_results import words_and_unit
from course_utils.records.kinds.table import TABLE_UNITS, Table
from course_utils.records.lessons import Lesson, LessonError, experiments, find_lesson, notebooks_root
from course_utils.records.paired import Interval, Verdict
from course_utils.records.result import WORKED_BY, Result
from course_utils.records.verdicts import WORDS
from course_utils.show.formats import format_interval, value_text
from course_utils.show.suggestions import did_you_mean, typed


class EvidenceError(ValueError):
    """An expression that cannot be read or worked out. The message names what there is."""


class NotRecordedError(EvidenceError):
    """An expression reads experiments that the machine has not recorded."""


@dataclass(frozen=True)
class ShownNumber:
    """A number that a reader wants to see: an expression, and the unit if it brings none of its own."""

    label: str
    show: str
    unit: str | None = None


class Quantity(float):
    """A number with a unit, one of `TABLE_UNITS`. Sums, differences and multiples keep it."""

    unit: str | None

    def __new__(cls, value: float, unit: str | None) -> Self:
        """Make one from a number."""
        quantity = super().__new__(cls, value)
        quantity.unit = unit
        return quantity

    def __repr__(self) -> str:
        return in_words(self)

    def _plus(self, other: float) -> float:
        # 0 is where sum() begins.
        is_alike = getattr(other, "unit", self.unit if other == 0 else None) == self.unit
        value = float(self) + float(other)
        return Quantity(value, self.unit) if is_alike else value

    __add__ = __radd__ = _plus

    def __sub__(self, other: float) -> float:
        return self._plus(-other)

    def __neg__(self) -> Self:
        return Quantity(-float(self), self.unit)

    def __abs__(self) -> Self:
        return Quantity(abs(float(self)), self.unit)

    def __mul__(self, other: float) -> float:
        value = float(self) * float(other)
        return value if isinstance(other, Quantity) else Quantity(value, self.unit)

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> float:
        value = float(self) / float(other)
        if not isinstance(other, Quantity):
            return Quantity(value, self.unit)
        return Quantity(value, "ratio") if self.unit == other.unit else value


# What an expression may use


def _quantity(value: float, unit: str) -> Quantity:
    if unit not in TABLE_UNITS:
        raise EvidenceError(f"there is no unit {unit!r}; there are: {', '.join(TABLE_UNITS)}")
    return Quantity(value, unit)


def _tally(verdicts: Iterable[str]) -> str:
    """How often each verdict was given, most often first: ``faster in 9 of 16, too close to call in 7``."""
    counts = Counter(WORDS[Verdict(verdict)] for verdict in verdicts)
    words = [f"{verdict} in {count}" for verdict, count in counts.most_common()]
    return ", ".join([f"{words[0]} of {counts.total()}", *words[1:]]) if words else "none"


_FUNCTIONS = {function.__name__: function for function in (all, any, len, min, max, sum, abs, round, sorted)}
_FUNCTIONS |= {"quantity": _quantity, "tally": _tally}


class _TableWithUnits(Table):
    """A table whose numbers carry the units of their columns."""

    @classmethod
    def of(cls, table: Table) -> Self:
        return cls(**{each.name: getattr(table, each.name) for each in dataclasses.fields(table)})

    def __getitem__(self, label: Any) -> dict[str, Any]:
        row = super().__getitem__(label)
        return {column: _with_unit(value, self.units.get(column)) for column, value in row.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[label] for label in self.labels)


def _with_unit(value: Any, unit: str | None) -> Any:
    """The value with its unit if it is a number, an interval of numbers, or a table."""
    if isinstance(value, Table):
        return _TableWithUnits.of(value)
    if isinstance(value, Interval):
        return dataclasses.replace(value, low=Quantity(value.low, unit), high=Quantity(value.high, unit))
    if unit is None or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return Quantity(value, unit)


_UNITS_OF_NAMES = {"ratio": "ratio", "speedup": "ratio", "overhead": "ratio", "interval": "ratio"}


def _unit_of_name(name: Any) -> str | None:
    return None if not isinstance(name, str) else _UNITS_OF_NAMES.get(name) or words_and_unit(name)[1]


def _attribute(of: Any, name: str) -> Any:
    unit = of.unit if isinstance(of, Ceiling) and name == "value" else _unit_of_name(name)
    return _with_unit(getattr(of, name), unit)


def _item(of: Any, key: Any) -> Any:
    try:
        value = of[key]
    except KeyError as error:
        if error.args[0] != key:
            raise  # results say what there is; a plain dictionary does not
        raise EvidenceError(f"there is no {key!r}; there are: {', '.join(map(str, of))}") from error
    except (IndexError, TypeError) as error:
        raise EvidenceError(f"a {type(of).__name__} has no item {key!r}: {error}") from error
    # A table's cells have the units of their columns already.
    has_unit = isinstance(value, Quantity) or not isinstance(of, Mapping)
    return value if has_unit else _with_unit(value, _unit_of_name(key))


# Reading an expression

_EXPERIMENT = re.compile(r"""(?P<text>"[^"]*"|'[^']*')|(?<![\w.])(?P<name>[a-z]\w*/[a-z]\w*)""")


class _Guarded(ast.NodeTransformer):
    """Sends attributes and subscripts through functions of ours: they know units, and say what there is."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        return _call("attribute of", node.value, ast.Constant(node.attr))

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        return node if isinstance(node.slice, ast.Slice) else _call("item of", node.value, node.slice)


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


@functools.lru_cache(maxsize=1024)
def _read(text: str, more_names: frozenset[str] = frozenset()) -> tuple[CodeType, tuple[str, ...]]:
    """The code of an expression, and the experiments that it reads."""
    names = dict.fromkeys(match["name"] for match in _EXPERIMENT.finditer(text) if match["name"])
    source = _EXPERIMENT.sub(lambda match: match["text"] or f"recorded[{match['name']!r}]", text)
    try:
        tree = ast.parse(f"({source})", mode="eval")
    except SyntaxError as error:
        raise EvidenceError(f"{text!r} cannot be read as an expression: {error.args[0]}.") from error
    _check(tree, text, more_names)
    tree = ast.fix_missing_locations(_Guarded().visit(tree))
    return compile(tree, "<expression>", "eval"), tuple(names)


def _check(tree: ast.AST, text: str, more_names: frozenset[str]) -> None:
    """Raise for a misspelt name or verdict, which a record that is not there yet would not bring to light."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    known = {node.id for node in names if isinstance(node.ctx, ast.Store)} | {
        *(*_FUNCTIONS, "calls", "published", "recorded"),
        *more_names,
    }
    for node in names:
        if node.id not in known:
            raise EvidenceError(
                f"{text!r} names {node.id!r}. An experiment is written lesson/experiment; the functions are "
                f"{', '.join(_FUNCTIONS)}."
            )
    for node in ast.walk(tree):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if any(isinstance(side, ast.Attribute) and side.attr == "verdict" for side in sides):
            literals = [side for side in sides if isinstance(side, ast.Constant | ast.Tuple | ast.List)]
            words = {each.value for side in literals for each in ast.walk(side) if isinstance(each, ast.Constant)}
            if unknown := words - {*Verdict}:
                raise EvidenceError(f"{text!r} asks for {unknown}; the verdicts are {', '.join(Verdict)}.")


def experiments_in(expression: str) -> tuple[str, ...]:
    """The experiments that an expression reads, ``lesson/experiment``, each once and in order."""
    return _read(expression)[1]


# Records


class Recorded(NamedTuple):
    """An experiment as a machine has recorded it."""

    record: store.LessonRecord
    result: Any
    is_of_other_code: bool  # than the notebook has now


@functools.lru_cache(maxsize=1024)
def _recorded(name: str, path: Path, *contents: bytes) -> Recorded | None:
    """An experiment; None if it is not there. Other ``contents`` are read again."""
    del contents
    try:
        record = store.load_lesson(path)
        if name not in record.experiments:
            return None
        return Recorded(record, _with_unit(record.result(name), None), store.code_has_changed(record, name))
    except store.RecordError as error:
        raise EvidenceError(str(error)) from error


def recorded(names: Iterable[str], machine: str | None, root: Path | None = None) -> dict[str, Recorded]:
    """Experiments as one machine has recorded them; ``root`` is where reference records are.

    Raises:
        EvidenceError: if there is no such machine or experiment, or a record is damaged.
        NotRecordedError: if the machine lacks one of them.
    """
    names = list(names)
    if not names:
        return {}
    files = {f"{name.partition('/')[0]}.json" for name in names}
    known = machines(root)
    folder = root or store.reference_root()
    holding = {each for each in known if all((folder / each / file).is_file() for file in files)}
    try:
        machine = store.machine_named(machine, known, holding)
    except store.RecordError as error:
        raise EvidenceError(str(error)) from error
    experiments_by_name = {}
    for name in names:
        lesson = name.partition("/")[0]
        path = store.record_path(root or store.reference_root(), machine, lesson)
        notebooks = notebooks_root().glob(f"[0-9][0-9]_{lesson}.ipynb")
        contents = [file.read_bytes() for file in (path, *notebooks) if file.is_file()]
        experiments_by_name[name] = _recorded(name, path, *contents) if path.is_file() else None
    if missing := [name for name, recorded in experiments_by_name.items() if recorded is None]:
        for name in missing:
            _check_exists(name)
        lessons = ", ".join(dict.fromkeys(name.partition("/")[0] for name in missing))
        raise NotRecordedError(
            f"{', '.join(missing)}: not recorded on {machine}. Run {typed(f'record {lessons} --reference')} there."
        )
    return experiments_by_name


def _check_exists(name: str) -> None:
    """Raise if no notebook has an experiment of this name: it is misspelt, not missing."""
    slug = name.partition("/")[0]
    try:
        # Its file by name: all lessons would be read anew for each experiment that a machine lacks.
        found = next(notebooks_root().glob(f"[0-9][0-9]_{slug}.ipynb"), None)
        known = experiments(Lesson(0, slug, "", found) if found else find_lesson(slug))
    except LessonError as error:
        raise EvidenceError(f"there is no experiment {name!r}: {error}") from error
    # A text may rest on what an older edition recorded, and is judged by a learner's records, too.
    records = (package_root() / "records").glob(f"*/{slug}.json")
    if name not in known and not any(name in store.load_lesson(path).experiments for path in records):
        hint = did_you_mean(name, known)
        raise EvidenceError(f"there is no experiment {name!r}{hint}. The lesson has: {', '.join(known) or 'none'}.")


def machines(root: Path | None = None) -> list[str]:
    """The machines that have reference records, sorted; ``root`` is where these are."""
    return store.machines(root or store.reference_root())


def newest_result(recorded: Iterable[Recorded]) -> Result:
    """The one of some results that a number is said to come from: the newest that a GPU worked on, else a CPU's."""
    in_order = [*WORKED_BY]
    newest_first = sorted(recorded, key=lambda each: each.record.recorded_at, reverse=True)
    return min((each.result for each in newest_first), key=lambda result: in_order.index(result.worked_by))


def evaluate(
    expression: str, machine: str | None, root: Path | None = None, *, names: Mapping[str, Any] | None = None
) -> Any:
    """What an expression gives on the reference records of one machine; None will do for one that reads no record.

    Numbers whose unit is known are `Quantity`. An expression may use ``names``, too, such as ``calls``, how the calls
    of a claim ended, and ``published``, the numbers of published rows.

    Raises:
        EvidenceError: if the text is no expression, names something that does not exist, or cannot be worked out.
        NotRecordedError: if the machine has no record of an experiment.
    """
    try:
        experiments = _read(expression, frozenset(names or ()))[1]
        results = {name: each.result for name, each in recorded(experiments, machine, root).items()}
        own_names = {"attribute of": _attribute, "item of": _item, "calls": {}, "published": {}, "recorded": results}
        known = {"__builtins__": {}, **_FUNCTIONS, **own_names, **(names or {})}
        return eval(_read(expression, frozenset(names or ()))[0], known)
    except NotRecordedError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        problem = error.args[0] if error.args else type(error).__name__
        raise EvidenceError(f"{expression!r} on {machine}: {problem}") from error


def in_words(value: Any, unit: str | None = None) -> str:
    """A value as it stands in a text, in the words and with the digits that the course's tables use.

    ``unit`` is that of a number without one.

    Example:
        >>> in_words(0.0123, "s"), in_words(3), in_words(True), in_words(("flash", "math"))
        ('12.3 ms', '3', 'yes', 'flash and math')
    """
    if hasattr(value, "in_words"):
        return value.in_words(unit)
    if isinstance(value, Verdict):
        return WORDS[value]
    if isinstance(value, Interval):
        unit = unit or getattr(value.low, "unit", None)
        is_ratio = unit in (None, "ratio")
        return format_interval(value) if is_ratio else f"{in_words(value.low, unit)} to {in_words(value.high, unit)}"
    if isinstance(value, tuple | list):
        words = [in_words(each, unit) for each in value]
        return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words) or "none"
    if isinstance(value, Quantity):
        return value_text(float(value), unit or value.unit)
    if value is None or isinstance(value, str | bool | int | float):
        return value_text(value, unit)
    raise EvidenceError(f"a whole {type(value).__name__} does not fit into a text: name the case or the number of it")
