"""The statements of a notebook's cells, and what they need of each other. Nothing is run.

Whole cells would be too much: the cell that defines a function often measures with it, too, for half a minute.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

KNOWN = frozenset(dir(builtins)) | {"display", "get_ipython", "__file__", "__name__"}
"""Names that every cell has."""

_COMPREHENSIONS = {"listcomp", "setcomp", "dictcomp", "genexpr"}  # as symtable calls them
_MAY_HAPPEN = (ast.If, ast.For, ast.While, ast.Try)
_OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_VALUE_LAST = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Statement:
    """One statement at the top of a cell, and what it does with names."""

    cell: int
    node: ast.stmt
    binds: frozenset[str]  # names that it gives a value, whatever they had before
    changes: frozenset[str]  # names whose value it changes, or may change
    reads: frozenset[str]  # names that it needs when it runs
    reads_later: frozenset[str]  # names that functions in it need when they are called


def statements(cells: Mapping[int, ast.Module]) -> list[Statement]:
    """Returns all statements of the cells, in order."""
    return [_examined(number, node) for number, tree in cells.items() for node in tree.body]


def needed(parts: Sequence[Statement], chosen: Collection[int]) -> list[Statement]:
    r"""Returns the statements of other cells that the chosen cells cannot do without, in order.

    A name leads to the last statement before that gives it its value, to those after it that may change it, and so on.

    Args:
        parts: what `statements` gives.
        chosen: numbers of the cells that are kept whole.

    Example:
        >>> cells = {1: ast.parse("a = 1\nprint('slow')"), 2: ast.parse("b = a + 1"), 3: ast.parse("print(b)")}
        >>> [ast.unparse(part.node) for part in needed(statements(cells), [3])]
        ['a = 1', 'b = a + 1']
    """
    imported = {name for part in parts if isinstance(part.node, ast.Import | ast.ImportFrom) for name in part.binds}
    # A call on a module or on a function of a library changes nothing that the notebook has made.
    foreign = imported | KNOWN
    kept: set[int] = set()
    asked: set[tuple[str, int]] = set()
    questions: list[tuple[str, int]] = []

    def keep(index: int, called_at: int) -> None:
        """Keeps a statement that is used at ``called_at``: that is when its functions look their names up."""
        kept.add(index)
        questions.extend((name, index) for name in parts[index].reads)
        questions.extend((name, called_at) for name in parts[index].reads_later)

    for index, part in enumerate(parts):
        if part.cell in chosen:
            keep(index, index + 1)
    while questions:
        question = questions.pop()
        if question in asked:
            continue
        asked.add(question)
        name, before = question
        for index in range(before - 1, -1, -1):
            if name in parts[index].binds:
                keep(index, before)
                break
            if name in parts[index].changes - foreign:
                keep(index, before)
    return [parts[index] for index in sorted(kept) if parts[index].cell not in chosen]


def _examined(cell: int, node: ast.stmt) -> Statement:
    table = symtable.symtable(ast.unparse(node), "cell", "exec")
    parts = list(_as_it_runs(node))
    binds = {name.get_name() for name in table.get_symbols() if name.is_assigned() or name.is_imported()}
    # Since Python 3.12 the table has the names of comprehensions, which are their own.
    loops = [part.target for part in parts if isinstance(part, ast.comprehension)]
    own = [name for target in loops for name in ast.walk(target) if isinstance(name, ast.Name)]
    stored = [part for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]
    walrus = {name.id for name in stored if name not in own}  # Python 3.11's table does not see one in a comprehension
    binds = binds - {name.id for name in own} | walrus
    changes = {name for part in parts for name in _changed_in_place(part)}
    reads, reads_later = _read(table)
    first_use = {part.id: part.ctx for part in reversed(parts) if isinstance(part, ast.Name)}
    caught = {part.name for part in parts if isinstance(part, ast.ExceptHandler)}
    reads = {name for name in (reads | changes) - caught if not isinstance(first_use.get(name), ast.Store)}
    if isinstance(node, _MAY_HAPPEN):
        changes |= binds  # what was there before may still count
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        # Called for what it does: model.eval(), rows.append(...), or warm_up(), which may change what it works on.
        changes |= _root(node.value)
    return Statement(cell, node, *map(frozenset, (binds - changes, changes, reads, reads_later - binds)))


def _as_it_runs(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement that run with it, in order: a value comes before the name that takes it."""
    yield node
    children = [] if isinstance(node, _OWN_SCOPE) else list(ast.iter_child_nodes(node))
    if isinstance(node, _VALUE_LAST):
        children.reverse()
    elif isinstance(node, ast.For | ast.comprehension):
        children[:2] = [node.iter, node.target]
    elif isinstance(node, ast.AugAssign):
        children = [node.value]  # its name has a value already
    for child in children:
        yield from _as_it_runs(child)


def _read(table: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """The notebook's names that are read when this runs, and those that are read when its functions are called."""
    is_top = table.get_type() == "module"
    now = {each.get_name() for each in table.get_symbols() if each.is_referenced() and (is_top or each.is_global())}
    later: set[str] = set()
    for child in table.get_children():
        child_now, child_later = _read(child)
        if child.get_type() == "function" and child.get_name().strip("<>") not in _COMPREHENSIONS:
            later |= child_now
        else:
            now |= child_now
        later |= child_later
    return now, later


def _changed_in_place(part: ast.AST) -> set[str]:
    """``x.y = ...``, ``x[0] = ...``, ``x += ...`` and ``del x[0]`` change x and do not bind it."""
    if isinstance(part, ast.AugAssign):
        return _root(part.target)
    if isinstance(part, ast.Attribute | ast.Subscript) and not isinstance(part.ctx, ast.Load):
        return _root(part)
    return {part.id} if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Del) else set()


def _root(node: ast.AST) -> set[str]:
    """The name that an attribute, item or call chain starts from, if any: ``x`` for ``x.a[0].b()``."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return {node.id} if isinstance(node, ast.Name) else set()
