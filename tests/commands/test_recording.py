"""Recording lessons: real notebooks in real kernels, and what can go wrong while they run."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from course_utils import lesson_notebooks
from course_utils.commands import cli, recording
from course_utils.commands.recording import RecordingError
from course_utils.results import store
from course_utils.results.environment import Environment
from course_utils.results.paired import Verdict
from tests import made_up_records
from tests.sandbox import SET_UP, Sandbox, alive, comparing, number_in, sandbox, wait_for
from tests.sandbox import here as sandbox_here

__all__ = ["sandbox"]

# Writes the kernel's process id, so that a test knows which process must be gone.
SAY_WHO = "import os\nopen('pid.part', 'w').write(f'{os.getpid()}\\n')\nos.replace('pid.part', 'pid')"
HANG = "import time\ntime.sleep(300)"
# A worker in a session of its own, as torchrun starts them.
WORKER = """
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
open("worker", "w").write(f"{worker.pid}\\n")
""".strip()
Course = Callable[..., tuple[int, str]]


@pytest.fixture
def here() -> Environment:
    return sandbox_here()


@pytest.fixture
def course(
    sandbox: Sandbox, here: Environment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Course:
    """The command line in this process, which spares a test the time to ask torch; gives its status and its words."""
    monkeypatch.setattr(recording, "environment_here", lambda: here)

    def run(*arguments: str) -> tuple[int, str]:
        status = cli.main(arguments)
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def other_record(box: Sandbox, lesson: str, machine: str) -> dict[str, bytes]:
    """A record that is there before, with content that nobody could write by accident."""
    folder = box.results / machine
    folder.mkdir(parents=True)
    (folder / f"{lesson}.json").write_text('{"schema_version": 1, "kept": "as it was"}\n')
    return box.record_files()


def test_a_recorded_lesson_reads_back_and_its_kernel_finds_nothing_compiled(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    earlier = tmp_path / "compiled earlier"
    (earlier / "kernels").mkdir(parents=True)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(earlier))
    sandbox.notebook(
        "00_alpha",
        "import os, sys\nfrom course_utils import compare\ncache = os.environ['TORCHINDUCTOR_CACHE_DIR']\n"
        "assert not os.path.exists(cache) or not os.listdir(cache)\n"
        "open('seen', 'w').write('\\n'.join([os.environ['COURSE_SIZE'], os.getcwd(), sys.executable, cache]))",
        'compare({"short": lambda: sum(range(20_000)), "long": lambda: sum(range(40_000))}, name="alpha/loops", '
        "memory=False, check=False, budget_s=1)",
    )
    run = sandbox.course("record", "alpha", "--reference", "--allow-busy", COURSE_SIZE="full")
    assert run.returncode == 0, run.stdout + run.stderr
    size, folder, python, cache = (sandbox.notebooks / "seen").read_text().splitlines()
    assert (size, Path(folder), python) == ("full", sandbox.notebooks, sys.executable)
    assert not Path(cache).exists()
    assert not sandbox.leftovers()
    # A reference goes into its own folder.
    assert not sandbox.results.exists()
    (path,) = sandbox.reference.glob("*/alpha.json")
    record = store.load_lesson(path)
    assert record.environment.size == "full"
    assert record.result("alpha/loops").rounds >= 8
    assert record.result("alpha/loops")["long"].verdict in (Verdict.SLOWER, Verdict.UNCLEAR)
    assert not store.code_has_changed(record, "alpha/loops")
    assert str(sandbox.root) not in path.read_text()


def test_lessons_that_fail_keep_their_earlier_records_and_the_others_go_on(
    sandbox: Sandbox, here: Environment, course: Course, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recording, "satisfied", lambda environment: set())
    before = other_record(sandbox, "beta", here.machine)
    on_gpu = f"if False:\n    {comparing('alpha/on_gpu')}"
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops"), on_gpu, needs="cuda")
    sandbox.notebook("01_beta", SET_UP, comparing("beta/loops"), "numbers = []\nnumbers[3]")
    sandbox.notebook("02_gamma", "x = 1", "import os\nos.kill(os.getpid(), 9)", comparing("gamma/loops"))
    sandbox.notebook("03_delta", SET_UP, f"if False:\n    {comparing('delta/forgotten')}")
    status, said = course("record")
    assert status == 1
    after = sandbox.record_files()
    assert {Path(name).stem for name in after} == {"alpha", "beta"}
    assert before.items() <= after.items()
    assert re.search(r"alpha: recorded, in \d+ s; without alpha/on_gpu, which needs a CUDA GPU", said)
    assert "beta: failed, cell 4 of 4 (`numbers = []`): IndexError: list index out of range" in said
    assert "the kernel died (killed, often for too little memory)" in said
    assert "no result of delta/forgotten" in said
    assert "Kept: alpha. Earlier records of the others are as they were." in said
    assert "Go on with `course record`" in said
    assert "Traceback" not in said
    assert not sandbox.leftovers()
    # The same command goes on: what is recorded is left out, though a GPU was missing.
    for name in ("02_gamma", "03_delta"):
        (sandbox.notebooks / f"{name}.ipynb").unlink()
    sandbox.notebook("01_beta", SET_UP, comparing("beta/loops"))
    status, said = course("record")
    assert status == 0
    assert "alpha: skipped, already recorded on 20" in said
    assert "beta: recorded" in said


# What was disturbed

SEEN = "Other programs kept 1.3 of 2 cores busy."
# A committed result once more: as if this run had measured it, while other programs ran.
UNDER_LOAD = f"""
from dataclasses import replace
from pathlib import Path
from course_utils.results.store import load_lesson

