"""The package as a whole: its names, what it imports, and which module may know which."""

from __future__ import annotations

import ast
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import course_utils

ROOT = Path(course_utils.__file__).resolve().parent
# DESIGN's public names. The lessons still to come add diagnose.
PUBLIC = {
    "ceilings",
    "compare",
    "curves",
    "environment",
    "fresh",
    "measure",
    "predict",
    "recorded",
    "run_ranks",
    "scaled",
    "simulate_allocator",
    "simulate_cluster",
    "sweep",
    "tabulate",
    "trace_memory",
}


def _python(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True, cwd=ROOT.parent
    )
    return run.stdout


# Public names


def test_public_names() -> None:
    assert set(course_utils.__all__) == PUBLIC
    assert course_utils.__all__ == sorted(course_utils.__all__)
    for name in PUBLIC:
        assert callable(getattr(course_utils, name))


def test_no_module_bears_the_name_of_a_public_function() -> None:
    # `from course_utils import compare` would otherwise give the module or the function, depending on what came first.
    modules = {path.stem for path in ROOT.rglob("*.py")}
    assert modules & PUBLIC == set()


def test_completion_offers_the_public_names_only() -> None:
    assert set(dir(course_utils)) == PUBLIC
    assert not hasattr(course_utils, "benchmark")
    with pytest.raises(ImportError, match="cannot import name 'benchmark'"):
        exec("from course_utils import benchmark")


def test_editors_see_the_names_where_they_come_from() -> None:
    # The names load lazily from a table; type checkers and editors read the imports beside it.
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    declared = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("course_utils")
        for alias in node.names
    }
    assert declared == {name: getattr(course_utils, name).__module__ for name in PUBLIC}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_functions_are_documented(name: str) -> None:
    function = getattr(course_utils, name)
    text = inspect.getdoc(function)
    assert text
    assert "Args:" in text or not inspect.signature(function).parameters
    assert all(p.annotation is not inspect.Parameter.empty for p in inspect.signature(function).parameters.values())


# Import


_ALL_NAMES = f"from course_utils import {', '.join(sorted(PUBLIC))}"


