"""Recording lessons: real notebooks in real kernels, and everything that can go wrong while they run."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from course_utils import lesson_notebooks as lessons
from course_utils.commands import cli, recording
from course_utils.commands.recording import RecordingError
from course_utils.results import store
from course_utils.results.paired import Verdict
from tests.sandbox import SET_UP, Sandbox, alive, comparing, kill, number_in, sandbox, wait_for
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


@pytest.fixture
def here():
    return sandbox_here()


@pytest.fixture
def course_main(sandbox, here, monkeypatch, capsys):
    """The command line in this process, which spares a test that starts many the time to ask torch."""
    monkeypatch.setattr(recording, "environment_here", lambda size=None: here)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str]:
        status = cli.main(arguments)
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def record_all(box: Sandbox) -> list[str]:
    """Record every lesson that is not current; returns the states."""
    return [
        outcome.state
        for outcome in recording.record_lessons(lessons.find_lessons(), box.results, sandbox_here(), repeat=False)
    ]


def other_record(box: Sandbox, lesson: str, machine: str) -> dict[str, bytes]:
    """A record that is there before, with content that nobody could write by accident."""
    folder = box.results / machine
    folder.mkdir(parents=True)
    (folder / f"{lesson}.json").write_text('{"schema_version": 1, "kept": "as it was"}\n')
    return box.record_files()


# What is written


def test_a_recorded_lesson_reads_back_with_its_samples_environment_and_code(sandbox, here):
    sandbox.notebook(
        "00_alpha",
        "from course_utils import compare",
        'compare({"short": lambda: sum(range(20_000)), "long": lambda: sum(range(40_000))}, name="alpha/loops", '
        "memory=False, check=False, budget_s=1)",
    )
    lesson = lessons.find_lesson("alpha")
    places = set()
    record = recording.record_lesson(lesson, sandbox.results, here, on_cell=places.add)
    again = store.load_lesson(sandbox.results / here.machine / "alpha.json")
    result = again.result("alpha/loops")
    assert result.rounds >= 8
    assert result["long"].verdict in (Verdict.SLOWER, Verdict.UNCLEAR)
    assert not store.code_has_changed(again, "alpha/loops")
    assert (again.environment.torch, again.environment.size) == (here.torch, here.size)
    assert again.recorded_at == record.recorded_at
    assert again.seconds > 0
    assert places
    assert places <= {f"00_alpha, cell {cell} of 2" for cell in (1, 2)}
    text = (sandbox.results / here.machine / "alpha.json").read_text()
    assert json.loads(text)["schema_version"] >= 1
    assert str(sandbox.root) not in text
    assert not sandbox.leftovers()


def test_the_kernel_is_told_where_and_how_large_and_finds_nothing_compiled(sandbox, tmp_path, monkeypatch):
    earlier = tmp_path / "compiled earlier"
    (earlier / "kernels").mkdir(parents=True)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(earlier))
    sandbox.notebook(
        "00_alpha",
        SET_UP,
        "import os, sys\ncache = os.environ['TORCHINDUCTOR_CACHE_DIR']\n"
        "assert not os.path.exists(cache) or not os.listdir(cache)\n"
        "open('seen', 'w').write('\\n'.join([os.environ['COURSE_SIZE'], os.environ['COURSE_PROGRESS'], "
        "os.getcwd(), sys.executable, cache]))",
        comparing("alpha/loops"),
    )
    run = sandbox.course("record", "alpha", "--size", "full", "--reference")
    assert run.returncode == 0, run.stdout + run.stderr
    size, progress, folder, python, cache = (sandbox.notebooks / "seen").read_text().splitlines()
    assert (size, progress, Path(folder), python) == ("full", "0", sandbox.notebooks, sys.executable)
    assert not Path(cache).exists()  # nothing is left behind
    # A reference goes into its own folder.
    assert not sandbox.results.exists()
    (path,) = sandbox.reference.glob("*/alpha.json")
    assert store.load_lesson(path).environment.size == "full"


def test_an_interrupted_comparison_becomes_no_reference_but_may_be_kept(sandbox, here):
    sandbox.notebook(
        "00_alpha",
        SET_UP + "\nimport dataclasses",
        comparing("alpha/loops"),
        "keep(dataclasses.replace(result, interrupted=True))",
    )
    lesson = lessons.find_lesson("alpha")
    with pytest.raises(RecordingError, match="alpha/loops was interrupted"):
        recording.record_lesson(lesson, sandbox.reference, here, reference=True)
    assert not sandbox.reference.exists()
    recording.record_lesson(lesson, sandbox.results, here)
    assert recording.interrupted_experiments(store.load_lesson(sandbox.results / here.machine / "alpha.json")) == [
        "alpha/loops"
    ]
    # It is kept, and still it is measured again next time.
    assert recording.is_current(lesson, sandbox.results, here) is None


# Under load

SEEN = "Other programs kept 1.3 of 2 cores busy."
# Committed results once more: as if this run had measured them, while other programs ran.
UNDER_LOAD = f"""
from dataclasses import replace
from pathlib import Path
from course_utils.results.store import load_lesson

