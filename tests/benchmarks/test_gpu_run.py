"""The run on a GPU, rehearsed on a CPU: lessons in real kernels, parts that fail or hang, going on, and the sums."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from benchmarks import gpu_run, gpu_summary
from benchmarks.gpu_run import Part
from course_utils.records import store
from course_utils.records.kinds.ceilings import Ceiling
from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.kinds.sweep import Sweep, SweepPoint
from tests import made_up_records
from tests.sandbox import SET_UP, Sandbox, alive, comparing, number_in, sandbox, wait_for
from tests.sandbox import here as sandbox_here

__all__ = ["sandbox"]

PROGRAM_THAT_STARTS_ANOTHER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{child.pid}\\n")
import os
os.replace(sys.argv[1] + ".part", sys.argv[1])
time.sleep(300)
"""


def run(box: Sandbox, *arguments: str) -> tuple[int, str, dict]:
    """The command as a person types it, on this CPU; returns status, what was said, and the summary."""
    output = box.root / "out"
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_run", "--output", str(output), *arguments],
        capture_output=True,
        text=True,
        cwd=gpu_run.ROOT,
        env=box.environment(COURSE_SIZE="smoke"),
        timeout=240,
        check=False,
    )
    summary = output / "summary.json"
    return ran.returncode, ran.stdout + ran.stderr, json.loads(summary.read_text()) if summary.exists() else {}


def test_a_rehearsal_records_a_lesson_and_tells_of_one_that_fails(sandbox: Sandbox) -> None:
    sandbox.notebook("04_pinned_memory", SET_UP, comparing("pinned_memory/loops"))
    failing = "def inner():\n    return 1 / 0\n\ninner()"
    sandbox.notebook(
        "05_broken", SET_UP, comparing("broken/before"), failing, comparing("broken/after"), "import no_such_module"
    )
    bundle = sandbox.root / "all.tar.gz"
    arguments = ["--dry-run", "--parts", "environment", "lessons", "--bundle", str(bundle)]
    status, said, summary = run(sandbox, *arguments)
    assert status == gpu_run.FAILED, said
    assert {name: part["state"] for name, part in summary["parts"].items()} == {
        "environment": "done",
        "lesson-pinned_memory": "done",
        "lesson-broken": "failed",
    }
    broken = summary["lessons"]["broken"]
    assert "ZeroDivisionError" in broken["error"]
    assert ["ZeroDivisionError" in failure["error"] for failure in broken["failures"]] == [True, False]
    assert "in inner()" in broken["failures"][0]["traceback"]
    assert "no_such_module" in broken["failures"][1]["traceback"]
    assert "ZeroDivisionError" in said
    assert "No module named 'no_such_module'" in said
    # What the cells before and after it measured is kept, and is no record.
    kept = sandbox.root / "out" / "parts" / "broken-kept"
    assert sorted(path.name for path in kept.iterdir()) == ["broken__after.json", "broken__before.json"]
    assert json.loads((kept / "broken__after.json").read_text())["data"]["cases"][0]["elapsed_s"]
    assert broken["kept"] == 2
    assert not list(sandbox.root.glob("out/records/*/broken.json"))
    # An ordinary record, where the course would look for it.
    machine = summary["machine"]["machine"]
    record = store.load_lesson(sandbox.root / "out" / "records" / machine / "pinned_memory.json")
    assert record.result("pinned_memory/loops")["40000"].ratio > 1
    assert sum(summary["lessons"]["pinned_memory"]["verdicts"].values()) == 1
    with tarfile.open(bundle) as archive:
        assert {
            f"records/{machine}/pinned_memory.json",
            "summary.txt",
            "parts/lesson-broken.txt",
            "parts/broken-kept/broken__before.json",
        } <= set(archive.getnames())

    # The same command goes on: what failed, once it is mended, and nothing else.
    sandbox.notebook("05_broken", SET_UP, comparing("broken/mended"))
    status, said, summary = run(sandbox, *arguments)
    assert status == 0, said
    assert said.startswith("2 of 3 parts to run")
    assert [line.split()[1] for line in said.splitlines() if line.startswith("[")] == ["environment,", "lesson-broken,"]
    assert "error" not in summary["lessons"]["broken"]
    assert not kept.exists()
    assert "nothing here is a result" in said
    assert summary["goals"] == summary["copy"] == []


def options(folder: Path, *arguments: str):
    return gpu_run._options(["--output", str(folder), "--dry-run", "--lesson-limit", "5", *arguments])


