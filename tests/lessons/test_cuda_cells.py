"""Every cell for a GPU has run on one: on a real one, by its record, or else on the stand-in for CUDA."""

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

from course_utils.lesson_notebooks import Lesson, find_lessons
from tests import made_up_notebooks as made_up
from tests.played_cuda.lessons import code_cells, strange_names, tagged, to_play

ROOT = Path(__file__).resolve().parents[2]
LESSONS = find_lessons()
Play = Callable[[Path], list[dict]]

pytestmark = pytest.mark.skipif(
    torch.backends.cuda.is_built() or not hasattr(os, "fork"),
    reason="the stand-in plays on a CPU build, in forks",
)


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    """Gives what became of a notebook's cells for a GPU; one process has imported torch for all notebooks."""
    command = [sys.executable, "-m", "tests.played_cuda", "--serve"]
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def played(path: Path) -> list[dict]:
        print(path, file=server.stdin, flush=True)
        return json.loads(server.stdout.readline())

    yield played
    for process in [*psutil.Process(server.pid).children(recursive=True), server]:
        process.kill()
    server.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("lesson", [each for each in LESSONS if to_play(each)], ids=lambda lesson: lesson.slug)
def test_every_cell_for_a_gpu_runs_on_one(lesson: Lesson, play: Play):
    outcomes = play(lesson.path)
    for outcome in outcomes:
        told = f"{lesson.path.name}, cell {outcome['cell']}, line {outcome['line']}: {outcome['error']}"
        assert not outcome["error"], told
    assert {outcome["cell"] for outcome in outcomes} >= set(to_play(lesson))


def test_a_cell_to_paste_names_nothing_that_it_does_not_make():
    for lesson in LESSONS:
        for cell in code_cells(lesson.path).values():
            if tagged(cell, "standalone"):
                assert strange_names(cell["source"]) == [], lesson.slug
                assert "course_utils" not in cell["source"], lesson.slug


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
RIGHT = """
import os
import torch

x = torch.ones(3, pin_memory=True).to("cuda", non_blocking=True)
assert x.is_cuda and x.sum().item() == 3
with torch.cuda.stream(torch.cuda.Stream()):
    y = x * 2
torch.cuda.current_stream().synchronize()
assert (y.cpu() == 2).all() and not y.cpu().is_cuda
before = torch.cuda.memory_allocated()
z = torch.empty(2**20, device="cuda")
assert torch.cuda.memory_allocated() - before == 2**22
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    z = x + 1
x.zero_()
graph.replay()
assert z.sum().item() == 3
with torch.autocast("cuda", torch.half):
    assert (torch.ones(2, 2, device="cuda") @ y[:2]).dtype == torch.half

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
def played(tmp_path_factory, play) -> dict[int, dict]:
    """What became of right and wrong cells, of one that does not use the GPU, and of one to paste, by their places."""
    cells = [made_up.code(source, "needs-cuda") for source in (RIGHT, *WRONG, "torch.ones(3).sum()")]
    cells.append(made_up.code("x = cuda", "standalone"))
    outcomes = play(made_up.save(tmp_path_factory.mktemp("played") / "05_things.ipynb", *cells))
    return {outcome["cell"]: outcome for outcome in outcomes}


def test_the_stand_in_runs_what_is_right(played):
    assert played[1]["error"] == ""


@pytest.mark.parametrize(("number", "source"), [*enumerate(WRONG, start=2)], ids=list(WRONG))
def test_the_stand_in_refuses_what_a_gpu_would(played, number, source):
    assert WRONG[source] in played[number]["error"]
    assert played[number]["line"] == 1


def test_a_cell_that_needs_a_gpu_must_use_it_and_one_to_paste_stands_alone(played):
    without, pasted = (played[number]["error"] for number in sorted(played)[-2:])
    assert without == "did nothing on the GPU"
    assert pasted.startswith("NameError: name 'cuda' is not defined")
