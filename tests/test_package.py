"""The package as a whole: its public names, and what an import of them costs and changes."""

from __future__ import annotations

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


def _loaded_by(code: str) -> set[str]:
    code = f"import json, sys; before = set(sys.modules)\n{code}\nprint(json.dumps([*set(sys.modules) - before]))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    return set(json.loads(run.stdout))


def test_the_package_alone_loads_nothing_and_all_names_nothing_that_draws_and_change_nothing() -> None:
    roots = {name.partition(".")[0] for name in _loaded_by("import course_utils, course_utils.results.paired")}
    assert roots <= {"course_utils", *sys.stdlib_module_names}
    loaded = _loaded_by(
        "import torch, random\n"
        "torch.manual_seed(0); random.seed(0)\n"
        "state = torch.get_rng_state(), random.getstate(), torch.get_num_threads()\n"
        f"{ALL_NAMES}\n"
        "assert state[0].equal(torch.get_rng_state()) and state[1:] == (random.getstate(), torch.get_num_threads())\n"
        "assert not torch.cuda.is_initialized()"
    )
    heavy = {"matplotlib", "ipywidgets", "IPython", "nbformat", "nbclient", "PIL", "jinja2"}
    assert {name.partition(".")[0] for name in loaded} & heavy == set()
    # torch.compile's machinery alone takes longer than all of the course.
    assert not any(name.startswith(("torch._dynamo", "torch._inductor")) for name in loaded)