def prepared(folder: Path, monkeypatch: pytest.MonkeyPatch, *found: Part, arguments: tuple[str, ...] = ()):
    """A run of parts of ours."""
    monkeypatch.setattr(gpu_run, "parts", lambda options, slugs: list(found))
    said: list[str] = []
    return gpu_run.Run(options(folder, *arguments), said.append), said


def python(code: str, *arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *map(str, arguments))


def test_a_part_that_hangs_is_ended_with_its_children_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_run, "GRACE_S", 0.5)
    pid = tmp_path / "pid"
    hangs = Part("hangs", python(PROGRAM_THAT_STARTS_ANOTHER, pid), 2.0, 1.0)
    fails = Part("fails", python("import sys; print('so it goes'); sys.exit(7)"), 30)
    run_, said = prepared(tmp_path, monkeypatch, hangs, fails, Part("works", python("pass"), 30))
    assert run_.run() == gpu_run.FAILED
    assert {name: each.state for name, each in run_.outcomes.items()} == {
        "hangs": "timed out",
        "fails": "failed",
        "works": "done",
    }
    assert run_.outcomes["fails"].status == 7
    assert any("so it goes" in line for line in said)
    child = number_in(pid)
    wait_for(lambda: not alive(child), "the end of the child")
    # What hung comes last the next time, and what is done not at all.
    again, said = prepared(
        tmp_path, monkeypatch, hangs, Part("new", python("pass"), 30), Part("works", python("1"), 30)
    )
    again.run()
    assert [line.split("] ")[1].split(",")[0] for line in said if line.startswith("[")] == ["new", "hangs"]


def test_time_that_is_up_leaves_the_rest_for_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "RESERVE_S", 0.0)
    monkeypatch.setattr(gpu_run, "GRACE_S", 0.5)
    long, later = Part("long", python("import time; time.sleep(60)"), 50, 1), Part("later", python("pass"), 50, 40)
    run_, said = prepared(tmp_path, monkeypatch, long, later, arguments=("--seconds", "5"))
    assert run_.run() == gpu_run.UNFINISHED
    assert {name: each.state for name, each in run_.outcomes.items()} == {"long": "cut short", "later": "not run"}
    assert said[-1] == "Not everything has run: the same command goes on from here."
    again, _ = prepared(tmp_path, monkeypatch, Part("long", python("pass"), 50), later)
    assert again.run() == 0


def test_what_was_never_tried_comes_before_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "RESERVE_S", 0.0)
    fails = Part("fails", python("import sys; sys.exit(1)"), 50, 1)
    run_, _ = prepared(
        tmp_path, monkeypatch, fails, Part("untried", python("pass"), 50, 40), arguments=("--seconds", "9")
    )
    run_.run()
    assert {name: each.state for name, each in run_.outcomes.items()} == {"fails": "failed", "untried": "not run"}
    again, said = prepared(
        tmp_path, monkeypatch, fails, Part("untried", python("pass"), 50, 1), arguments=("--seconds", "9")
    )
    again.run()
    assert [line.split("] ")[1].split(",")[0] for line in said if line.startswith("[")] == ["untried", "fails"]


def test_the_limit_of_a_lesson_is_that_of_its_cells(sandbox: Sandbox) -> None:
    sandbox.notebook("05_slow", SET_UP, comparing("slow/before"), "import time\ntime.sleep(200)")
    output = sandbox.root / "out"
    assert [*gpu_run.parts(gpu_run._options(["--lesson-limit", "7"]), ["slow"])[3].command][-2:] == [
        "--lesson-limit",
        "7.0",
    ]
    assert gpu_run.main(["--output", str(output), "--lesson", "slow", "--lesson-limit", "7"]) == gpu_run.FAILED
    told = json.loads((output / "parts" / "lesson-slow.json").read_text())
    assert "took longer than 7 s" in told["error"]
    assert [path.name for path in (output / "parts" / "slow-kept").iterdir()] == ["slow__before.json"]


def test_the_time_counts_from_the_start_of_the_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; time.sleep(5); from benchmarks import gpu_run; gpu_run.RESERVE_S = 0\n"
        "part = gpu_run.Part('one', (sys.executable, '-c', 'pass'), 30, 1)\n"
        "gpu_run.parts = lambda options, slugs: [part]\n"
        f"sys.exit(gpu_run.main(['--output', {str(tmp_path)!r}, '--dry-run', '--seconds', '5']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=gpu_run.ROOT, capture_output=True, timeout=120, check=False)
    assert ran.returncode == gpu_run.UNFINISHED, ran.stderr


