"""The run on a GPU, rehearsed on a CPU: lessons in real kernels, parts that fail or hang, going on, and the sums."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import gpu_run
from benchmarks.gpu_run import Part
from course_utils.commands import recording
from course_utils.records import store
from course_utils.records.code_hash import code_hash
from course_utils.records.kinds.ceilings import Ceiling
from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.lessons import find_lesson
from tests.sandbox import SET_UP, Sandbox, alive, comparing, number_in, sandbox, wait_for
from tests.sandbox import here as sandbox_here

__all__ = ["sandbox"]

PROGRAM_THAT_STARTS_ANOTHER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{child.pid}\\n")
os.replace(sys.argv[1] + ".part", sys.argv[1])
time.sleep(300)
"""


# The whole command, with the lessons alone to run.
LESSONS_ALONE = """
import sys
from benchmarks import gpu_run
every_part = gpu_run.parts
gpu_run.parts = lambda *arguments: [part for part in every_part(*arguments) if part.name == "lessons"]
sys.exit(gpu_run.main())
"""


def command(output: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-c", LESSONS_ALONE, "--output", str(output), "--dry-run", *arguments]


def test_a_rehearsal_records_a_lesson_tells_of_one_that_fails_and_goes_on(sandbox: Sandbox) -> None:
    output, bundle = sandbox.root / "out", sandbox.root / "all.tar.gz"

    def run() -> tuple[int, str]:
        ran = subprocess.run(
            command(output, "--bundle", str(bundle)),
            capture_output=True,
            text=True,
            cwd=gpu_run.ROOT,
            env=sandbox.environment(COURSE_SIZE="smoke"),
            timeout=240,
            check=False,
        )
        return ran.returncode, ran.stdout + ran.stderr

    sandbox.notebook("04_pinned_memory", SET_UP, comparing("pinned_memory/loops"))
    failing = "def inner():\n    return 1 / 0\n\ninner()"
    sandbox.notebook("07_mixed_precision", SET_UP, comparing("mixed_precision/before"), failing)
    status, printed = run()
    assert status == gpu_run.FAILED, printed
    log = (output / "parts" / "lessons.txt").read_text()
    assert "ZeroDivisionError" in log
    assert "inner()" in log.partition("Traceback")[2]
    assert not list(output.glob("records/*/mixed_precision.json"))
    # An ordinary record, where the course would look for it.
    (path,) = output.glob("records/*/pinned_memory.json")
    assert store.load_lesson(path).result("pinned_memory/loops")["40000"].ratio > 1
    assert "1 experiments; " in printed
    assert "nothing here is a result" in printed
    with tarfile.open(bundle) as archive:
        names = {name.removeprefix("./") for name in archive.getnames()}
    assert {str(path.relative_to(output)), "summary.txt", "parts/lessons.txt"} <= names

    # The same command goes on: what failed, once it is mended, and nothing else.
    sandbox.notebook("07_mixed_precision", SET_UP, comparing("mixed_precision/mended"))
    before = path.read_bytes()
    status, printed = run()
    assert status == 0, printed
    assert path.read_bytes() == before
    assert list(output.glob("records/*/mixed_precision.json"))


def prepared(folder: Path, monkeypatch: pytest.MonkeyPatch, *parts: Part, seconds: float = float("inf")) -> gpu_run.Run:
    """A run of parts of ours."""
    monkeypatch.setattr(gpu_run, "RESERVE_S", 0.0)
    monkeypatch.setattr(gpu_run, "GRACE_S", 0.5)
    monkeypatch.setattr(gpu_run, "LEAST_S", 3)
    monkeypatch.setattr(gpu_run, "parts", lambda output, dry_run, here: list(parts))
    options = gpu_run.options_of(["--output", str(folder), "--dry-run"])
    return gpu_run.Run(options, sandbox_here(), time.monotonic() + seconds)


def python(code: str, *arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *map(str, arguments))


def states(run: gpu_run.Run) -> dict[str, str]:
    return {name: outcome.state for name, outcome in run.outcomes.items()}


def test_a_part_that_hangs_is_ended_with_its_children_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    pid = tmp_path / "pid"
    hangs = Part("hangs", python(PROGRAM_THAT_STARTS_ANOTHER, pid), 5.0)
    fails = Part("fails", python("import sys; print('so it goes'); sys.exit(7)"), 30)
    works = Part("works", python("pass"), 30)
    run = prepared(tmp_path, monkeypatch, hangs, fails, works)
    assert run.run() == gpu_run.FAILED
    assert states(run) == {"hangs": "timed out", "fails": "failed", "works": "done"}
    assert "| so it goes" in capsys.readouterr().out
    child = number_in(pid)
    wait_for(lambda: not alive(child), "the end of the child")
    # What hung comes last the next time, and what is done not at all.
    again = prepared(tmp_path, monkeypatch, hangs, Part("new", python("pass"), 30), works)
    assert [part.name for part in again.waiting] == ["new", "hangs"]


def test_time_that_is_up_leaves_the_rest_for_the_next_command(tmp_path: Path, monkeypatch, capsys) -> None:
    long, later = Part("long", python("import time; time.sleep(60)"), 50), Part("later", python("pass"), 50)
    run = prepared(tmp_path, monkeypatch, long, later, seconds=5)
    assert run.run() == gpu_run.UNFINISHED
    assert states(run) == {"long": "cut short", "later": "not run"}
    assert capsys.readouterr().out.endswith("Not everything has run: the same command goes on from here.\n")
    again = prepared(tmp_path, monkeypatch, Part("long", python("pass"), 50), later)
    assert [part.name for part in again.waiting] == ["later", "long"]
    assert again.run() == 0


def test_a_stop_ends_the_part_and_keeps_what_is_there(sandbox: Sandbox) -> None:
    sandbox.notebook(
        "00_slow", "import time\nopen('begun', 'w').close()\ntime.sleep(300)", 'compare(name="slow/never")'
    )
    output = sandbox.root / "out"
    process = subprocess.Popen(
        command(output),
        cwd=gpu_run.ROOT,
        env=sandbox.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for((sandbox.notebooks / "begun").exists, "the lesson's kernel")
    family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == gpu_run.INTERRUPTED
    assert "The same command goes on from here." in printed
    wait_for(lambda: not any(alive(member.pid) for member in family), "the end of the kernel")
    assert (output / "summary.txt").exists()


def test_the_clocks_are_tested_first_and_every_test_is_a_part(tmp_path: Path) -> None:
    names = [part.name for part in gpu_run.parts(tmp_path, True, sandbox_here())]
    assert names[:2] == ["tests-clocks", "lessons"]
    assert names[-1] == "timer-quality"
    files = {path.stem.removeprefix("test_gpu_") for path in (gpu_run.ROOT / "tests" / "gpu").glob("test_*.py")}
    assert {name.removeprefix("tests-") for name in names if name.startswith("tests-")} == files


def test_lessons_begin_with_what_no_gpu_has_recorded_whole_and_with_the_shortest(sandbox: Sandbox) -> None:
    here = dataclasses.replace(sandbox_here(), device_kind="cuda")
    lessons = (("short", 10, "cpu", True), ("done", 99, "cuda", True), ("long", 20, "cpu", True))
    for number, (name, seconds, device, whole) in enumerate(
        (*lessons, ("quick", 5, "cuda", True), ("begun", 15, "cuda", False))
    ):
        sandbox.notebook(f"0{number}_{name}", comparing(f"{name}/loops"))
        there = dataclasses.replace(here, machine="another", device_kind=device)
        code = code_hash(find_lesson(name), f"{name}/loops")
        measured = {f"{name}/loops": store.Experiment(f"{name}/loops", "comparison", code, {})}
        record = store.LessonRecord(name, there, measured if whole else {}, "2026-01-01", seconds)
        store.save_lesson(record, sandbox.reference)
    sandbox.notebook("09_new", comparing("new/loops"))
    assert gpu_run.lessons_to_record(sandbox.results, here) == ["new", "short", "begun", "long", "quick", "done"]


def test_a_real_run_needs_a_gpu(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(recording, "environment_here", lambda size: sandbox_here())
    assert gpu_run.main(["--output", str(tmp_path)]) == gpu_run.WRONG_USE
    assert "torch sees no CUDA GPU here; --dry-run runs what a CPU can" in capsys.readouterr().err


def test_a_rehearsal_and_a_real_run_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(tmp_path, monkeypatch, Part("one", python("pass"), 30)).run()
    with pytest.raises(gpu_run.WrongUse, match="holds a dry run: choose another --output"):
        gpu_run.Run(gpu_run.options_of(["--output", str(tmp_path)]), sandbox_here())


def test_a_driver_that_never_answers_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(recording, "ASKING_S", 0.01)
    assert gpu_run.main([]) == gpu_run.WRONG_USE
    assert "nvidia-smi" in capsys.readouterr().err


def test_the_summary_tells_of_records_shares_and_tests(tmp_path: Path) -> None:
    here = dataclasses.replace(sandbox_here(), machine="a-gpu", device_kind="cuda", size="full")
    link = Ceiling("host to device", "B/s", 2**26, (1.1e-3,))
    cases = [
        Measurement(label, tuple(seconds * (1 + 0.001 * (i % 3)) for i in range(20)), bytes=2**26)
        for label, seconds in (("pageable", 4e-3), ("pinned", 2e-3), ("again", 4e-3))
    ]
    comparison = Comparison(tuple(cases[:2]), cases[2], here, ceiling=link)
    experiment = store.Experiment("pinned_memory/copy", "comparison", "c", comparison.to_record())
    record = store.LessonRecord("pinned_memory", here, {experiment.name: experiment}, "2026-01-01", 250.0)
    store.save_lesson(record, tmp_path / "records")
    store.write_json(tmp_path / "environment.json", here.to_record())
    store.write_json(tmp_path / "state.json", {"parts": {"lessons": {"state": "done", "seconds": 9.0}}})
    (tmp_path / "test_x.py").write_text(
        "import pytest\n"
        "def test_good(record_property):\n    record_property('false_verdicts', '0 of 400')\n"
        "def test_bad():\n    assert 1 == 2, 'one is not two'\n"
        "def test_left_out():\n    pytest.skip('no GPU')\n"
    )
    pytest_run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_x.py"]
    subprocess.run([*pytest_run, "--junitxml=test_gpu_x.xml"], cwd=tmp_path, capture_output=True, check=False)
    text = gpu_run.summary(tmp_path, dry_run=False)
    assert "pinned_memory: 250.0 s, 1 experiments; 1 faster" in text
    assert "55% of host to device" in text
    assert "1 failure, 1 passed, 1 skipped" in text
    assert "failure test_x::test_bad: AssertionError: one is not two" in text
    assert "skipped test_x::test_left_out: no GPU" in text
    assert "test_x::test_good: false_verdicts: 0 of 400" in text
    assert "a-gpu/*.json course_utils/records/a-gpu/" in text
    assert json.loads((tmp_path / "state.json").read_text())["parts"]
