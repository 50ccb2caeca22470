"""Expressions over records: what a rule of the claims ledger, or a figure in a text, reads from a recorded run.

An expression is a small part of Python. An experiment is written by its name, with the slash and no space round it;
what stands for it is the result as `recorded` gives it::

    pinned_memory/copy[1024]["pinned"].verdict == "FASTER"
    caching_allocator/no_cap["default"]["given back"] == 0
    all(point.comparison["flash"].speedup > 1 for point in flash_attention/forward)
    fsdp/peak["DDP"]["peak"] - fsdp/peak["FSDP"]["peak"]

A division has a space on both sides. Numbers keep their unit through arithmetic: a cell of a table has that of its
column, an attribute or a key that ends with ``_s`` or ``_bytes`` is in seconds or bytes, and ``quantity(x, "percent")``
gives one to a number without. ``tally(...)`` counts verdicts: ``faster in 9 of 16, unclear in 7``.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import hashlib
import io
import time
import tokenize
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from course_utils.records import store
from course_utils.records.kinds.ceilings import Ceiling
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.rank_results import words_and_unit
from course_utils.records.kinds.table import TABLE_UNITS, Table
from course_utils.records.lessons import LessonError, experiments, find_lesson, fingerprint, notebooks_root
from course_utils.records.paired import Interval, Verdict


class EvidenceError(ValueError):
    """An expression that cannot be read or worked out. The message names what there is."""


class NotRecordedError(EvidenceError):
    """An expression reads experiments that the machine has not recorded, or not with today's parameters.

    Attributes:
        experiments: their names.
    """

    def __init__(self, message: str, experiments: tuple[str, ...]) -> None:
        super().__init__(message)
        self.experiments = experiments


class Quantity(float):
    """A number with a unit, one of `TABLE_UNITS`. Sums, differences and multiples keep it.

    Example:
        >>> in_words(Quantity(2**30, "bytes") + Quantity(2**29, "bytes"))
        '1.50 GiB'
    """

    unit: str | None

    def __new__(cls, value: float, unit: str | None) -> Self:
        """Make one from a number."""
        made = super().__new__(cls, value)
        made.unit = unit
        return made

    def __repr__(self) -> str:
        return in_words(self)

    def _like(self, value: float, other: object) -> float:
        # 0 is where sum() begins.
        same = getattr(other, "unit", self.unit if other == 0 else None) == self.unit
        return Quantity(value, self.unit) if same else float(value)

    def __add__(self, other: float) -> float:
        return self._like(float.__add__(self, other), other)

    __radd__ = __add__

    def __sub__(self, other: float) -> float:
        return self._like(float.__sub__(self, other), other)

    def __rsub__(self, other: float) -> float:
        return self._like(float.__rsub__(self, other), other)

    def __mul__(self, other: float) -> float:
        value = float.__mul__(self, other)
        return value if isinstance(other, Quantity) else Quantity(value, self.unit)

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> float:
        value = float.__truediv__(self, other)
        if not isinstance(other, Quantity):
            return Quantity(value, self.unit)
        return Quantity(value, "ratio") if self.unit == other.unit else value

    def __neg__(self) -> Self:
        return Quantity(float.__neg__(self), self.unit)

    def __abs__(self) -> Self:
        return Quantity(float.__abs__(self), self.unit)


# Reading an expression

_STATEMENTS_OF_VALUES = (
    ast.Expression,
    ast.Name,
    ast.Constant,
    ast.Attribute,
    ast.Subscript,
    ast.Slice,
    ast.Tuple,
    ast.List,
    ast.Compare,
    ast.BoolOp,
    ast.UnaryOp,
    ast.BinOp,
    ast.IfExp,
    ast.Call,
    ast.keyword,
    ast.GeneratorExp,
    ast.ListComp,
    ast.comprehension,
    ast.expr_context,
    ast.boolop,
    ast.unaryop,
    ast.cmpop,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.FloorDiv,
    ast.Mod,
    ast.Pow,
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (all, any, len, min, max, sum, abs, round, sorted)
}
# Methods of results that compute and change nothing.
_METHODS = ("at", "by_kind", "by_module", "comparison", "curves", "first", "get", "interval_at", "inverse")
_METHODS += ("inside", "items", "keys", "meets", "rate", "values")


@dataclass(frozen=True)
class _Expression:
    text: str
    code: Any
    experiments: Mapping[str, str]  # a name in the code, and the experiment that it stands for


def _named_experiments(text: str) -> tuple[str, dict[str, str]]:
    """The expression with a plain name in place of each experiment, and what these names stand for."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(f"({text})").readline))
    except (tokenize.TokenError, SyntaxError) as error:
        raise EvidenceError(f"{text!r} cannot be read as an expression: {error.args[0]}.") from error
    lines = f"({text})".splitlines(keepends=True)
    found: list[tuple[bytes, int, str]] = []
    for before, lesson, slash, name in zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False):
        names = lesson.type == name.type == tokenize.NAME and slash.string == "/" and before.string != "."
        if names and lesson.end == slash.start and slash.end == name.start:
            found.append((lesson.start, name.end[1], f"{lesson.string}/{name.string}"))
    stands_for: dict[str, str] = {}
    for (row, start), end, name in reversed(found):
        placeholder = f"experiment_{len(stands_for)}"
        stands_for[placeholder] = name
        line = lines[row - 1]
        lines[row - 1] = line[:start] + placeholder + line[end:]
    return "".join(lines), dict(reversed(stands_for.items()))


