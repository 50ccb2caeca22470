"""Every code cell of every lesson runs as on a machine with one GPU: on the stand-in for CUDA, where none is.

Each lesson runs in a process of its own, since the stand-in changes all of torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from course_utils.records.lessons import find_lessons
from course_utils.records.notebook_files import read_notebook
from tests import made_up_notebooks as made_up

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(torch.backends.cuda.is_built(), reason="the stand-in plays on torch's CPU build")


def outcomes_of(path: Path) -> list[dict]:
    """What became of each code cell."""
    command = [sys.executable, "-m", "tests.played_cuda", str(path), "--json"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("lesson", find_lessons(), ids=lambda lesson: lesson.slug)
def test_every_cell_runs_on_a_gpu(lesson):
    outcomes = outcomes_of(lesson.path)
    for outcome in outcomes:
        told = f"{lesson.path.name}, cell {outcome['cell']}, line {outcome['line']}: {outcome['error']}"
        assert not outcome["error"], told
    code = [cell for cell in read_notebook(lesson.path)["cells"] if cell["cell_type"] == "code"]
    pasted = sum("standalone" in cell["metadata"].get("tags", []) for cell in code)
    assert len(outcomes) == len(code) + 2 * pasted


# The stand-in notices what a GPU would.

WRONG = {
    "stream = torch.cuda.Straem()": "has no attribute 'Straem'",
    "torch.cuda.Event(timing=True)": "unexpected keyword argument 'timing'",
    "torch.ones(2, 3, device='cuda') @ torch.ones(2, 3, device='cuda')": "cannot be multiplied",
    "torch.ones(3, device='cuda') + torch.ones(3)": "Expected all tensors to be on the same device",
    "torch.nn.Linear(3, 3)(torch.ones(3, device='cuda'))": "Expected all tensors to be on the same device",
    "torch.ones(3, device='cuda').numpy()": "can't convert cuda:0 device type tensor to numpy",
    "torch.ones(3, device='cuda:1')": "invalid device ordinal",
    "torch.ones(3, device='cuda').pin_memory()": "only dense CPU tensors can be pinned",
    "torch.cuda.Event().elapsed_time(torch.cuda.Event())": "enable_timing",
    "torch.empty(9 * 2**30, dtype=torch.uint8, device='cuda')": "CUDA out of memory",
    "private_memory.resident_bytes(lambda: torch.cuda.get_device_properties(0))": "in forked subprocess",
}
RIGHT = [
    "x = torch.ones(3, pin_memory=True).to('cuda', non_blocking=True); assert x.is_cuda and x.sum().item() == 3",
    "with torch.cuda.stream(torch.cuda.Stream()): y = x * 2",
    "torch.cuda.current_stream().synchronize(); assert (y.cpu() == 2).all() and not y.cpu().is_cuda",
    "before = torch.cuda.memory_allocated(); z = torch.empty(2**20, device='cuda')",
    "assert torch.cuda.memory_allocated() - before == 2**22",
    "with torch.autocast('cuda', torch.half): assert (torch.ones(2, 2, device='cuda') @ y[:2]).dtype == torch.half",
]
FORKS = "from course_utils.lessons.on_device_tensors import private_memory"


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> list[dict]:
    """A notebook of right and wrong cells, then one without use of the GPU and two that cannot be pasted."""
    cells = [f"import torch\n{FORKS}", *RIGHT, *WRONG]
    cells += [
        made_up.code("torch.ones(3).sum()", "needs-cuda"),
        made_up.code("torch.ones(3, device='cuda').sum()", "needs-cuda"),
        made_up.code("print(torch.ones(3))", "standalone"),
        made_up.code("import course_utils", "standalone"),
    ]
    return outcomes_of(made_up.save(tmp_path_factory.mktemp("played") / "05_things.ipynb", *cells))


def test_the_stand_in_runs_what_is_right(played):
    errors = [outcome["error"] for outcome in played if not outcome["id"].partition(",")[2]]
    assert errors[: 1 + len(RIGHT)] == [""] * (1 + len(RIGHT))


@pytest.mark.parametrize(("number", "source"), [*enumerate(WRONG, start=2 + len(RIGHT))], ids=list(WRONG))
def test_the_stand_in_refuses_what_a_gpu_would(played, number, source):
    (outcome,) = (o for o in played if o["cell"] == number and "," not in o["id"])
    assert WRONG[source] in outcome["error"]
    assert outcome["line"] == 1


def test_a_cell_that_needs_a_gpu_must_use_it(played):
    first = 2 + len(RIGHT) + len(WRONG)
    assert [o["error"] for o in played if o["cell"] in (first, first + 1)] == ["did nothing on the GPU", ""]


def test_a_cell_to_paste_stands_alone(played):
    pasted = [(o["id"].partition(", ")[2], o["error"]) for o in played if ", " in o["id"]]
    errors = ["names torch, which it does not import or define", "names course_utils"]
    assert pasted == [(where, error) for where in ("without a GPU", "with a GPU") for error in errors]
