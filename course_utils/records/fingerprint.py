"""Fingerprints: which code and which problem sizes an experiment in a notebook has.

A record carries the fingerprint of the experiment that made it, so that a record made with other code or other sizes
can be told apart. The syntax tree is what counts: a changed comment, text or layout is no change.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from course_utils.records.notebook_files import LessonError, notebook_bytes, parsed_cells, parsed_notebook
from course_utils.records.statements import Statement, needed, statements
from course_utils.show.suggestions import did_you_mean

# Calls that measure something and may be named with ``name="slug/experiment"``.
MEASURING = frozenset({"ceilings", "check_cluster", "compare", "curves", "keep_card", "measure"})
MEASURING |= {"run_ranks", "simulate_cluster", "sweep", "tabulate", "trace_memory"}
# Calls that only show something: they are no part of what is measured.
SHOWING = frozenset({"print", "display", "predict", "Markdown", "HTML", "environment", "recorded"})
SHOWING_METHODS = frozenset({"plot", "reveal"})
# Methods that choose what of a result is shown, and the keyword of a measuring call that words its card: of no matter.
CHOOSING_METHODS, WORDING = frozenset({"saying", "showing"}), "says"
# Keywords of a measuring call whose values are the sizes of the problem, not the code that is measured.
SIZE_KEYWORDS = frozenset({"args", "over", "parameters", "ranks"})

_MATERIALS_PACKAGE = "course_utils.materials"
_MATERIALS = Path(__file__).resolve().parents[1] / "materials"


@dataclass(frozen=True)
class Fingerprint:
    """What an experiment is made of."""

    code_hash: str  # changes when the experiment, or anything that it uses, is other code
    # changes when a problem size does: an argument of ``scaled``, or ``over=``, ``parameters=``, ``ranks=`` or
    # ``args=`` of a measuring call
    parameters_hash: str


def fingerprint(notebook: Path | str, name: str) -> Fingerprint:
    """Returns the fingerprint of one experiment.

    It covers the cell that measures, the notebook's first code cell, and the statements of earlier cells that these two
    need. Materials (``course_utils.materials``) that they import count as if they stood in the notebook, and so does a
    program that they name as ``scripts/....py``. Other imports do not count, nor what only shows something.
    """
    path = Path(notebook)
    parts, cells = _contents(notebook_bytes(path), path.name)
    if name not in cells:
        choices = ", ".join(cells) or "none"
        raise LessonError(f"{path.name} has no experiment {name!r}{did_you_mean(name, cells)}. It has: {choices}.")
    chosen = {parts[0].cell, cells[name]}
    before = [part for part in parts if part.cell <= cells[name]]
    others = set(map(id, needed(before, chosen)))
    used = [part for part in before if part.cell in chosen or id(part) in others]
    code, sizes = _code_and_sizes(used)
    for program in sorted(_programs(used)):
        if (path.parent / program).is_file():
            lines = _used_of_module((path.parent / program).read_bytes())
            code += [program, *code_of(lines), *_materials_code(lines)]
    return Fingerprint(hash_of([*code, *_materials_code(used)]), hash_of(sizes))


def named_experiments(tree: ast.AST) -> list[str]:
    """Returns the names of the experiments in some code, in order.

    An experiment is a call with a keyword ``name=`` whose value is a string literal of the form ``slug/experiment``;
    ``ceilings("slug/experiment")`` is one, too.
    """
    names = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        given = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
        for value in [*given, *(call.args if _called(call) == "ceilings" else [])]:
            if isinstance(value, ast.Constant) and re.fullmatch(r"[a-z]\w*/\w+", str(value.value)):
                names.append((value.lineno, value.col_offset, value.value))
    return [name for *_, name in sorted(names)]


@lru_cache(maxsize=64)  # a page of the book asks for a hundred fingerprints
def _contents(content: bytes, file_name: str) -> tuple[list[Statement], dict[str, int]]:
    """The statements of a notebook that do more than show something, and the cell of each experiment."""
    trees = parsed_cells(parsed_notebook(content, file_name), file_name)
    cells = {name: number for number, tree in trees.items() for name in named_experiments(tree)}
    return [part for part in statements(trees) if not _only_shows(part.node)], cells


def _called(call: ast.Call) -> str:
    """The last part of the name of what is called: ``compare`` for ``course_utils.compare(...)``, too."""
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def _only_shows(node: Any) -> bool:
    """Whether this is a docstring, a name alone, or a call that shows something and measures nothing."""
    if isinstance(node, ast.Expr):
        value = _without_choice(node.value)
        return isinstance(value, ast.Constant | ast.Name) or _only_shows(value)
    if not isinstance(node, ast.Call):
        return False
    shows = _called(node) in (SHOWING_METHODS if isinstance(node.func, ast.Attribute) else SHOWING)
    return shows and not any(isinstance(part, ast.Call) and _called(part) in MEASURING for part in ast.walk(node))


def _without_choice(node: Any) -> Any:
    """A result, without what is chosen of it to be shown."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _called(node) in CHOOSING_METHODS:
        node = node.func.value
    return node


