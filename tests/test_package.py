"""The package as a whole: its public names, and what an import of them costs and changes."""

from __future__ import annotations

import ast
import inspect
import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import course_utils

ROOT = Path(course_utils.__file__).resolve().parent
PUBLIC = [
    *("ceilings", "compare", "diagnose", "environment", "fresh", "predict"),
    *("read_snapshot", "read_trace", "recorded", "scaled", "sweep", "tabulate"),
]
ALL_NAMES = f"from course_utils import {', '.join(PUBLIC)}"


# What each part may import, lazy imports included. Parts that may know each other have no circle of modules.
def _python(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True, cwd=ROOT.parent
    )
    return run.stdout


def test_public_names_are_offered_and_documented() -> None:
    assert course_utils.__all__ == sorted(dir(course_utils)) == PUBLIC
    for name in PUBLIC:
        function = getattr(course_utils, name)
        assert inspect.getdoc(function)
        assert all(p.annotation is not inspect.Parameter.empty for p in inspect.signature(function).parameters.values())
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


def _loaded_by(code: str) -> set[str]:
    printed = _python(
        f"import json, sys; before = set(sys.modules)\n{code}\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    )
    return set(json.loads(printed))


def test_the_package_alone_loads_nothing_and_all_names_nothing_that_draws() -> None:
    roots = {name.partition(".")[0] for name in _loaded_by("import course_utils")}
    assert roots <= {"course_utils", *sys.stdlib_module_names}
    loaded = _loaded_by(ALL_NAMES)
    assert "torch" in loaded
    roots = {name.partition(".")[0] for name in loaded - _loaded_by("import torch")}
    heavy = {"matplotlib", "ipywidgets", "IPython", "tqdm", "nbformat", "nbclient", "PIL", "jinja2", "psutil", "pynvml"}
    assert roots & heavy == set()
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


def test_all_names_together_add_little_to_torchs_own_import() -> None:
    timed = (
        # What this process computes: files and other programs do not count.
        "from time import process_time\nstart = process_time()\nimport torch\ntorch_alone = process_time()\n"
        f"{ALL_NAMES}\nprint((process_time() - start) / (torch_alone - start))"
    )
    _python(timed)  # reads the files once, and compiles them
    ratio = statistics.median(float(_python(timed)) for _ in range(3))
    # 1.05 to 1.1 on a quiet machine. Pulling in matplotlib alone would make it more than this.
    assert ratio < 1.35


def test_what_is_read_before_torch_is_there_needs_only_the_standard_library() -> None:
    roots = {name.partition(".")[0] for name in _loaded_by("import course_utils.records.paired")}
    assert roots <= {"course_utils", *sys.stdlib_module_names}