def _check(tree: ast.AST, text: str, known: set[str]) -> None:
    """Raise for anything that is not part of the language."""
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if not isinstance(node, _STATEMENTS_OF_VALUES):
            raise EvidenceError(
                f"{text!r} holds {type(node).__name__}, which is no part of an expression over records."
            )
        if isinstance(node, ast.Name) and node.id not in known | bound | set(_FUNCTIONS) | {
            "quantity",
            "tally",
            "calls",
        }:
            raise EvidenceError(
                f"{text!r} names {node.id!r}. An experiment is written lesson/experiment; the functions are "
                f"{', '.join(_FUNCTIONS)}, quantity and tally."
            )
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            raise EvidenceError(f"{text!r} reads {node.attr!r}; names with an underscore in front are no part of this.")
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            allowed = _METHODS if isinstance(node.func, ast.Attribute) else (*_FUNCTIONS, "quantity", "tally")
            if called not in allowed:
                raise EvidenceError(f"{text!r} calls {called or 'a value'!r}. It may call: {', '.join(allowed)}.")
        if isinstance(node, ast.Compare):
            _check_verdicts(node, text)


def _check_verdicts(node: ast.Compare, text: str) -> None:
    """A misspelt verdict would never be equal to one, and the rule would never hold: an error instead."""
    sides = [node.left, *node.comparators]
    if not any(isinstance(side, ast.Attribute) and side.attr == "verdict" for side in sides):
        return
    for side in sides:
        for constant in ast.walk(side) if isinstance(side, ast.Constant | ast.Tuple | ast.List) else ():
            if isinstance(constant, ast.Constant) and constant.value not in tuple(Verdict):
                raise EvidenceError(
                    f"{text!r} asks for the verdict {constant.value!r}; the verdicts are {', '.join(Verdict)}."
                )


