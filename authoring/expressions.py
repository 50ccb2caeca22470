"""Plain expressions over records: figures in texts, and the condition that a claim's verdict rests on.

An expression is Python, evaluated as it stands: it is our own text, so nothing guards it. ``recorded(experiment,
machine)`` gives a result as the lesson's ``recorded`` does, and the machine may be the beginning of its name::

    recorded("pinned_memory/copy", "nvidia-h200")[262144]["pinned"].median_s
    ms(recorded("pinned_memory/copy", "nvidia-h200")[262144]["pinned"].median_s)

A figure in a text is written by one of `FORMATS`: ``us(seconds)``, ``ms(seconds)``, ``percent(ratio)``, ``mib(bytes)``,
``gib(bytes)`` or ``times(ratio)``.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from authoring import evidence
from authoring.evidence import EvidenceError, Recorded, quantity
from course_utils.results.rank_results import words_and_unit
from course_utils.show.formats import format_percent, format_ratio, is_number, three_digits, value_text

FORMATS: dict[str, Callable[[float], str]] = {
    "us": lambda seconds: f"{three_digits(1e6 * seconds)} µs",
    "ms": lambda seconds: f"{three_digits(1e3 * seconds)} ms",
    "percent": format_percent,
    "mib": lambda bytes_: f"{three_digits(bytes_ / 2**20)} MiB",
    "gib": lambda bytes_: f"{three_digits(bytes_ / 2**30)} GiB",
    "times": lambda ratio: f"{format_ratio(ratio)} times",
}
_FUNCTIONS = {**FORMATS, "quantity": quantity}
_HOW_TO_NAME = 'recorded("lesson/experiment", "machine")'


RestsOn = dict[tuple[str, str], Recorded]
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
            f"{expression!r} cannot be read as Python: {error.args[0]}. Write one expression over {_HOW_TO_NAME}."
        ) from error


def experiments_in(expression: str) -> tuple[str, ...]:
    """The experiments that an expression reads, each once and in order.

    Raises:
        EvidenceError: if the text is no expression, or reads one without naming a machine.
    """
    calls = [node for node in ast.walk(_read(expression)) if isinstance(node, ast.Call) and _is_recorded(node)]
    for call in calls:
        if len(call.args) + len(call.keywords) != 2:
            raise EvidenceError(
                f"{ast.unparse(call)} in {expression!r} names no machine, or more than that: "
                f"write {_HOW_TO_NAME}; there are records of {', '.join(evidence.machines())}."
            )
    return tuple(dict.fromkeys(call.args[0].value for call in calls if call.args and _is_text(call.args[0])))


def machines_in(expression: str) -> set[str]:
    """The machines that an expression names, as it writes them."""
    calls = [node for node in ast.walk(_read(expression)) if isinstance(node, ast.Call) and _is_recorded(node)]
    return {ast.unparse([*call.args, *(keyword.value for keyword in call.keywords)][-1]) for call in calls}


def _is_recorded(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "recorded"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def evaluate(expression: str, root: Path | None = None, *, on: str | None = None, **names: Any) -> Evaluated:
    """What an expression gives on the reference records, or on those below ``root``; it may use ``names``, too.

    ``on`` is a machine to read instead of those that it names.

    Raises:
        EvidenceError: if it cannot be worked out. The message says what to do.
        NotRecordedError: if the machine has no record of an experiment.

    Example:
        >>> evaluate("ms(0.0123)").value, evaluate("times(3 / 2)").value
        ('12.3 ms', '1.50 times')
    """
    experiments_in(expression)
    rests_on: RestsOn = {}

    def recorded(experiment: str, machine: str) -> Any:
        found = evidence.recorded([experiment], on or machine, root)[experiment]
        rests_on[experiment, found.record.environment.machine] = found
        return found.result

    try:
        value = eval(f"({expression})", {**_FUNCTIONS, "recorded": recorded, **names})
    except EvidenceError:
        raise
    except Exception as error:
        problem = error.args[0] if error.args else type(error).__name__
        raise EvidenceError(f"{expression!r} cannot be worked out: {problem}. Correct it, or the record.") from error
    return Evaluated(value, rests_on)


def written(value: Any, expression: str) -> str:
    """What an expression has given, as it stands in a text.

    Raises:
        EvidenceError: if it is a number that nothing says how to write.
    """
    if isinstance(value, str | int):
        return value_text(value)
    functions = ", ".join(f"{name}(...)" for name in FORMATS)
    raise EvidenceError(f"{expression!r} gives {value!r}: write it with one of {functions}, or as a whole number.")


def numbers_of(
    condition: str, root: Path | None = None, *, on: str | None = None, **names: Any
) -> Iterator[tuple[str, str, str]]:
    """What a condition reads: where from, the machine, and the value in words. What is read in a loop is left out."""
    for node in dict.fromkeys(map(ast.unparse, _readings(_read(condition)))):
        with contextlib.suppress(EvidenceError):  # a name of a loop
            value, rests_on = evaluate(node, root, on=on, **names)
            if is_number(value) or isinstance(value, str | bool):
                (((experiment, machine), found),) = rests_on.items()
                name = (
                    ast.literal_eval(node[node.rindex("[") + 1 : -1]) if node.endswith("]") else node.rpartition(".")[2]
                )
                units = getattr(found.result, "units", {})  # of a table's columns
                unit = (units.get(name) or words_and_unit(str(name))[1]) if is_number(value) else None
                yield experiment + node.partition(")")[2], machine, value_text(value, unit)


def _readings(node: ast.AST) -> Iterator[ast.expr]:
    """The parts of an expression that begin with ``recorded(...)`` and go on with attributes and subscripts alone."""
    start = node
    while isinstance(start, ast.Attribute | ast.Subscript):
        start = start.value
    if isinstance(start, ast.Call) and _is_recorded(start):
        yield node
    else:
        for part in ast.iter_child_nodes(node):
            yield from _readings(part)
