"""Fingerprints: which code and which problem sizes an experiment in a notebook has.

A record carries the fingerprint of the experiment that made it, so that a record made with other code or other sizes
can be told apart. The syntax tree is what counts: a changed comment, text or layout is no change. `experiment_names`
and `fingerprint` only read; nothing in a notebook is run.
"""

from __future__ import annotations

import ast
import copy
import difflib
import hashlib
import itertools
import json
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from course_utils.records.notebook_files import LessonError, notebook_bytes, parsed_cells, parsed_notebook

# Calls that measure something and may be named with ``name="slug/experiment"``.
MEASURING = frozenset(
    {
        "ceilings",
        "check_cluster",
        "compare",
        "curves",
        "measure",
        "run_ranks",
        "simulate_cluster",
        "sweep",
        "tabulate",
        "trace_memory",
    }
)
# Calls that only show something: the texts in them are prose, and as statements they change no state.
SHOWING = frozenset({"print", "display", "predict", "Markdown", "HTML"})
SHOWING_METHODS = frozenset({"plot", "reveal", "show", "set_title", "set_xlabel", "set_ylabel", "suptitle"})
INERT = SHOWING | MEASURING | {"environment", "recorded", "scaled", "help", "repr", "len"}
# Keywords of a measuring call whose values are the sizes of the problem, not the code that is measured.
PARAMETER_KEYWORDS = frozenset({"args", "over", "parameters", "ranks"})

_FINGERPRINT_FORMAT = "fingerprint-1"

# A page of the book asks for a hundred fingerprints. What follows from the content of a file alone is worked out once
# for each content: a file that has changed is a new one. It is shared, so nothing may change it afterwards.
_once_per_content = lru_cache(maxsize=64)


@dataclass(frozen=True)
class Fingerprint:
    """What an experiment is made of.

    Attributes:
        code_hash: changes when the experiment, or anything in the notebook that it uses, is other code.
        parameters_hash: changes when a problem size does: an argument of ``scaled``, or ``over=``, ``parameters=``, or
            ``ranks=`` and ``args=`` of ``run_ranks``.
        parameters: these sizes by name, for people to read.
    """

    code_hash: str
    parameters_hash: str
    parameters: dict[str, Any] = field(hash=False)


def experiment_names(notebook: Path | str) -> list[str]:
    """Returns the names of all experiments in a notebook, in order; a name that is used twice is there twice.

    An experiment is a call with a keyword ``name=`` whose value is a string literal of the form ``slug/experiment``;
    ``ceilings("slug/experiment")`` is one, too.

    Raises:
        LessonError: if the notebook cannot be read or a cell is not valid Python.
    """
    return [name for name, _ in tagged_experiments(notebook)]


def tagged_experiments(notebook: Path | str) -> list[tuple[str, tuple[str, ...]]]:
    """Returns each experiment of `experiment_names` with the tags of its cell.

    Raises:
        LessonError: if the notebook cannot be read or a cell is not valid Python.
    """
    path = Path(notebook)
    return list(_tagged_experiments(notebook_bytes(path), path.name))