def test_a_process_that_cannot_be_killed_does_not_hold_the_run_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        pid = 2**30  # nobody's
        waited: ClassVar[list[float | None]] = []

        def wait(self, timeout: float | None = None) -> int:
            self.waited.append(timeout)
            raise subprocess.TimeoutExpired("stuck", timeout or 0)

        def send_signal(self, signum: int) -> None: ...

        def kill(self) -> None: ...

    gpu_run.end(Stuck())
    assert Stuck.waited == [gpu_run.GRACE_S, gpu_run.GRACE_S]


def test_a_record_that_is_too_large_is_told(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    from course_utils.commands import recording

    sandbox.notebook("05_large", SET_UP, comparing("large/loops"))
    output = sandbox.root / "out"
    here = sandbox_here()
    store.write_json(output / "environment.json", {"environment": here.to_record()})
    monkeypatch.setattr(recording, "MAX_RECORD_BYTES", 1000)
    assert gpu_run.main(["--output", str(output), "--lesson", "large"]) == 0
    path = store.record_path(output / "records", here.machine, "large")
    assert "a lesson's record should stay below" in gpu_summary.as_text(gpu_summary.summary(output, dry_run=True))
    record = store.load_lesson(path)
    monkeypatch.setattr(recording, "MAX_RECORD_BYTES", path.stat().st_size)
    assert recording.remark_on(record, output / "records", here)
    monkeypatch.setattr(recording, "MAX_RECORD_BYTES", path.stat().st_size + 1)
    assert not recording.remark_on(record, output / "records", here)


def test_a_stop_ends_the_part_and_keeps_what_is_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_run", "--output", str(tmp_path), "--dry-run", "--parts", "lessons"]
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    box = Sandbox(tmp_path)
    (tmp_path / "tmp").mkdir()
    box.notebook("00_slow", "import time\nopen('begun', 'w').close()\ntime.sleep(300)", 'compare(name="slow/never")')
    (tmp_path / "environment.json").write_text(json.dumps({"environment": sandbox_here().to_record()}))
    process = subprocess.Popen(command, cwd=gpu_run.ROOT, env=box.environment(), stdout=subprocess.PIPE, text=True)
    wait_for((notebooks / "begun").exists, "the lesson's kernel")
    family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == gpu_run.INTERRUPTED
    assert "The same command goes on from here." in said
    wait_for(lambda: not any(alive(member.pid) for member in family), "the end of the kernel")
    assert (tmp_path / "summary.txt").exists()


def test_every_test_of_the_gpu_is_in_one_group() -> None:
    groups = gpu_run.test_groups()
    files = [file for _, mark, found in groups if mark == "gpu and not slow" for file in found]
    there = [path.relative_to(gpu_run.ROOT).as_posix() for path in (gpu_run.ROOT / "tests" / "gpu").glob("test_*.py")]
    assert sorted(files) == sorted(there)
    assert groups[-1][1:] == ("gpu and slow", ("tests/gpu",))
    assert {name for members in gpu_run.TEST_GROUPS.values() for name in members} <= {
        Path(file).stem.removeprefix("test_gpu_") for file in there
    }


def test_the_clocks_are_tested_before_anything_is_recorded(tmp_path: Path) -> None:
    names = [part.name for part in gpu_run.parts(options(tmp_path), ["pinned_memory", "ddp"])]
    assert names.index("tests-measuring") < names.index("lesson-pinned_memory") < names.index("lesson-ddp")
    assert names.index("lesson-ddp") < names.index("tests-slow") < names.index("timer-quality")


def test_long_parts_are_not_begun_shortly_before_the_end(tmp_path: Path) -> None:
    slugs = gpu_run.chosen_lessons(None)
    usual = options(tmp_path, "--lesson-limit", str(gpu_run.LESSON_LIMIT_S))
    least = {part.name: (part.least_s, part.limit_s) for part in gpu_run.parts(usual, slugs)}
    assert gpu_run.LEAST_S.keys() <= least.keys()  # a part that has another name now would be begun at any time
    for name, seconds in gpu_run.LEAST_S.items():
        assert least[name][0] == seconds < least[name][1]
    assert least["lesson-measuring"][0] == gpu_run.LEAST_OF_A_LESSON_S


def test_a_summary_that_fails_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_summary, "summary", lambda folder, dry_run: 1 / 0)
    parts = [Part(name, python("pass"), 30) for name in ("one", "two")]
    run_, said = prepared(tmp_path, monkeypatch, *parts)
    assert run_.run() == 0
    assert [each.state for each in run_.outcomes.values()] == ["done", "done"]
    assert "ZeroDivisionError" in said[-1]


