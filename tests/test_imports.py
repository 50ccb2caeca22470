"""The modules of the package: no two import each other in a circle, and imports go one way only."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_MODULES = {
    ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("course_utils", "own_program")
    for path in (_ROOT / package).rglob("*.py")
}
# A package may import from those of its own line and of the lines above.
_LEVELS = ({"show"}, {"results"}, {"measure"}, {"memory"}, {"ranks", "materials"}, {"lessons"}, {"commands"})
# What lies beside the packages, for all of them.
_BESIDE = {"files", "lesson_notebooks", "lesson_order"}


def _imports(node: ast.AST) -> Iterator[tuple[str, ...]]:
    """What is imported, at the top or in a function; what only a type checker reads does not count."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(child, ast.Import):
            yield tuple(alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert not child.level, "imports are absolute"
            names = tuple(f"{child.module}.{alias.name}" for alias in child.names)
            inside = tuple(name for name in names if name in _MODULES)
            yield inside or (str(child.module),)
        else:
            yield from _imports(child)


def _graph() -> dict[str, set[str]]:
    return {
        module: {name for names in _imports(ast.parse(path.read_text())) for name in names}
        for module, path in _MODULES.items()
    }


def test_imports_have_no_circle() -> None:
    graph = {module: {name for name in names if name in _MODULES} for module, names in _graph().items()}
    assert len(graph) > 50
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(graph)


def test_imports_go_one_way() -> None:
    levels = {package: number for number, level in enumerate(_LEVELS) for package in level} | dict.fromkeys(_BESIDE, 0)
    for module, names in _graph().items():
        here = levels.get(module.split(".")[1]) if "." in module else None
        above = {"authoring", "benchmarks", "tests", "tools"}
        above |= {"own_program"} if module.startswith("course_utils") else set()
        for name in names:
            assert name.partition(".")[0] not in above, (module, name)
            if module.startswith("course_utils.") and here is not None and name.startswith("course_utils."):
                assert levels[name.split(".")[1]] <= here, (module, name)