results = load_lesson(Path({str(next(store.reference_root().glob("*/pinned_memory.json")))!r})).result

def measured(experiment, name, **more):
    return keep(replace(results(experiment), name=name, **more))

measured("pinned_memory/arrived_batch", name="alpha/quiet")
measured("pinned_memory/arrived_batch", name="alpha/busy", busy={SEEN!r})
first, *others = results("pinned_memory/staging").points
first = replace(first, comparison=replace(first.comparison, busy={SEEN!r}))
measured("pinned_memory/staging", name="alpha/sizes", points=(first, *others))
"""


def test_what_was_measured_under_load_becomes_no_reference_unless_it_is_allowed(sandbox, course_main):
    sandbox.notebook("00_alpha", SET_UP, UNDER_LOAD)
    status, said = course_main("record", "alpha", "--reference")
    assert status == 1
    said = " ".join(said.split())
    assert f"measured under load: alpha/busy, alpha/sizes. {SEEN} Stop them and record the lesson again, or" in said
    assert "keep it as it is with --allow-busy" in said
    assert "alpha/quiet" not in said
    assert not list(sandbox.reference.rglob("*.json"))
    status, said = course_main("record", "alpha", "--reference", "--allow-busy")
    assert status == 0
    (path,) = sandbox.reference.rglob("*.json")
    assert store.load_lesson(path).result("alpha/busy").busy == SEEN


def test_a_record_of_ones_own_keeps_what_was_measured_under_load_and_says_so_in_one_line(sandbox, course_main):
    sandbox.notebook("00_alpha", SET_UP, UNDER_LOAD)
    status, said = course_main("record", "alpha")
    assert status == 0
    line = f"alpha: 2 of 3 under load: {SEEN}"
    assert [each.strip() for each in said.splitlines() if "under load" in each] == [line]
    assert sandbox.record("alpha")["experiments"]["alpha/busy"]["data"]["busy"] == SEEN


# Experiments that are missing, unknown, or need another machine


def test_an_experiment_whose_need_is_not_met_may_be_missing(sandbox, here, monkeypatch):
    monkeypatch.setattr(recording, "satisfied", lambda environment: set())
    sandbox.notebook(
        "00_alpha",
        SET_UP,
        comparing("alpha/loops"),
        f"if False:\n    {comparing('alpha/on_gpu')}",
        needs="cuda",
    )
    (outcome,) = recording.record_lessons(lessons.find_lessons(), sandbox.results, here, repeat=True)
    assert outcome.state == "recorded"
    assert outcome.message == "without alpha/on_gpu, which needs a CUDA GPU"
    assert list(sandbox.record("alpha")["experiments"]) == ["alpha/loops"]
    # Complete for this machine: measured once is enough.
    assert recording.is_current(lessons.find_lesson("alpha"), sandbox.results, here)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (f"if False:\n    {comparing('alpha/forgotten')}", "no result of alpha/forgotten"),
        (
            "import dataclasses\nkeep(dataclasses.replace(result, **dict(name='alpha/' + 'other')))",
            r"alpha/other is measured, but 00_alpha\.ipynb does not name it",
        ),
    ],
)
def test_a_notebook_that_names_other_experiments_than_it_measures_is_a_failure(sandbox, here, cell, message):
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops"), cell)
    with pytest.raises(RecordingError, match=message):
        recording.record_lesson(lessons.find_lesson("alpha"), sandbox.results, here)
    assert not sandbox.record_files()


# Lessons that fail


def test_a_failing_lesson_keeps_its_earlier_record_and_the_others_go_on(sandbox, course_main):
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops"))
    sandbox.notebook("01_beta", SET_UP, comparing("beta/loops"))
    assert record_all(sandbox) == ["recorded", "recorded"]
    before = sandbox.record_files()
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops"), "numbers = []\nnumbers[3]")
    status, said = course_main("record", "alpha", "beta")
    assert status == 1
    after = sandbox.record_files()
    alpha, beta = sorted(before)
    assert after[alpha] == before[alpha]
    assert after[beta] != before[beta]
    assert "cell 4 of 4 (`numbers = []`): IndexError: list index out of range" in " ".join(said.split())
    assert "1 lesson failed; earlier records of alpha are as they were." in said
    assert "Traceback" not in said
    assert "----> 2 numbers[3]" in course_main("record", "alpha", "--traceback")[1]
    assert not sandbox.leftovers()


@pytest.mark.parametrize(
    ("death", "cause"),
    [
        ("import os\nos._exit(3)", r"the kernel died \(exit status 3\)"),
        ("import os\nos.kill(os.getpid(), 9)", r"the kernel died \(killed, often for too little memory\)"),
    ],
)
def test_a_kernel_that_dies_is_a_failure_that_names_the_cell(sandbox, here, death, cause):
    before = other_record(sandbox, "alpha", here.machine)
    sandbox.notebook("00_alpha", "x = 1", death, comparing("alpha/loops"))
    with pytest.raises(RecordingError, match=r"cell 3 of 4 .*: " + cause):
        recording.record_lesson(lessons.find_lesson("alpha"), sandbox.results, here)
    assert sandbox.record_files() == before
    assert not sandbox.leftovers()


def test_a_cell_that_takes_too_long_is_a_failure_and_its_children_are_gone(sandbox, here):
    before = other_record(sandbox, "alpha", here.machine)
    sandbox.notebook("00_alpha", SAY_WHO, WORKER, HANG, comparing("alpha/loops"))
    with pytest.raises(RecordingError, match=r"cell 4 of 5 .* took longer than 2 s: allow more with --timeout"):
        recording.record_lesson(lessons.find_lesson("alpha"), sandbox.results, here, timeout_s=2)
    assert sandbox.record_files() == before
    for file in ("pid", "worker"):
        pid = number_in(sandbox.notebooks / file)
        assert pid is not None
        wait_for(lambda pid=pid: not alive(pid), f"the end of the {file} process", 10)


# Being stopped


def test_kill_nine_leaves_the_earlier_record_whole_and_no_kernel(sandbox):
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops"))
    assert record_all(sandbox) == ["recorded"]
    before = sandbox.record_files()
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops"), SAY_WHO, HANG)
    process = sandbox.start("record", "alpha")
    kernel = wait_for(lambda: number_in(sandbox.notebooks / "pid"), "the kernel")
    assert alive(kernel)
    kill(process)
    process.wait(10)
    process.stdout.close()
    assert sandbox.record_files() == before
    wait_for(lambda: not alive(kernel), "the end of the kernel", 20)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_stopping_keeps_finished_lessons_and_the_same_command_goes_on(sandbox, signum):
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops"))
    sandbox.notebook("01_beta", SAY_WHO, HANG, comparing("beta/loops"))
    process = sandbox.start("record")
    kernel = wait_for(lambda: number_in(sandbox.notebooks / "pid"), "the kernel")
    kill(process, signum)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert not alive(kernel)
    assert "Stopped. Kept: alpha; earlier records of the others are as they were." in said
    assert "Go on with: course record" in said
    assert "Traceback" not in said
    assert not sandbox.leftovers()
    before = sandbox.record_files()
    assert [Path(name).name for name in before] == ["alpha.json"]
    sandbox.notebook("01_beta", SET_UP, comparing("beta/loops"))
    assert record_all(sandbox) == ["skipped", "recorded"]
    after = sandbox.record_files()
    assert {name: after[name] for name in before} == before
    assert len(after) == 2


# Disks


def test_a_full_disk_leaves_the_earlier_record_and_stops_the_run(sandbox):
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/one"), comparing("alpha/two"))
    sandbox.notebook("01_beta", SET_UP, comparing("beta/loops"))
    recording.record_lesson(lessons.find_lesson("alpha"), sandbox.results, sandbox_here())
    before = sandbox.record_files()
    (record,) = before.values()
    # Each result fits, the record of both does not.
    limit = int(0.75 * len(record))
    run = sandbox.course(
        "record", "alpha", "beta", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    )
    assert run.returncode == 1
    assert "the disk is full: free some space and run the same command again" in run.stderr
    assert "beta" not in run.stderr
    assert sandbox.record_files() == before
    assert "Traceback" not in run.stdout + run.stderr


def as_nobody_special() -> list[str]:
    """What starts a process to which the permissions of files apply: root ignores them."""
    if os.geteuid() != 0:
        return []
    starter = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
    if not shutil.which("setpriv") or subprocess.run([*starter, "true"], check=False, capture_output=True).returncode:
        pytest.skip("root writes everywhere, and setpriv cannot take that from it here")
    return starter


def test_a_read_only_folder_is_noticed_before_anything_is_measured(sandbox):
    sandbox.notebook("00_alpha", "open('ran', 'w').close()", SET_UP, comparing("alpha/loops"))
    (sandbox.results / "m").mkdir(parents=True)
    (sandbox.results / "m" / "alpha.json").write_text("{}")
    before = sandbox.record_files()
    sandbox.results.chmod(0o555)
    try:
        run = sandbox.course("record", before=as_nobody_special())
    finally:
        sandbox.results.chmod(0o755)
    assert run.returncode == 1
    assert "Permission denied; check that you may write there, or set COURSE_RESULTS" in run.stderr
    assert len(run.stderr.strip().splitlines()) == 2  # what is recorded where, and the error
    assert not (sandbox.notebooks / "ran").exists()
    assert sandbox.record_files() == before


# What is said meanwhile, and at the end


def test_the_summary_counts_verdicts_and_says_how_to_go_on(sandbox, course_main):
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops"), comparing("alpha/more"))
    sandbox.notebook("01_beta", SET_UP, comparing("beta/loops"), "1 / 0")
    status, said = course_main("record", "--timeout", "50")
    assert status == 1
    (record,) = sandbox.results.glob("*/alpha.json")
    verdicts = recording.verdicts_of(store.load_lesson(record))
    assert sum(verdicts.values()) == 2  # baselines do not count
    assert ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items()) in said
    assert "beta: cell 4 of 4 (`1 / 0`): ZeroDivisionError: division by zero" in said
    assert re.search(r"beta: failed after \d+ s \(cell 4 of 4 .+ZeroDivisionError: division by zero\)", said)
    assert "2 lessons: 1 recorded, 1 failed, in " in said
    assert "go on with: course record beta --timeout 50" in said
    assert "`course report` puts them beside" in said


# Measuring again, or not


def test_only_what_a_new_run_would_repeat_is_skipped(sandbox, here, course_main):
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops"))
    lesson = lessons.find_lesson("alpha")

    assert record_all(sandbox) == ["recorded"]
    before = sandbox.record_files()
    status, said = course_main("record")
    assert status == 0
    assert "skipped (already recorded on 20" in said
    assert sandbox.record_files() == before
    for argument in ("--force", "0"):
        before = sandbox.record_files()
        assert course_main("record", argument)[0] == 0
        assert sandbox.record_files() != before

    stored = store.load_lesson(sandbox.results / here.machine / "alpha.json")
    assert recording.is_current(lesson, sandbox.results, here) == stored

    def changed(**values) -> bool:
        return recording.is_current(lesson, sandbox.results, dataclasses.replace(here, **values)) is None

    assert changed(torch="0.1")
    assert changed(size="full" if here.size == "smoke" else "smoke")
    assert changed(machine="another-machine")
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops", ', parameters={"n": 2}'))
    assert recording.is_current(lesson, sandbox.results, here) is None
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops"), comparing("alpha/new"))
    assert recording.is_current(lesson, sandbox.results, here) is None