def test_a_rehearsal_and_a_real_run_are_not_mixed(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(tmp_path, monkeypatch, Part("one", python("pass"), 30))[0].run()
    monkeypatch.setattr(gpu_run, "sees_a_gpu", lambda: True)
    assert gpu_run.main(["--output", str(tmp_path)]) == gpu_run.WRONG_USE
    assert "holds a dry run: choose another --output" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parts", "lesons"], "there is no part lesons"),
        (["--lessons", "99"], "There is no lesson"),
    ],
)
def test_a_command_that_makes_no_sense_is_told_so(tmp_path: Path, capsys, arguments: list[str], said: str) -> None:
    assert gpu_run.main(["--output", str(tmp_path), "--dry-run", *arguments]) == gpu_run.WRONG_USE
    assert said in capsys.readouterr().err


def test_without_a_gpu_a_real_run_is_refused(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "sees_a_gpu", lambda: False)
    assert gpu_run.main(["--output", str(tmp_path)]) == gpu_run.WRONG_USE
    assert "--dry-run" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def _written(folder: Path, reached: float) -> dict:
    """A run whose limits are as given; what is asked for follows from them."""
    limits = {
        "size": "full",
        "ceilings": {"entries": [], "environment": sandbox_here().to_record()},
        "link": {"generation": 5, "width": 16, "bytes_s": 63e9},
        "product": {
            "ceiling": 800e12,
            "routes": {"torch.mm, events": 800e12, "cublasGemmEx, direct, events": 800e12 / reached},
            "missing": {},
        },
    }
    store.write_json(folder / "limits.json", limits)
    return {goal["goal"]: goal for goal in gpu_summary.summary(folder, dry_run=False)["goals"]}


@pytest.mark.parametrize(("reached", "expected"), [(0.95, True), (0.6, False)])
def test_what_was_asked_for_follows_from_what_was_measured(tmp_path: Path, reached: float, expected: bool) -> None:
    goals = _written(tmp_path, reached)
    product = next(goal for what, goal in goals.items() if "library called directly" in what)
    assert product["reached"] is expected
    # What nobody has measured is neither reached nor missed.
    for what in ("pinned copies", "fused attention"):
        other = next(goal for each, goal in goals.items() if each.startswith(what))
        assert (other["found"], other["reached"]) == ("not measured", None)


def recorded_on_a_gpu(folder: Path, pinned_s: float = 1e-3, attention_s: dict[str, float] | None = None) -> None:
    """Records as a GPU would leave them.

    Args:
        folder: the run's output.
        pinned_s: seconds of a pinned copy of 64 MiB. Scattered LSTM weights are 1.5 times as dear.
        attention_s: seconds of each kernel at 16384 positions, where the matrix product's rate takes 3 ms; half of
            them at 4096. By default the lesson was not recorded.
    """
    here = dataclasses.replace(sandbox_here(), machine="a-gpu", device_kind="cuda", size="full")
    link, product = Ceiling("host to device", "B/s", 2**26, (1.1e-3,)), Ceiling("matmul", "FLOP/s", 2e12, (3e-3,))
    wobble = [1 + 0.001 * (number % 3) for number in range(20)]

    def timed(label: str, seconds: float, **more: object) -> Measurement:
        return Measurement(label, tuple(seconds * each for each in wobble), **more)

    def compared(seconds: dict[str, float], **more: object) -> Comparison:
        cases = tuple(timed(label, each, **more) for label, each in seconds.items())
        ceiling = link if "bytes" in more else product if "flops" in more else None
        return Comparison(cases, timed("again", next(iter(seconds.values()))), here, planned_rounds=20, ceiling=ceiling)

    copies = compared({"pageable": 3 * pinned_s, "pinned": pinned_s}, bytes=2**26)
    results = {
        "pinned_memory/copy": Sweep("KiB", (SweepPoint(65536, copies),), here),
        "flatten_parameters/forward": compared({"flat": 1e-3, "scattered": 1.5e-3}),
    }
    if attention_s:
        halved = {name: seconds / 2 for name, seconds in attention_s.items()}
        points = (SweepPoint(4096, compared(halved, flops=2e12)), SweepPoint(16384, compared(attention_s, flops=2e12)))
        results["flash_attention/long"] = Sweep("length", points, here)
    for name, result in results.items():
        lesson, data = name.partition("/")[0], result.to_record()
        experiments = {name: store.Experiment(name, result.kind, "c", "p", data)}
        record = store.LessonRecord(lesson, here, experiments, "2026-01-01T00:00:00+00:00", 250.0)
        store.save_lesson(record, folder / "records")


