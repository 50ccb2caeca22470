"""Every cell for a GPU has run on one: on a real one, by its record, or else on the stand-in for CUDA.

A lesson that a GPU has recorded as it is now, with all of its experiments, is not played: `is_recorded_on_a_gpu`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from course_utils.lesson_notebooks import Lesson, experiments, find_lessons, read_notebook
from course_utils.results import store
from course_utils.results.code_hash import code_hash
from tests import made_up_notebooks as made_up
from tests.played_cuda.lessons import strange_names

ROOT = Path(__file__).resolve().parents[2]
LESSONS = find_lessons()
Play = Callable[[Path], list[dict]]

pytestmark = pytest.mark.skipif(
    torch.backends.cuda.is_built() or not hasattr(os, "fork"),
    reason="the stand-in plays on a CPU build, in forks",
)


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    """Gives what became of each code cell of a notebook; one process has imported torch for all of them."""
    command = [sys.executable, "-m", "tests.played_cuda", "--serve"]
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def played(path: Path) -> list[dict]:
        print(path, file=server.stdin, flush=True)
        return json.loads(server.stdout.readline())

    yield played
    for process in [*psutil.Process(server.pid).children(recursive=True), server]:
        process.kill()
    server.communicate()


def code_cells(lesson: Lesson) -> list[dict]:
    return [cell for cell in read_notebook(lesson.path)["cells"] if cell["cell_type"] == "code"]


def is_recorded_on_a_gpu(lesson: Lesson) -> bool:
    """Whether a GPU has run all of a lesson's experiments, with the code that they have now."""
    now = {name: code_hash(lesson, name) for name in experiments(lesson)}
    for record in store.records_of(lesson.slug, store.reference_root()):
        then = {name: experiment.code_hash for name, experiment in record.experiments.items()}
        if record.environment.device_kind == "cuda" and now.items() <= then.items():
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    "lesson", [each for each in LESSONS if not is_recorded_on_a_gpu(each)], ids=lambda lesson: lesson.slug
)
def test_every_cell_runs_on_a_gpu(lesson: Lesson, play: Play):
    outcomes = play(lesson.path)
    for outcome in outcomes:
        told = f"{lesson.path.name}, cell {outcome['cell']}, line {outcome['line']}: {outcome['error']}"
        assert not outcome["error"], told
    code = code_cells(lesson)
    pasted = sum("standalone" in cell["metadata"].get("tags", []) for cell in code)
    assert len(outcomes) == len(code) + 2 * pasted


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.slug)
def test_a_cell_to_paste_names_nothing_that_it_does_not_make(lesson: Lesson):
    for cell in code_cells(lesson):
        if "standalone" in cell["metadata"].get("tags", []):
            assert strange_names(cell["source"]) == []
            assert "course_utils" not in cell["source"]


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
    "with torch.cuda.graph(torch.cuda.CUDAGraph()): x.sum().item()": "not permitted when stream is capturing",
    "in_a_child(lambda: torch.cuda.get_device_properties(0))": "in forked subprocess",
}
RIGHT = [
    "x = torch.ones(3, pin_memory=True).to('cuda', non_blocking=True); assert x.is_cuda and x.sum().item() == 3",
    "with torch.cuda.stream(torch.cuda.Stream()): y = x * 2",
    "torch.cuda.current_stream().synchronize(); assert (y.cpu() == 2).all() and not y.cpu().is_cuda",
    "before = torch.cuda.memory_allocated(); z = torch.empty(2**20, device='cuda')",
    "assert torch.cuda.memory_allocated() - before == 2**22",
    "graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph): z = x + 1",
    "x.zero_(); graph.replay(); assert z.sum().item() == 3",
    "with torch.autocast('cuda', torch.half): assert (torch.ones(2, 2, device='cuda') @ y[:2]).dtype == torch.half",
]
FORKS = """
import os

def in_a_child(fn):
    reading, writing = os.pipe()
    if os.fork() == 0:  # a child, which ends here
        try:
            fn()
        except BaseException as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.close(writing)
    os.wait()
    raise RuntimeError(os.read(reading, 4096).decode())
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory, play) -> list[dict]:
    """A notebook of right and wrong cells, then one without use of the GPU and two that cannot be pasted."""
    cells = [f"import torch\n{FORKS}", *RIGHT, *WRONG]
    cells += [
        made_up.code("torch.ones(3).sum()", "needs-cuda"),
        made_up.code("torch.ones(3, device='cuda').sum()", "needs-cuda"),
        made_up.code("print(torch.ones(3))", "standalone"),
        made_up.code("import course_utils", "standalone"),
    ]
    return play(made_up.save(tmp_path_factory.mktemp("played") / "05_things.ipynb", *cells))


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
