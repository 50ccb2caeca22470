"""Plain expressions over records: figures in texts, and the condition that a claim's verdict rests on.

An expression is Python, evaluated as it stands: it is our own text, so nothing guards it. ``recorded(experiment,
machine)`` gives a result as the lesson's ``recorded`` does, and the machine may be the beginning of its name. A figure
in a text is written by one of `FORMATS`: ``ms(recorded("pinned_memory/copy", "nvidia-h200")[4]["pinned"].median_s)``.
"""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from course_utils.lesson_notebooks import LessonError, find_lesson, measuring_cell
from course_utils.results import store
from course_utils.results.comparison import Case
from course_utils.results.rank_results import words_and_unit
from course_utils.results.result import WORKED_BY, Result
from course_utils.results.table import TABLE_UNITS
from course_utils.show.formats import format_interval, format_percent, format_ratio, is_number, three_digits, value_text
from course_utils.show.suggestions import typed

FORMATS: dict[str, Callable[[float], str]] = {
    "us": lambda seconds: f"{three_digits(1e6 * seconds)} µs",
    "ms": lambda seconds: f"{three_digits(1e3 * seconds)} ms",
    "percent": format_percent,
    "mib": lambda bytes_: f"{three_digits(bytes_ / 2**20)} MiB",
    "gib": lambda bytes_: f"{three_digits(bytes_ / 2**30)} GiB",
    "times": lambda ratio: f"{format_ratio(ratio)} times",
}


class EvidenceError(ValueError):
    """An expression that cannot be read or worked out. The message says what to do."""


class NotRecordedError(EvidenceError):
    """An expression reads an experiment that the machine has not recorded."""


class Quantity(float):
    """A number with the unit in which a text shows it, and the ends of its interval, if it has one."""

    unit: str
    low: float | None
    high: float | None

    def __new__(cls, value: float, unit: str, low: float | None = None, high: float | None = None) -> Self:
        if unit not in TABLE_UNITS:
            raise EvidenceError(f"there is no unit {unit!r}; there are: {', '.join(TABLE_UNITS)}")
        number = super().__new__(cls, value)
        number.unit, number.low, number.high = unit, low, high
        return number


def in_words(value: Any, unit: str | None = None) -> str:
    """A value as it stands in a text, with the digits that the course's tables use.

    Example:
        >>> in_words(0.0123, "s"), in_words(3), in_words(Quantity(1.5, "ratio", 1.4, 1.6))
        ('12.3 ms', '3', '1.50 (1.40 to 1.60)')
    """
    if isinstance(value, Case):
        return value.in_words()
    if isinstance(value, Quantity):
        words = value_text(float(value), value.unit)
        return words if value.low is None else f"{words} ({format_interval(value)})"
    if value is None or isinstance(value, str | bool | int | float):
        return value_text(value, unit)
    raise EvidenceError(f"a whole {type(value).__name__} does not fit into a text: name the case or the number of it")


# Records


class RecordedExperiment(NamedTuple):
    record: store.LessonRecord
    result: Any

    @property
    def is_of_other_code(self) -> bool:
        """Whether its notebook has other code now."""
        return store.code_has_changed(self.record, self.result.name)


def recorded_experiment(name: str, machine: str) -> RecordedExperiment:
    root = store.reference_root()
    lesson = name.partition("/")[0]
    known = store.machines(root)
    loaded = ((path, _loaded(name, path, path.read_bytes())) for path in root.glob(f"*/{lesson}.json"))
    held = {path.parent.name: found for path, found in loaded if found}
    newest_first = sorted(held, key=lambda each: held[each].record.recorded_at, reverse=True)
    try:
        machine = store.machine_named(machine, known, [*newest_first, *known])
    except store.RecordError as error:
        raise EvidenceError(str(error)) from error
    if machine in held:
        return held[machine]
    try:
        measuring_cell(find_lesson(lesson), name)
    except LessonError as error:
        raise EvidenceError(str(error)) from error
    raise NotRecordedError(f"{name}: not recorded on {machine}. Run {typed(f'record {lesson} --reference')} there.")