result = load_lesson(Path({str(store.reference_root() / "nvidia-h200-140gib-19ee" / "pinned_memory.json")!r})).result

def measured(experiment, name, **more):
    return keep(replace(result(experiment), name=name, **more))

measured("pinned_memory/arrived_batch", name="alpha/quiet")
measured("pinned_memory/arrived_batch", name="alpha/busy", busy={SEEN!r})
first, *others = result("pinned_memory/staging").points
first = replace(first, comparison=replace(first.comparison, busy={SEEN!r}))
measured("pinned_memory/staging", name="alpha/sizes", points=(first, *others))
"""


def test_what_was_measured_under_load_becomes_no_reference_unless_it_is_allowed(sandbox: Sandbox, course: Course):
    sandbox.notebook("00_alpha", SET_UP, UNDER_LOAD)
    status, said = course("record", "alpha", "--reference")
    assert status == 1
    assert f"measured under load: alpha/busy, alpha/sizes. {SEEN} Stop them and record the lesson again, or" in said
    assert "Go on with `course record alpha --reference`" in said
    assert not list(sandbox.reference.rglob("*.json"))
    status, said = course("record", "alpha", "--reference", "--allow-busy")
    assert status == 0
    assert f"; 2 of 3 under load: {SEEN}" in said
    (path,) = sandbox.reference.rglob("*.json")
    assert store.load_lesson(path).result("alpha/busy").busy == SEEN


def test_half_a_measurement_becomes_no_reference(sandbox: Sandbox, here: Environment):
    half = "import dataclasses\nkeep(dataclasses.replace(result, interrupted=True))"
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops"), half)
    with pytest.raises(RecordingError, match="alpha/loops was interrupted"):
        recording.record_lesson(lesson_notebooks.find_lesson("alpha"), sandbox.reference, here, reference=True)
    assert not sandbox.reference.exists()


# Being stopped


def test_ctrl_c_keeps_finished_lessons_and_leaves_no_process(sandbox: Sandbox):
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops"))
    sandbox.notebook("01_beta", WORKER, SAY_WHO, HANG, comparing("beta/loops"))
    process = sandbox.start("record")
    kernel = wait_for(lambda: number_in(sandbox.notebooks / "pid"), "the kernel")
    worker = number_in(sandbox.notebooks / "worker")
    os.kill(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert not alive(kernel)
    wait_for(lambda: not alive(worker), "the end of the kernel's worker", 10)
    assert "Stopped.\nKept: alpha. Earlier records of the others are as they were." in said
    assert "Go on with `course record`" in said
    assert "Traceback" not in said
    assert not sandbox.leftovers()
    assert [Path(name).name for name in sandbox.record_files()] == ["alpha.json"]


def test_a_folder_that_cannot_be_written_is_noticed_before_anything_is_measured(
    sandbox: Sandbox, course: Course, monkeypatch: pytest.MonkeyPatch
):
    sandbox.notebook("00_alpha", "open('ran', 'w').close()", SET_UP, comparing("alpha/loops"))
    (sandbox.root / "file").touch()
    monkeypatch.setenv("COURSE_RESULTS", str(sandbox.root / "file" / "results"))
    status, said = course("record")
    assert status == 1
    assert "check that you may write there, or set COURSE_RESULTS" in said
    assert not (sandbox.notebooks / "ran").exists()


def test_only_what_a_new_run_would_repeat_is_current(sandbox: Sandbox, here: Environment):
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops"))
    made = made_up_records.comparison("alpha/loops", {"short": 1e-3, "long": 2e-3})
    made_up_records.write(sandbox.results, here, [made])

    def is_current(**values: str) -> bool:
        there = dataclasses.replace(here, **values)
        return recording.is_current(lesson_notebooks.find_lesson("alpha"), sandbox.results, there) is not None

    assert is_current()
    assert not is_current(torch="0.1")
    assert not is_current(size="full")
    assert not is_current(machine="another-machine")
    (path,) = sandbox.results.glob("*/alpha.json")
    whole = path.read_text()
    path.write_text(json.dumps(json.loads(whole.replace('"interrupted": false', '"interrupted": true'))))
    assert not is_current()
    path.write_text(whole)
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops"), comparing("alpha/new"))
    assert not is_current()
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops", ', parameters={"n": 2}'))
    assert not is_current()
