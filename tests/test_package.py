"""The package as a whole: its public names, and what an import of them costs and changes."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import course_utils
import own_program

ROOT = Path(course_utils.__file__).resolve().parent
PUBLIC = {
    course_utils: ["ceilings", "compare", "environment", "fresh", "predict", "recorded", "scaled", "sweep", "tabulate"],
    own_program: ["diagnose", "read_snapshot", "read_trace"],
}
ALL_NAMES = "\n".join(f"from {package.__name__} import {', '.join(names)}" for package, names in PUBLIC.items())


def _python(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True, cwd=ROOT.parent
    )
    return run.stdout


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_are_offered_and_documented(package: ModuleType) -> None:
    assert package.__all__ == sorted(dir(package)) == PUBLIC[package]
    for name in PUBLIC[package]:
        function = getattr(package, name)
        assert inspect.getdoc(function)
        assert all(p.annotation is not inspect.Parameter.empty for p in inspect.signature(function).parameters.values())
    with pytest.raises(ImportError, match="cannot import name 'benchmark'"):
        exec(f"from {package.__name__} import benchmark")
    with pytest.raises(ImportError, match="from own_program import read_trace"):
        exec("from course_utils import read_trace")


@pytest.mark.parametrize("package", PUBLIC)
def test_editors_see_the_names_where_they_come_from(package: ModuleType) -> None:
    # The names load lazily from a table; type checkers and editors read the imports beside it.
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    declared = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package.__name__)
        for alias in node.names
    }
    assert declared == {name: getattr(package, name).__module__ for name in PUBLIC[package]}


def _loaded_by(code: str) -> set[str]:
    printed = _python(
        f"import json, sys; before = set(sys.modules)\n{code}\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    )
    return set(json.loads(printed))


def test_the_package_alone_loads_nothing_and_all_names_nothing_that_draws() -> None:
    roots = {name.partition(".")[0] for name in _loaded_by("import course_utils, course_utils.results.paired")}
    assert roots <= {"course_utils", *sys.stdlib_module_names}
    loaded = _loaded_by(ALL_NAMES)
    assert "torch" in loaded
    heavy = {"matplotlib", "ipywidgets", "IPython", "nbformat", "nbclient", "PIL", "jinja2"}
    assert {name.partition(".")[0] for name in loaded} & heavy == set()
    # torch.compile's machinery alone takes longer than all of the course.
    assert not any(name.startswith(("torch._dynamo", "torch._inductor")) for name in loaded)


def test_import_changes_nothing() -> None:
    _python(
        "import torch, random\n"
        "torch.manual_seed(0); random.seed(0)\n"
        "before = torch.get_rng_state(), random.getstate(), torch.get_num_threads()\n"
        f"{ALL_NAMES}\n"
        "assert before[0].equal(torch.get_rng_state()) and before[1:] == (random.getstate(), torch.get_num_threads())\n"
        "assert not torch.cuda.is_initialized()"
    )