# Code as text


def code_of(used: Iterable[Statement], apart: Collection[int] = ()) -> list[str]:
    """Returns a text for each statement that does something: where an import takes its names from does not count."""
    nodes = [part.node for part in used if not isinstance(part.node, ast.Import | ast.ImportFrom)]
    return [_text(node, apart) for node in nodes if not _only_shows(node)]


def _code_and_sizes(used: Sequence[Statement]) -> tuple[list[str], list[str]]:
    nodes = [part.node for part in used]
    sizes = [size for node in nodes for call in ast.walk(node) if isinstance(call, ast.Call) for size in _sizes(call)]
    names = {name for size in sizes for name in _names(size)}
    for node in nodes:
        if isinstance(node, ast.Assign) and not _names(node.value) and getattr(node.targets[0], "id", "") in names:
            sizes.append(node.value)
    apart = {id(size) for size in sizes}
    return code_of(used, apart), [_text(size, ()) for size in sizes]


def _sizes(call: ast.Call) -> list[ast.AST]:
    """The problem sizes among the arguments of a call."""
    if _called(call) == "scaled":
        return [*call.args, *call.keywords]
    return [each for each in call.keywords if each.arg in SIZE_KEYWORDS] if _called(call) in MEASURING else []


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _text(node: Any, apart: Collection[int]) -> str:
    """A text for a syntax tree, the same in every version of Python, without the parts whose ids are ``apart``."""
    if isinstance(node, list):
        return " ".join(_text(item, apart) for item in node if not _only_shows(item))
    if not isinstance(node, ast.AST):
        return repr(node)
    node = _without_choice(node)
    if id(node) in apart or _only_shows(node):
        return "..."
    if isinstance(node, ast.Call) and _called(node) in MEASURING:
        node = ast.Call(node.func, node.args, [each for each in node.keywords if each.arg != WORDING])
    if isinstance(node, ast.JoinedStr):  # versions cut its texts differently
        texts = [part.value for part in node.values if isinstance(part, ast.Constant)]
        values = [part for part in node.values if not isinstance(part, ast.Constant)]
        return f"(text {''.join(texts)!r} {_text(values, apart)})"
    fields = [
        f"{name}=({_text(value, apart)})"
        for name, value in ast.iter_fields(node)
        # What is absent is left out, so that a field that a later Python adds is, too.
        if name not in ("ctx", "kind", "type_comment", "type_ignores") and value is not None and value != []
    ]
    return " ".join([type(node).__name__, *fields])


def hash_of(texts: Iterable[str]) -> str:
    """Returns a short hash of texts."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


# Code that lies outside of the notebook and is part of the experiment all the same


def _programs(used: Iterable[Statement]) -> set[str]:
    texts = {part.value for each in used for part in ast.walk(each.node) if isinstance(part, ast.Constant)}
    return {text for text in texts if isinstance(text, str) and re.fullmatch(r"scripts/\w+\.py", text)}


def _materials_code(used: Sequence[Statement]) -> list[str]:
    """The code of all that statements use of the materials."""
    names = {name for part in used for name in part.reads | part.reads_later}
    code = []
    for node in (part.node for part in used if isinstance(part.node, ast.ImportFrom)):
        if (node.module or "").startswith(_MATERIALS_PACKAGE):
            module = node.module.removeprefix(_MATERIALS_PACKAGE).lstrip(".")
            for alias in node.names:
                if (alias.asname or alias.name) in names:
                    code += _material_code(module or alias.name, alias.name if module else "")
    return code


def _material_code(module: str, name: str) -> list[str]:
    path = _MATERIALS / f"{module}.py"
    try:
        used = _used_of_module(path.read_bytes(), name)
    except (OSError, SyntaxError) as error:
        raise LessonError(f"an experiment uses {path.name}, which cannot be read: {error}") from error
    return code_of(used) + _materials_code(used)


@lru_cache(maxsize=256)
def _used_of_module(content: bytes, name: str = "") -> list[Statement]:
    """The statements of a module that one of its names depends on, or all of them without a name."""
    parts = statements({1: ast.parse(content), 2: ast.parse(name)})
    return needed(parts, {2}) if name else parts