@pytest.mark.parametrize(("pinned_s", "expected"), [(1.2e-3, True), (2e-3, False)])
def test_records_of_a_gpu_decide_what_was_asked_for(tmp_path: Path, pinned_s: float, expected: bool) -> None:
    recorded_on_a_gpu(tmp_path, pinned_s)
    goals = _written(tmp_path, 0.95)
    pinned = next(goal for what, goal in goals.items() if what.startswith("pinned copies"))
    assert pinned["reached"] is expected, pinned
    lstm = next(goal for what, goal in goals.items() if what.endswith("(flatten_parameters/forward)"))
    assert lstm["found"].startswith("1.50 of the time 1.50 to 1.5")
    course = next(goal for what, goal in goals.items() if what.startswith("the whole course"))
    assert (course["found"], course["reached"]) == ("2 lessons in 500 s", True)
    found = gpu_summary.summary(tmp_path, dry_run=False)
    shares = {row["case"]: row["share"] for row in found["shares"]}
    assert shares["pinned"] == pytest.approx(1.1e-3 / (pinned_s * 1.001))
    assert "a-gpu/*.json course_utils/records/a-gpu/" in gpu_summary.as_text(found)


@pytest.mark.parametrize(
    ("attention_s", "words", "expected"),
    [
        ({"flash": 6e-3, "efficient": 10e-3, "cudnn": 4e-3}, "flash 50%, efficient 30%, cudnn 75%", True),
        ({"flash": 6e-3, "efficient": 4e-3}, "flash 50%, efficient 75%", False),
        # More than the ceiling: the work is counted wrongly.
        ({"flash": 2e-3, "efficient": 10e-3}, "flash 150%, efficient 30%", False),
        # Neither kernel that the goal speaks of: nothing is known of it.
        ({"efficient": 4e-3, "xformers": 4e-3}, "not measured", None),
    ],
)
def test_long_sequences_decide_about_fused_attention(
    tmp_path: Path, attention_s: dict[str, float], words: str, expected: bool | None
) -> None:
    recorded_on_a_gpu(tmp_path, attention_s=attention_s)
    goal = next(goal for what, goal in _written(tmp_path, 0.95).items() if what.startswith("fused attention"))
    assert goal["found"] == words
    assert goal["reached"] is expected


def test_verdicts_of_ranks_are_counted(tmp_path: Path) -> None:
    here = dataclasses.replace(sandbox_here(), machine="a-gpu", device_kind="cuda", size="full")
    result = made_up_records.ranks("ddp/ranks", "collectives", {"one bucket": 1e-3, "many": 2e-3})
    experiments = {"ddp/ranks": store.Experiment("ddp/ranks", result.kind, "c", "p", result.to_record())}
    store.save_lesson(
        store.LessonRecord("ddp", here, experiments, "2026-01-01T00:00:00+00:00", 2.0), tmp_path / "records"
    )
    assert gpu_summary.summary(tmp_path, dry_run=True)["lessons"]["ddp"]["verdicts"] == {"SLOWER": 1}


def test_failing_tests_are_named_with_their_message(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "import pytest\n"
        "def test_good(record_property):\n    record_property('false_verdicts', '0 of 400')\n"
        "def test_bad():\n    assert 1 == 2, 'one is not two'\n"
        "def test_left_out():\n    pytest.skip('no GPU')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_x.py", "--junitxml=tests.xml"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=120)
    tests = gpu_summary.summary(tmp_path, dry_run=False)["tests"]
    assert tests["counts"] == {"passed": 1, "failure": 1, "skipped": 1}
    assert [(each["test"], "one is not two" in each["message"]) for each in tests["failures"]] == [
        ("test_x::test_bad", True)
    ]
    assert tests["skipped"] == {"no GPU": 1}
    assert tests["noted"] == {"test_x::test_good: false_verdicts": "0 of 400"}


def test_a_driver_that_never_answers_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(gpu_run, "ASKING_S", 0.01)
    assert gpu_run.main([]) == gpu_run.WRONG_USE
    assert "nvidia-smi" in capsys.readouterr().err