@functools.lru_cache(maxsize=1024)
def _loaded(name: str, path: Path, content: bytes) -> RecordedExperiment | None:
    """An experiment; None if it is not there. Other ``content`` is read again."""
    del content
    try:
        record = store.load_lesson(path)
        return RecordedExperiment(record, record.result(name)) if name in record.experiments else None
    except store.RecordError as error:
        raise EvidenceError(str(error)) from error


def newest_result(found: Iterable[RecordedExperiment]) -> Result:
    """The one of some results that a number is said to come from: the newest that a GPU worked on, else a CPU's."""
    newest_first = sorted(found, key=lambda each: each.record.recorded_at, reverse=True)
    return min((each.result for each in newest_first), key=lambda result: [*WORKED_BY].index(result.worked_by))


# Expressions

RestsOn = dict[tuple[str, str], RecordedExperiment]
"""Recorded experiments, by experiment and machine."""


class Evaluated(NamedTuple):
    """What an expression gives, and the recorded experiments that it rests on."""

    value: Any
    rests_on: RestsOn


def _read(expression: str) -> ast.expr:
    try:
        return ast.parse(f"({expression})", mode="eval").body
    except SyntaxError as error:
        raise EvidenceError(
            f"{expression!r} cannot be read as Python: {error.args[0]}. "
            'Write one expression over recorded("lesson/experiment", "machine").'
        ) from error


def _is_recorded(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "recorded"


def experiments_in(expression: str) -> tuple[str, ...]:
    calls = [node for node in ast.walk(_read(expression)) if _is_recorded(node) and node.args]
    return tuple(dict.fromkeys(call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)))


def evaluate(expression: str, **names: Any) -> Evaluated:
    """What an expression gives on the reference records; it may use ``names``, too.

    Example:
        >>> evaluate("ms(0.0123)").value, evaluate("times(3 / 2)").value
        ('12.3 ms', '1.50 times')
    """
    _read(expression)
    rests_on: RestsOn = {}

    def recorded(experiment: str, machine: str) -> Any:
        found = recorded_experiment(experiment, machine)
        rests_on[experiment, found.record.environment.machine] = found
        return found.result

    try:
        value = eval(f"({expression})", {**FORMATS, "quantity": Quantity, "recorded": recorded, **names})
    except EvidenceError:
        raise
    except Exception as error:
        problem = error.args[0] if error.args else type(error).__name__
        raise EvidenceError(f"{expression!r} cannot be worked out: {problem}. Correct it, or the record.") from error
    return Evaluated(value, rests_on)


def written(value: Any, expression: str) -> str:
    """What an expression has given, as it stands in a text; a plain number with digits says itself how to write it."""
    if isinstance(value, str | int):
        return value_text(value)
    functions = ", ".join(f"{name}(...)" for name in FORMATS)
    raise EvidenceError(f"{expression!r} gives {value!r}: write it with one of {functions}, or as a whole number.")


def numbers_of(condition: str, **names: Any) -> Iterator[tuple[str, str, str]]:
    """What a condition reads: where from, the machine, and the value in words. What is read in a loop is left out."""
    for node in dict.fromkeys(map(ast.unparse, _readings(_read(condition)))):
        with contextlib.suppress(EvidenceError):  # a name of a loop
            value, rests_on = evaluate(node, **names)
            if is_number(value) or isinstance(value, str | bool):
                (((experiment, machine), found),) = rests_on.items()
                name = node.rpartition(".")[2]
                if node.endswith("]"):
                    name = ast.literal_eval(node[node.rindex("[") + 1 : -1])
                units = getattr(found.result, "units", {})  # of a table's columns
                unit = (units.get(name) or words_and_unit(str(name))[1]) if is_number(value) else None
                yield experiment + node.partition(")")[2], machine, value_text(value, unit)


def _readings(node: ast.AST) -> Iterator[ast.expr]:
    """The parts of an expression that begin with ``recorded(...)`` and go on with attributes and subscripts alone."""
    start = node
    while isinstance(start, ast.Attribute | ast.Subscript):
        start = start.value
    if _is_recorded(start):
        yield node
    else:
        for part in ast.iter_child_nodes(node):
            yield from _readings(part)