class _Guarded(ast.NodeTransformer):
    """Sends attributes and subscripts through functions of ours: they know units, and say what there is."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        call = ast.Call(ast.Name("attribute of", ast.Load()), [node.value, ast.Constant(node.attr)], [])
        return ast.copy_location(call, node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.slice, ast.Slice):
            return node
        return ast.copy_location(ast.Call(ast.Name("item of", ast.Load()), [node.value, node.slice], []), node)


@functools.lru_cache(maxsize=1024)
def _read(text: str) -> _Expression:
    source, stands_for = _named_experiments(text)
    try:
        tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError) as error:
        raise EvidenceError(f"{text!r} cannot be read as an expression: {error.args[0]}.") from error
    _check(tree, text, set(stands_for))
    tree = ast.fix_missing_locations(_Guarded().visit(tree))
    return _Expression(text, compile(tree, "<expression>", "eval"), stands_for)


def experiments_in(expression: str) -> tuple[str, ...]:
    """The experiments that an expression reads.

    Args:
        expression: the text.

    Returns:
        Their names, ``lesson/experiment``, each once, in order.

    Raises:
        EvidenceError: if the text is no expression over records.

    Example:
        >>> experiments_in('pinned_memory/copy[64]["pinned"].median_s / measuring/warm_cache.median_s')
        ('pinned_memory/copy', 'measuring/warm_cache')
    """
    return tuple(dict.fromkeys(_read(expression).experiments.values()))


# Records

_FRESH_S = 2


@functools.lru_cache(maxsize=256)
def _lesson_record(path: Path, stamp: Hashable) -> store.LessonRecord:
    """A record, read once as long as its file does not change; ``stamp`` is that of the file."""
    del stamp
    try:
        return store.load_lesson(path)
    except store.RecordError as error:
        raise EvidenceError(str(error)) from error


@functools.lru_cache(maxsize=1024)
def _result(path: Path, stamp: Hashable, name: str) -> Any:
    try:
        result = _lesson_record(path, stamp).result(name)
    except store.RecordError as error:
        raise EvidenceError(str(error)) from error
    return _WithUnits.of(result) if isinstance(result, Table) else result


def _stamp(path: Path) -> Hashable:
    """Stands for what is in a file; None without one. Cheap, but not for a file that was just written."""
    try:
        status = path.stat()
        # Times of files are coarse: two versions of the same size, written in no time, would look the same.
        if time.time() - status.st_mtime < _FRESH_S:
            return hashlib.blake2b(path.read_bytes(), digest_size=16).digest()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


@functools.lru_cache(maxsize=1024)
def _fingerprint(notebook: Path, stamp: Hashable, name: str) -> Any:
    del stamp
    try:
        return fingerprint(notebook, name)
    except LessonError:
        return None


def _current(name: str) -> Any:
    """The fingerprint of an experiment as its notebook has it now; None where there is none."""
    try:
        notebook = next(notebooks_root().glob(f"[0-9][0-9]_{name.partition('/')[0]}.ipynb"), None)
    except LessonError:
        # The package may be installed without the notebooks.
        return None
    return None if notebook is None else _fingerprint(notebook, _stamp(notebook), name)


def _record_of(name: str, machine: str, root: Path) -> tuple[store.LessonRecord, Path, Hashable] | None:
    """The record of a machine that holds an experiment."""
    path = store.record_path(root, machine, name.partition("/")[0])
    stamp = _stamp(path)
    if stamp is None:
        return None
    record = _lesson_record(path, stamp)
    return (record, path, stamp) if name in record.experiments else None


def _look_up(expression: _Expression, machine: str, root: Path) -> dict[str, Any]:
    """The results that an expression reads, by their name in its code."""
    if machine not in (known := store.machines(root)):
        raise EvidenceError(
            f"{expression.text!r} speaks of a machine {machine!r}; recorded machines: {', '.join(known) or 'none'}."
        )
    results, missing, changed = {}, [], []
    for placeholder, name in expression.experiments.items():
        found = _record_of(name, machine, root)
        if found is None:
            _check_exists(name, root)
            missing.append(name)
            continue
        record, path, stamp = found
        current = _current(name)
        if current is not None and current.parameters_hash != record.experiments[name].parameters_hash:
            changed.append(name)
            continue
        results[placeholder] = _result(path, stamp, name)
    if lacking := tuple(dict.fromkeys((*missing, *changed))):
        lessons = ", ".join(dict.fromkeys(name.partition("/")[0] for name in lacking))
        how = "not recorded, or with other parameters than today's," if changed else "not recorded"
        raise NotRecordedError(
            f"{', '.join(lacking)}: {how} on {machine}. Run `course record {lessons} --reference` there.", lacking
        )
    return results


def _check_exists(name: str, root: Path) -> None:
    """Raise if no notebook and no record has an experiment of this name: it is misspelt, not missing."""
    lesson = name.partition("/")[0]
    try:
        known = experiments(find_lesson(lesson))
    except LessonError as error:
        recorded = any(_record_of(name, machine, root) for machine in store.machines(root))
        if recorded:
            return
        raise EvidenceError(f"there is no experiment {name!r}: {error}") from error
    if name not in known and not any(_record_of(name, machine, root) for machine in store.machines(root)):
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise EvidenceError(f"there is no experiment {name!r}.{hint} The lesson has: {', '.join(known) or 'none'}.")


def machines(root: Path | None = None, device_kind: str | None = None) -> list[str]:
    """The machines that have reference records.

    Args:
        root: where the records are; `reference_root` by default.
        device_kind: ``cpu``, ``cuda`` or ``mps``, for those alone that measured on such a device.

    Returns:
        Their names, sorted.

    Example:
        >>> set(machines(device_kind="cpu")) <= set(machines())
        True
    """
    root = store.reference_root() if root is None else Path(root)
    found = store.machines(root)
    return [one for one in found if device_kind in (None, *(r.environment.device_kind for r in _records(one, root)))]


def _records(machine: str, root: Path) -> Iterator[store.LessonRecord]:
    for path in sorted((root / machine).glob("*.json")):
        if not path.name.startswith("."):
            yield _lesson_record(path, _stamp(path))


def environment_of(expression: str, machine: str, root: Path | None = None) -> Environment:
    """The machine and the software of the newest record that an expression reads.

    Args:
        expression: the text; it reads at least one experiment.
        machine: whose records.
        root: where the records are; `reference_root` by default.

    Returns:
        The environment, with the day and a caption.

    Raises:
        EvidenceError: if the text is no expression, or reads no experiment.
        NotRecordedError: if the machine has not recorded all that it reads.
    """
    root = store.reference_root() if root is None else Path(root)
    parsed = _read(expression)
    _look_up(parsed, machine, root)
    if not parsed.experiments:
        raise EvidenceError(f"{expression!r} reads no experiment.")
    found = [_record_of(name, machine, root)[0] for name in parsed.experiments.values()]
    return max(found, key=lambda record: record.recorded_at).environment


def notices(expression: str, machine: str, root: Path | None = None) -> tuple[str, ...]:
    """What a reader must know about the records that an expression reads.

    Args:
        expression: the text.
        machine: whose records.
        root: where the records are; `reference_root` by default.

    Returns:
        A sentence for each experiment whose code has changed since it was recorded.

    Raises:
        EvidenceError: if the text is no expression.
        NotRecordedError: if the machine has not recorded all that it reads.
    """
    root = store.reference_root() if root is None else Path(root)
    _look_up(_read(expression), machine, root)
    said = []
    for name in experiments_in(expression):
        record = _record_of(name, machine, root)[0]
        current = _current(name)
        if current is not None and current.code_hash != record.experiments[name].code_hash:
            said.append(f"The code of {name} has changed since {machine} recorded it.")
    return tuple(said)


# Working it out


class _WithUnits(Table):
    """A table whose numbers carry the units of their columns."""

    @classmethod
    def of(cls, table: Table) -> Self:
        return cls(**{f.name: getattr(table, f.name) for f in dataclasses.fields(table)})

    def __getitem__(self, label: Any) -> dict[str, Any]:
        row = super().__getitem__(label)
        return {column: _quantity(value, self.units.get(column)) for column, value in row.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[label] for label in self.labels)


def _quantity(value: Any, unit: str | None) -> Any:
    """The value with its unit if it is a number, or an interval of numbers."""
    if isinstance(value, Interval):
        return dataclasses.replace(value, low=Quantity(value.low, unit), high=Quantity(value.high, unit))
    if unit is None or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return Quantity(value, unit)


def _given_unit(value: float, unit: str) -> Quantity:
    if unit not in TABLE_UNITS:
        raise EvidenceError(f"there is no unit {unit!r}; there are: {', '.join(TABLE_UNITS)}")
    return Quantity(value, unit)


_UNITS_OF_NAMES = {"ratio": "ratio", "speedup": "ratio", "overhead": "ratio", "interval": "ratio"}


def _unit_of_name(name: Any) -> str | None:
    return None if not isinstance(name, str) else _UNITS_OF_NAMES.get(name) or words_and_unit(name)[1]


def _attribute(of: Any, name: str) -> Any:
    # Asked of the class: an instance would work out each of its properties.
    public = [one for one in dir(of) if one in _METHODS or not callable(getattr(type(of), one, None))]
    public = [one for one in public if not one.startswith("_")]
    if name not in public:
        close = difflib.get_close_matches(name, public, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise EvidenceError(f"a {type(of).__name__} has no {name!r}.{hint} It has: {', '.join(public) or 'none'}.")
    value = getattr(of, name)
    if isinstance(of, Ceiling) and name == "value":
        return _quantity(value, of.unit)
    if isinstance(value, Table) and not isinstance(value, _WithUnits):
        return _WithUnits.of(value)
    return _quantity(value, _unit_of_name(name))


def _item(of: Any, key: Any) -> Any:
    try:
        value = of[key]
    except KeyError as error:
        # Results say what there is; a plain dictionary does not.
        said = error.args[0] if isinstance(error.args[0], str) and error.args[0] != key else ""
        raise EvidenceError(said or f"there is no {key!r}; there are: {', '.join(map(str, of)) or 'none'}") from error
    except (IndexError, TypeError) as error:
        raise EvidenceError(f"a {type(of).__name__} has no item {key!r}: {error}") from error
    unit = None if isinstance(value, Quantity) or not isinstance(of, Mapping) else _unit_of_name(key)
    return _quantity(value, unit)


def _tally(verdicts: Iterable[str]) -> str:
    """How often each verdict was given, most often first: ``faster in 9 of 16, unclear in 7``."""
    counts = Counter(str(verdict).lower() for verdict in verdicts)
    told = [f"{verdict} in {count}" for verdict, count in counts.most_common()]
    return ", ".join([f"{told[0]} of {counts.total()}", *told[1:]]) if told else "none"


def evaluate(
    expression: str, machine: str | None, root: Path | None = None, *, calls: Mapping[str, str] | None = None
) -> Any:
    """What an expression gives on the reference records of one machine.

    Args:
        expression: the text.
        machine: whose records, by the name of their folder; None will do for an expression that reads none.
        root: where the records are; `reference_root` by default.
        calls: what ``calls["name"]`` stands for: how a call of the claims ledger ended.

    Returns:
        The value. Numbers whose unit is known are `Quantity`.

    Raises:
        EvidenceError: if the text is no expression, names an experiment, a case or an attribute that does not exist,
            or cannot be worked out.
        NotRecordedError: if the machine has no record of an experiment, or one with other parameters than today's.

    Example:
        >>> evaluate("measuring/known_answers.rounds >= 8", "amd-epyc-2-cores")
        True
    """
    root = store.reference_root() if root is None else Path(root)
    parsed = _read(expression)
    names = {
        "__builtins__": {},
        **_FUNCTIONS,
        "quantity": _given_unit,
        "tally": _tally,
        "attribute of": _attribute,
        "item of": _item,
        "calls": calls or {},
        **(_look_up(parsed, machine, root) if parsed.experiments else {}),
    }
    try:
        # Only what `_check` let through is in this code: no names of Python's own, no attributes with underscores.
        return eval(parsed.code, names)
    except EvidenceError as error:
        raise EvidenceError(f"{expression!r} on {machine}: {error}") from error
    except (KeyError, IndexError, TypeError, ValueError, ArithmeticError) as error:
        said = error.args[0] if error.args else type(error).__name__
        raise EvidenceError(f"{expression!r} on {machine}: {said}") from error


def in_words(value: Any, unit: str | None = None) -> str:
    """A value as it stands in a text, in the words and with the digits that the course's tables use.

    Args:
        value: what `evaluate` gave.
        unit: of a number without one: one of `TABLE_UNITS`. Of a case, its direction: ``times as fast`` or
            ``times as long``; without it, the one that makes the number larger than 1.

    Returns:
        For example ``1.62 times as fast (95% interval 1.60 to 1.65)``, ``1.50 GiB``, ``12.3 ms`` or ``yes``.

    Raises:
        EvidenceError: if the value is a whole result, which no text can hold.

    Example:
        >>> in_words(0.0123, "s"), in_words(3), in_words(True), in_words(("flash", "math"))
        ('12.3 ms', '3', 'yes', 'flash and math')
    """
    from course_utils.show.formats import value_text

    if hasattr(value, "in_words"):
        return value.in_words(unit)
    if isinstance(value, Interval):
        return _interval_in_words(value, unit)
    if isinstance(value, tuple | list):
        words = [in_words(one, unit) for one in value]
        return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words) or "none"
    if isinstance(value, Quantity):
        return value_text(float(value), unit or value.unit)
    if value is None or isinstance(value, str | bool | int | float):
        return str(value) if isinstance(value, str) else value_text(value, unit)
    raise EvidenceError(f"a whole {type(value).__name__} does not fit into a text: name the case or the number of it")


def _interval_in_words(interval: Interval, unit: str | None) -> str:
    from course_utils.show.formats import format_interval

    unit = unit or getattr(interval.low, "unit", None)
    if unit in (None, "ratio"):
        return format_interval(interval)
    return f"{in_words(interval.low, unit)} to {in_words(interval.high, unit)}"