def _loaded_by(code: str) -> set[str]:
    said = _python(
        f"import json, sys; before = set(sys.modules)\n{code}\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    )
    return set(json.loads(said))


def test_the_package_alone_loads_nothing() -> None:
    assert {name.partition(".")[0] for name in _loaded_by("import course_utils")} <= {
        "course_utils",
        *sys.stdlib_module_names,
    }


def test_all_names_together_load_torch_and_nothing_that_draws() -> None:
    loaded = _loaded_by(_ALL_NAMES)
    assert {
        "course_utils.measure.timing",
        "course_utils.measure.ceilings",
        "course_utils.records.store",
        "torch",
    } <= loaded
    by_torch = _loaded_by("import torch")
    roots = {name.partition(".")[0] for name in loaded - by_torch}
    heavy = {"matplotlib", "ipywidgets", "IPython", "tqdm", "nbformat", "nbclient", "PIL", "jinja2", "psutil", "pynvml"}
    assert roots & heavy == set()
    # torch.compile's machinery alone takes longer than all of the course.
    assert not any(name.startswith(("torch._dynamo", "torch._inductor")) for name in loaded)


def test_import_changes_nothing() -> None:
    said = _python(
        "import torch, random\n"
        "torch.manual_seed(0); random.seed(0)\n"
        "before = torch.get_rng_state(), random.getstate(), torch.get_num_threads()\n"
        f"{_ALL_NAMES}\n"
        "assert before[0].equal(torch.get_rng_state()) and before[1:] == (random.getstate(), torch.get_num_threads())\n"
        "assert not torch.cuda.is_initialized()"
    )
    assert said == ""


@pytest.mark.serial
def test_all_names_together_add_little_to_torchs_own_import() -> None:
    def seconds(code: str) -> float:
        started = time.perf_counter()
        _python(code)
        return time.perf_counter() - started

    both_imports = f"import torch\n{_ALL_NAMES}"
    seconds(both_imports)  # reads the files once, and compiles them
    pairs = [(seconds("import torch"), seconds(both_imports)) for _ in range(3)]
    ratio = statistics.median(both / alone for alone, both in pairs)
    print("torch, with the course:", [(round(a, 2), round(b, 2)) for a, b in pairs])  # noqa: T201
    # 1.05 to 1.1 on a quiet machine. Pulling in matplotlib alone would make it more than this.
    assert ratio < 1.35


# Who may know whom


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Modules that a file imports, and whether that is at its top: not in a function, not for type checkers only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))

    def visit(node: ast.AST, top: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, top) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path.name}: relative import"
                # `from course_utils import paired` imports a module, `from course_utils.x import y` as well.
                for alias in child.names:
                    yield (f"{child.module}.{alias.name}" if child.module == "course_utils" else child.module), top
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            else:
                yield from visit(child, top and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    return visit(tree, True)


def _ours(file: str, top_only: bool = False) -> set[str]:
    """Our own modules that a module imports, without the package's name."""
    return {
        name.removeprefix("course_utils").removeprefix(".").removesuffix(".py")
        for name, top in _imports(ROOT / file)
        if name.partition(".")[0] == "course_utils" and (top or not top_only)
    }


def test_paired_is_pure() -> None:
    assert _ours("paired.py") == set()
    assert {name.partition(".")[0] for name, _ in _imports(ROOT / "paired.py")} <= set(sys.stdlib_module_names)


def test_the_simulated_allocator_is_pure() -> None:
    assert _ours("allocator.py", top_only=True) == set()
    assert _ours("snapshots.py") == {"allocator"}
    for file in ("allocator.py", "snapshots.py"):
        others = {name.partition(".")[0] for name, _ in _imports(ROOT / file)} - {"course_utils"}
        assert others <= set(sys.stdlib_module_names)


def test_results_know_paired_and_show_themselves_lazily() -> None:
    assert _ours("results.py", top_only=True) == {"paired"}
    assert {name.partition(".")[0] for name in _ours("results.py")} == {"paired", "display"}
    others = {name.partition(".")[0] for name, _ in _imports(ROOT / "results.py")} - {"course_utils"}
    assert others <= set(sys.stdlib_module_names)


def test_store_knows_results_and_asks_lessons_lazily() -> None:
    assert _ours("store.py", top_only=True) == {"results"}
    assert _ours("store.py") == {"results", "lessons"}
    others = {name.partition(".")[0] for name, _ in _imports(ROOT / "store.py")} - {"course_utils"}
    assert others <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("path", sorted((ROOT / "display").glob("*.py")), ids=lambda path: path.stem)
def test_display_knows_results_only(path: Path) -> None:
    known = {name.partition(".")[0] for name in _ours(f"display/{path.name}")}
    # The simulated allocator is as pure as paired: its explorer turns the knobs and simulates anew. So does the
    # cluster's, when it is used.
    live = {"cluster"} if path.stem == "cluster_explorer" else set()
    assert known - live <= {"allocator", "display", "paired", "results"}
    assert "cluster" not in _ours(f"display/{path.name}", top_only=True)


@pytest.mark.parametrize("name", ["__init__", "prediction", "progress", "quantities", "tables", "verdicts"])
def test_display_without_figures_needs_no_plotting_at_import(name: str) -> None:
    at_import = {name.partition(".")[0] for name, top in _imports(ROOT / "display" / f"{name}.py") if top}
    assert at_import - {"course_utils"} <= set(sys.stdlib_module_names)


def test_measuring_modules_do_not_know_who_uses_them() -> None:
    users = {"cli", "recording", "report", "machine_check", "lessons", "exercises"}
    for file in ("paired.py", "results.py", "machine.py", "devices.py", "state.py", "timing.py", "limits.py"):
        assert {name.partition(".")[0] for name in _ours(file)} & users == set()


def test_imports_between_modules_have_no_cycle() -> None:
    files = {path.relative_to(ROOT) for path in ROOT.rglob("*.py")} - {Path("__init__.py")}
    graph = {
        file.with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): _ours(str(file), top_only=True)
        for file in files
    }
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail, module))
        if module not in done:
            for name in graph.get(module, ()):
                # `from course_utils.show.tables import html` and `from course_utils import paired`.
                visit(name if name in graph else name.rpartition(".")[0], (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_nothing_imports_notebooks_or_tests() -> None:
    for path in ROOT.rglob("*.py"):
        roots = {name.partition(".")[0] for name, _ in _imports(path)}
        assert roots & {"notebooks", "tests", "benchmarks", "book"} == set(), path.name


def test_there_is_no_drawer_for_odds_and_ends() -> None:
    names = {path.stem for path in ROOT.rglob("*.py")}
    assert names & {"utils", "helpers", "misc", "common"} == set()


def test_environment_of_these_tests_is_the_smoke_size() -> None:
    # conftest.py sets it for all tests, so that none runs a full-size lesson by accident.
    assert os.environ["COURSE_SIZE"] in ("smoke", "full")
