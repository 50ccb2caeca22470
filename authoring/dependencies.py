"""What some cells of a notebook need of the other ones: the statements that define the names they use.

Whole cells would be too much. The cell that defines a function often measures with it, too, for half a minute.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

_KNOWN = frozenset(dir(builtins)) | {"display", "get_ipython", "__file__", "__name__"}
_COMPOUND = (ast.If, ast.For, ast.While, ast.Try)


@dataclass(frozen=True)
class Statement:
    """One statement at the top of a cell, and what it does with names.

    Attributes:
        cell: the number of its cell.
        node: its syntax tree.
        binds: names that it gives a value, whatever they had before.
        changes: names whose value it changes, or may change.
        reads: names that it needs when it runs.
        reads_later: names that functions in it need when they are called.
    """

    cell: int
    node: ast.stmt
    binds: frozenset[str] = field(default_factory=frozenset)
    changes: frozenset[str] = field(default_factory=frozenset)
    reads: frozenset[str] = field(default_factory=frozenset)
    reads_later: frozenset[str] = field(default_factory=frozenset)

    @property
    def is_import(self) -> bool:
        """Whether it only imports."""
        return isinstance(self.node, ast.Import | ast.ImportFrom)


class _Names(ast.NodeVisitor):
    """Collects what happens to names. Names that a function or a comprehension has to itself do not count."""

    def __init__(self) -> None:
        self.bound: set[str] = set()
        self.changed: set[str] = set()
        self.read: set[str] = set()
        self.read_later: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            if node.id not in self.bound:  # what the statement itself has bound before, it does not need
                self.read.add(node.id)
        else:
            (self.bound if isinstance(node.ctx, ast.Store) else self.changed).add(node.id)

    def visit_Assign(self, node: ast.Assign | ast.NamedExpr) -> None:
        # In the order in which things happen: the value first.
        self.visit(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self.visit(target)

    visit_NamedExpr = visit_Assign  # noqa: N815

    def visit_For(self, node: ast.For) -> None:
        for part in (node.iter, node.target, *node.body, *node.orelse):
            self.visit(part)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._through(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._through(node)

    def _through(self, node: ast.Attribute | ast.Subscript) -> None:
        """``x.y = ...``, ``x[0] = ...`` and ``del x[0]`` change x and do not bind it."""
        if not isinstance(node.ctx, ast.Load):
            root = _root(node)
            if root:
                self.changed.add(root)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        before = set(self.bound)
        self.visit(node.value)
        self.visit(node.target)
        if isinstance(node.target, ast.Name) and node.target.id in self.bound - before:
            self.bound.discard(node.target.id)
            self.changed.add(node.target.id)
            self.read.add(node.target.id)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}

    visit_ImportFrom = visit_Import  # noqa: N815

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.bound.add(node.name)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.bound.add(node.name)
        for part in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(part)
        self._function(node.args, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for part in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(part)
        self._function(node.args, [node.body])

    def _function(self, arguments: ast.arguments, body: list) -> None:
        inner = _Names()
        for part in body:
            inner.visit(part)
        own = {argument.arg for argument in ast.walk(arguments) if isinstance(argument, ast.arg)} | inner.bound
        self.read_later |= (inner.read | inner.read_later | inner.changed) - own

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.bound.add(node.name)
        inner = _Names()
        for part in (*node.bases, *(keyword.value for keyword in node.keywords), *node.decorator_list, *node.body):
            inner.visit(part)
        self.read |= inner.read - inner.bound - self.bound
        self.read_later |= inner.read_later

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        inner = _Names()
        inner.generic_visit(node)
        self.read |= inner.read - inner.bound - self.bound
        self.read_later |= inner.read_later - inner.bound
        # What a walrus binds in a comprehension is the notebook's.
        self.bound |= {each.target.id for each in ast.walk(node) if isinstance(each, ast.NamedExpr)}

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def statements(trees: Mapping[int, ast.Module]) -> Iterator[Statement]:
    """Yields all statements of the cells, in order."""
    for cell, tree in trees.items():
        for node in tree.body:
            names = _Names()
            names.visit(node)
            binds, changes = set(names.bound), set(names.changed)
            if isinstance(node, _COMPOUND):
                # It may or may not happen, so what was there before may still count.
                changes |= binds
                binds = set()
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                # Called for what it does: model.eval(), rows.append(...), or warm_up(), which may change what
                # warm_up works on.
                changes.add(_root(node.value))
            yield Statement(
                cell,
                node,
                frozenset(binds - changes),
                frozenset(changes - {""}),
                frozenset(names.read | names.changed),
                frozenset(names.read_later - names.bound),
            )


def undefined_names(trees: Mapping[int, ast.Module]) -> list[str]:
    """Returns the names that these cells, run in order from an empty start, would not find.

    Example:
        >>> undefined_names({1: ast.parse("x = 1"), 2: ast.parse("print(x + y)")})
        ['y']
    """
    missing: set[str] = set()
    defined = set(_KNOWN)
    everywhere: set[str] = set()
    parts = list(statements(trees))
    for part in parts:
        everywhere |= part.binds | part.changes
    for part in parts:
        missing |= part.reads - defined
        defined |= part.binds | part.changes
        missing |= part.reads_later - everywhere - _KNOWN
    return sorted(missing)


def needed(trees: Mapping[int, ast.Module], chosen: Collection[int]) -> dict[int, list[ast.stmt]]:
    r"""Returns the statements of other cells that the chosen cells cannot do without.

    Args:
        trees: the syntax tree of each code cell, by its number, in order.
        chosen: numbers of the cells that are kept whole.

    Returns:
        By the number of their cell, the statements to keep of cells that are not chosen, in order. A name leads to the
        last statement before that gives it its value, to those after it that may change it, and so on.

    Example:
        >>> cells = {1: ast.parse("a = 1\nprint('slow')"), 2: ast.parse("b = a + 1"), 3: ast.parse("print(b)")}
        >>> {cell: [ast.unparse(part) for part in parts] for cell, parts in needed(cells, [3]).items()}
        {1: ['a = 1'], 2: ['b = a + 1']}
    """
    parts = list(statements(trees))
    imported = {name for part in parts if part.is_import for name in part.binds}
    # A call on a module or on a function of a library changes nothing that the notebook has made.
    own = {name for part in parts for name in part.binds | part.changes} - imported - _KNOWN
    kept: set[int] = set()
    asked: set[tuple[str, int]] = set()
    open_questions: list[tuple[str, int]] = []

    def keep(index: int, called_at: int) -> None:
        """Keeps a statement that is used at ``called_at``: that is when its functions look their names up."""
        kept.add(index)
        open_questions.extend((name, index) for name in parts[index].reads)
        open_questions.extend((name, called_at) for name in parts[index].reads_later)

    for index, part in enumerate(parts):
        if part.cell in chosen:
            keep(index, index + 1)
    while open_questions:
        question = open_questions.pop()
        if question in asked:
            continue
        asked.add(question)
        name, before = question
        for index in range(before - 1, -1, -1):
            part = parts[index]
            if name in part.binds:
                keep(index, before)
                break
            if name in part.changes and name in own:
                keep(index, before)
    found: dict[int, list[ast.stmt]] = {}
    for index in sorted(kept):
        if parts[index].cell not in chosen:
            found.setdefault(parts[index].cell, []).append(parts[index].node)
    return found