@_once_per_content
def _tagged_experiments(content: bytes, file_name: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    notebook = parsed_notebook(content, file_name)
    return tuple(
        (name, tuple(notebook["cells"][number - 1].get("metadata", {}).get("tags", [])))
        for number, tree in parsed_cells(notebook, file_name)
        for name in _names_in(tree)
    )


def fingerprint(notebook: Path | str, name: str) -> Fingerprint:
    """Returns the fingerprint of one experiment.

    It covers the statement that measures, the statements before it in its cell, and whatever these use from earlier
    cells: definitions, assignments and imports, what changes them in place, and what these in turn use. What is
    imported from ``course_utils.materials`` (models, data) counts as if it stood in the notebook, and so does a program
    that is named as ``scripts/....py`` and lies beside it, with the materials that it imports. It leaves out comments,
    layout, Markdown, docstrings, statements that only show something, and the texts that are shown. Problem sizes count
    for ``parameters_hash`` alone. All supported versions of Python give the same result.

    Args:
        notebook: the notebook's path.
        name: the experiment, ``slug/experiment``.

    Raises:
        LessonError: if the notebook has no such experiment (the message lists those it has), or has it twice.
    """
    path = Path(notebook)
    statements, holders = _statements(notebook_bytes(path), path.name)
    known = [found for found, _ in holders]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise LessonError(
            f"{path.name} has no experiment {name!r}.{hint} Its experiments: {', '.join(known) or 'none'}."
        )
    if known.count(name) > 1:
        raise LessonError(f"{path.name} has two experiments named {name!r}. Give each its own name.")

    parameters = _Parameters()
    used = _closure(statements, dict(holders)[name])
    code = [
        _serialise(statement.node, parameters, is_parameter=statement.index in used.parameter_values)
        for statement in sorted(used.statements, key=operator.attrgetter("index"))
    ]
    code += _code_outside(used.statements, path.parent)
    return Fingerprint(_digest(code), _digest(parameters.serialised), parameters.shown)


@_once_per_content
def _statements(content: bytes, file_name: str) -> tuple[tuple[_Statement, ...], tuple[tuple[str, _Statement], ...]]:
    """The statements of a notebook, and each experiment's name with the statement that holds it."""
    statements: list[_Statement] = []
    for number, tree in parsed_cells(parsed_notebook(content, file_name), file_name):
        for node in _split_imports(tree.body):
            statements.append(_Statement.of(node, index=len(statements), cell=number))
    _note_packages(statements)
    holders = tuple((found, statement) for statement in statements for found in _names_in(statement.node))
    return tuple(statements), holders


def _called(node: ast.AST) -> str | None:
    """The last part of the name of what is called: ``compare`` for ``course_utils.compare(...)``, too."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) else None


def _names_in(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
            if _called(node) == "ceilings":
                given += node.args  # the name is all that it takes
            for value in given:
                name = value.value if isinstance(value, ast.Constant) else None
                if isinstance(name, str) and re.fullmatch(r"[a-z]\w*/\w+", name):
                    found.append((value.lineno, value.col_offset, name))
    return [name for _, _, name in sorted(found)]


def _split_imports(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """One statement for each imported name: importing one more name changes nothing for those that do not use it."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom) and len(node.names) > 1:
            for alias in node.names:
                single = copy.copy(node)
                single.names = [alias]
                yield single
        else:
            yield node


# What a statement does with names


@dataclass
class _Statement:
    """A top-level statement of the notebook and what it does to names.

    Attributes:
        kills: names that it certainly binds anew: what earlier statements did to them no longer matters.
        changes: names that it may bind, or whose objects it may change in place.
        reads: names that it reads when it runs; ``later``: names that its functions read when they are called.
        parameter_reads: the names among ``reads`` that problem sizes are given by.
    """

    node: ast.stmt
    index: int
    cell: int
    kills: set[str]
    changes: set[str]
    reads: set[str]
    later: set[str]
    parameter_reads: set[str]

    @classmethod
    def of(cls, node: ast.stmt, index: int, cell: int) -> _Statement:
        reads, later = _reads(node)
        sizes: set[str] = set()
        for call in ast.walk(node):
            if isinstance(call, ast.Call):
                for expression in _parameter_expressions(call):
                    sizes |= _reads(expression)[0]
        bound = _bound([node])
        certain = isinstance(
            node,
            ast.Assign
            | ast.AnnAssign
            | ast.FunctionDef
            | ast.AsyncFunctionDef
            | ast.ClassDef
            | ast.Import
            | ast.ImportFrom,
        )
        changes = _changed(node) | (set() if certain else bound)
        return cls(node, index, cell, bound if certain else set(), changes, reads, later, sizes)

    @property
    def inert(self) -> bool:
        """Whether it shows something, or is another experiment: nothing that follows depends on its having run."""
        node = self.node
        if not isinstance(node, ast.Expr | ast.Assign):
            return False
        if isinstance(node.value, ast.Call):
            method = isinstance(node.value.func, ast.Attribute)
            return _called(node.value) in (SHOWING_METHODS | MEASURING if method else INERT)
        return isinstance(node, ast.Expr) and not any(isinstance(part, ast.Call) for part in ast.walk(node))


def _note_packages(statements: Sequence[_Statement]) -> None:
    """Ties names to their packages: ``torch.manual_seed(0)`` matters to all that is imported from torch."""
    packages: dict[str, str] = {}
    for statement in statements:
        node = statement.node
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
            package = "package " + (module or ".").split(".")[0]
            packages.update(dict.fromkeys(statement.kills, package))
            statement.reads.add(package)
        else:
            statement.changes |= {packages[name] for name in statement.changes if name in packages}


def _root(node: ast.AST) -> str | None:
    """The name that an attribute, item or call chain starts from: ``x`` for ``x.a[0].b()``."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that are bound in the scope of these nodes."""
    names: set[str] = set()
    foreign: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            return
        if isinstance(node, (ast.Lambda, *_COMPREHENSIONS)):
            return
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            foreign.update(node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    for node in nodes:
        visit(node)
    return names - foreign


def _reads(tree: ast.AST) -> tuple[set[str], set[str]]:
    """The names of the notebook that are read when this runs, and those that are read when its functions are called."""
    now: set[str] = set()
    later: set[str] = set()

    def visit(node: ast.AST, own: frozenset[str], reads: set[str]) -> None:
        if isinstance(node, ast.Name):
            if node.id not in own and (isinstance(node.ctx, ast.Load)):
                reads.add(node.id)
            return
        if isinstance(node, _SCOPES):
            body = node.body if isinstance(node.body, list) else [node.body]
            arguments = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
            inside = own | arguments | _bound(body)
            for child in ast.iter_child_nodes(node):
                if child not in body:
                    visit(child, own, reads)  # defaults, decorators and annotations are read at the definition
            for child in body:
                visit(child, inside, later)
            return
        if isinstance(node, ast.ClassDef):
            # Methods do not see the names of the class body, but reading one too many does no harm.
            inside = own | _bound(node.body)
            for child in ast.iter_child_nodes(node):
                visit(child, inside if child in node.body else own, reads)
            return
        if isinstance(node, _COMPREHENSIONS):
            own = own | _bound(generator.target for generator in node.generators)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id not in own:
            reads.add(node.target.id)
        for child in ast.iter_child_nodes(node):
            visit(child, own, reads)

    visit(tree, frozenset(), now)
    return now, later


def _changed(tree: ast.stmt) -> set[str]:
    """The names whose objects a statement may change in place, in its own scope."""
    names: set[str | None] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, (*_SCOPES, ast.ClassDef, *_COMPREHENSIONS)):
            return
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            names.add(_root(node))
        elif isinstance(node, ast.AugAssign):
            names.add(_root(node.target))
        elif isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
            # `_ = torch.manual_seed(0)` is the way to keep a cell silent, so it counts as a bare call.
            bare = isinstance(node, ast.Expr) or all(isinstance(t, ast.Name) and t.id == "_" for t in node.targets)
            call = node.value
            if bare and _called(call) not in INERT | SHOWING_METHODS:
                if isinstance(call.func, ast.Attribute):
                    names.add(_root(call.func))
                for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
                    names.add(_root(argument))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return {name for name in names if name is not None}


@dataclass
class _Used:
    statements: list[_Statement]
    parameter_values: set[int]


def _closure(statements: Sequence[_Statement], holder: _Statement) -> _Used:
    """All statements that an experiment depends on, and which of them do no more than give a problem size its value."""
    chosen: dict[int, _Statement] = {}
    values: set[int] = set()
    done: set[tuple[int | str, int]] = set()
    work: list[tuple[_Statement, int]] = []

    def need(name: str, position: int, size: bool) -> None:
        if (name, position) in done and not size:
            return
        done.add((name, position))
        for statement in reversed(statements[:position]):
            if name in statement.kills or name in statement.changes:
                work.append((statement, position))
                if size and isinstance(statement.node, ast.Assign) and _is_literal(statement.node.value):
                    values.add(statement.index)
            if name in statement.kills:
                return

    # A function that holds the experiment is called later: it sees every name that the notebook binds.
    is_function = isinstance(holder.node, ast.FunctionDef | ast.AsyncFunctionDef)
    work.append((holder, len(statements) if is_function else holder.index))
    for statement in statements[: holder.index]:
        if statement.cell == holder.cell and not statement.inert and not _is_import(statement.node):
            work.append((statement, holder.index))
    while work:
        statement, position = work.pop()
        if (statement.index, position) in done:
            continue
        done.add((statement.index, position))
        chosen[statement.index] = statement
        for name in sorted(statement.reads):
            need(name, statement.index, size=name in statement.parameter_reads)
        for name in sorted(statement.later):
            need(name, position, size=False)
    return _Used(list(chosen.values()), values)


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


# Code that lies outside of the notebook and is part of the experiment all the same

_MATERIALS_PACKAGE = "course_utils.materials"
_MATERIALS = Path(__file__).resolve().parents[1] / "materials"


def _code_outside(statements: Iterable[_Statement], folder: Path) -> list[str]:
    """The materials that statements import, and the programs that they name, serialised.

    Args:
        statements: what the experiment uses.
        folder: where the notebook lies.
    """
    wanted: set[tuple[str, str | None]] = set()
    named = sorted({program for statement in statements for program in _programs_in(statement.node)})
    programs = {name: _program(_python(folder / name), name) for name in named if (folder / name).is_file()}
    work = [material for statement in statements for material in _materials_in(statement.node)]
    for program in programs.values():
        work += program.materials
    code: dict[tuple[str, str | None], tuple[str, ...]] = {}
    while work:
        module, name = material = work.pop()
        if material in wanted:
            continue
        wanted.add(material)
        path = _MATERIALS / f"{module}.py"
        used = _used_of_module(_python(path), path.name, name)
        code[material] = used.serialised
        work += used.materials
    serialised = [f"{module}:{name} {part}" for (module, name) in sorted(code, key=str) for part in code[module, name]]
    return serialised + [f"{name} {part}" for name, program in programs.items() for part in program.serialised]


@dataclass(frozen=True)
class _Outside:
    """Code that lies outside of a notebook, serialised, and the materials that it imports in turn."""

    serialised: tuple[str, ...]
    materials: tuple[tuple[str, str | None], ...]


def _materials_in(node: ast.stmt) -> Iterator[tuple[str, str | None]]:
    """What a statement imports from the materials: a module's name, and a name in it, or None for all of it."""
    if isinstance(node, ast.ImportFrom) and node.module == _MATERIALS_PACKAGE:
        yield from ((alias.name, None) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{_MATERIALS_PACKAGE}."):
        yield from ((node.module.removeprefix(f"{_MATERIALS_PACKAGE}."), alias.name) for alias in node.names)
    elif isinstance(node, ast.Import):
        prefix = f"{_MATERIALS_PACKAGE}."
        yield from ((a.name.removeprefix(prefix), None) for a in node.names if a.name.startswith(prefix))


def _programs_in(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield from re.findall(r"^scripts/\w+\.py$", part.value)


@_once_per_content
def _program(content: bytes, file_name: str) -> _Outside:
    """All of a program."""
    tree = _parsed(content, file_name)
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    return _Outside((_serialise(tree),), tuple(found for node in statements for found in _materials_in(node)))


@_once_per_content
def _used_of_module(content: bytes, file_name: str, name: str | None) -> _Outside:
    """The statements of a module that one of its names depends on, in order; all of them without a name."""
    body = _parsed(content, file_name).body
    used = [_Statement.of(node, index, cell=1) for index, node in enumerate(_split_imports(body))]
    if name is not None:
        _note_packages(used)
        asking = _Statement.of(ast.parse(name).body[0], index=len(used), cell=2)
        needed = _closure([*used, asking], asking).statements
        used = sorted((one for one in needed if one is not asking), key=operator.attrgetter("index"))
    nodes = [statement.node for statement in used]
    return _Outside(tuple(map(_serialise, nodes)), tuple(found for node in nodes for found in _materials_in(node)))


def _python(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LessonError(f"an experiment uses {path.name}, which cannot be read: {error}") from error


def _parsed(content: bytes, file_name: str) -> ast.Module:
    try:
        return ast.parse(content)
    except (SyntaxError, ValueError) as error:
        raise LessonError(f"an experiment uses {file_name}, which cannot be read: {error}") from error


# Serialising: what ast.dump gives depends on the version of Python, so this is our own


@dataclass
class _Parameters:
    """Collects problem sizes while code is serialised."""

    serialised: list[str] = field(default_factory=list)
    shown: dict[str, Any] = field(default_factory=dict)

    def add(self, label: str, expression: ast.AST) -> None:
        """Takes one problem size, or the arguments of ``scaled``.

        Args:
            label: the name it is shown under. It does not count: giving a variable another name is a change of code.
            expression: what it is. The value counts if it is a literal, however it is written; otherwise the code does.
        """
        if isinstance(expression, ast.Call):
            parts = {str(index): argument for index, argument in enumerate(expression.args)}
            parts |= {keyword.arg or "**": keyword.value for keyword in expression.keywords}
        else:
            parts = {"": expression}
        values = {}
        texts = []
        for key, node in sorted(parts.items()):
            try:
                values[key] = _literal(node)
                texts.append(f"{key}={json.dumps(values[key], sort_keys=True)}")
            except ValueError:
                values[key] = ast.unparse(node)
                texts.append(f"{key}={_serialise(node)}")
        self.serialised.append(f"({', '.join(texts)})")
        name = next(name for name in _numbered(label) if name not in self.shown)
        self.shown[name] = values.get("", values)


def _numbered(label: str) -> Iterator[str]:
    yield label
    yield from (f"{label} ({number})" for number in itertools.count(2))


_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: operator.lshift,
    ast.Pow: operator.pow,
}


def _literal(node: ast.AST) -> Any:
    """The value of a literal, sums such as ``64 * 2**20`` included, as JSON can hold it; ValueError otherwise."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_literal(key) if key is not None else [] for key in node.keys]
        if all(isinstance(key, str | int | float) for key in keys):
            return {str(key): _literal(value) for key, value in zip(keys, node.values, strict=True)}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        if isinstance(value, int | float):
            return -value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _literal(node.left), _literal(node.right)
        small = not isinstance(node.op, ast.LShift | ast.Pow) or (isinstance(right, int) and 0 <= right <= 64)
        if isinstance(left, int | float) and isinstance(right, int | float) and small:
            try:
                return _OPERATORS[type(node.op)](left, right)
            except (ArithmeticError, TypeError) as error:
                raise ValueError("not a value") from error
    raise ValueError("not a literal")


def _is_literal(node: ast.AST) -> bool:
    try:
        _literal(node)
    except ValueError:
        return False
    return True


def _parameter_expressions(call: ast.Call) -> list[ast.AST]:
    if _called(call) == "scaled":
        return [*call.args, *(keyword.value for keyword in call.keywords)]
    if _called(call) in MEASURING:
        return [keyword.value for keyword in call.keywords if keyword.arg in PARAMETER_KEYWORDS]
    return []


def _serialise(node: ast.AST, parameters: _Parameters | None = None, is_parameter: bool = False) -> str:
    """A text for a syntax tree that is the same on every version of Python.

    Args:
        node: the tree.
        parameters: takes the problem sizes, which leave a placeholder behind; None to serialise them like other code.
        is_parameter: whether the tree is an assignment of a problem size.
    """

    def walk(value: Any, shown: bool, target: str = "") -> str:
        # shown: whether this is part of a call that only shows something, so that texts in it do not count.
        # target: the name that is assigned to.
        if isinstance(value, list):
            return "[" + " ".join(walk(item, shown) for item in value) + "]"
        if isinstance(value, ast.Constant):
            return "TEXT" if shown and isinstance(value.value, str) else _serialise_constant(value.value)
        if not isinstance(value, ast.AST):
            return _serialise_constant(value)
        if isinstance(value, ast.JoinedStr):
            return "TEXT" if shown else f"(JoinedStr {walk(_merged(value.values), shown)})"
        if isinstance(value, ast.Assign) and len(value.targets) == 1 and isinstance(value.targets[0], ast.Name):
            target = value.targets[0].id
            if is_parameter and parameters is not None:
                parameters.add(target, value.value)
                return f"(Assign {target} PARAMETER)"
            return f"(Assign {target} {walk(value.value, shown, target)})"
        if isinstance(value, ast.Call):
            called = _called(value)
            shown = shown or called in (SHOWING_METHODS if isinstance(value.func, ast.Attribute) else SHOWING)
            if called == "scaled" and parameters is not None:
                parameters.add(target or called, value)
                return "(scaled PARAMETER)"
            if called in MEASURING and parameters is not None:
                keywords = []
                for keyword in value.keywords:
                    if keyword.arg in PARAMETER_KEYWORDS:
                        parameters.add(keyword.arg, keyword.value)
                        keywords.append(f"{keyword.arg}=PARAMETER")
                    else:
                        keywords.append(walk(keyword, shown))
                return f"(Call {walk(value.func, shown)} {walk(value.args, shown)} [{' '.join(keywords)}])"
        parts = [type(value).__name__]
        for name, content in ast.iter_fields(value):
            if name in ("ctx", "kind", "type_comment", "type_ignores") or content is None or content == []:
                continue  # what is absent is left out, so that a field that a later Python adds is, too
            if name == "body" and isinstance(content, list):
                content = [item for item in content if not _is_bare_text(item)] or [ast.Pass()]
            elif name == "format_spec":
                content = _merged(content.values)
            parts.append(f"{name}={walk(content, shown)}")
        return "(" + " ".join(parts) + ")"

    return walk(node, shown=False)


def _is_bare_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _merged(values: Sequence[ast.AST]) -> list[ast.AST]:
    """The parts of an f-string, with neighbouring texts joined: versions of Python cut them differently."""
    merged: list[ast.AST] = []
    for value in values:
        if isinstance(value, ast.Constant) and merged and isinstance(merged[-1], ast.Constant):
            value = ast.Constant(str(merged.pop().value) + str(value.value))
        if not (isinstance(value, ast.Constant) and value.value == ""):
            merged.append(value)
    return merged


def _serialise_constant(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bytes):
        return f"b{value.hex()}"
    if isinstance(value, int) and not isinstance(value, bool):
        return hex(value)  # has no limit on digits, unlike str
    if value is Ellipsis:
        return "..."
    return repr(value)


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join([_FINGERPRINT_FORMAT, *parts]).encode()).hexdigest()[:16]
