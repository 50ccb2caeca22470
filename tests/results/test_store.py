"""Records: what goes in comes out, nothing harms an earlier file, and every bad file gets one clear message."""

from __future__ import annotations

import dataclasses
import errno
import getpass
import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from course_utils.lesson_notebooks import find_lesson
from course_utils.measure.devices import CudaDevice, Device
from course_utils.results import store
from course_utils.results.code_hash import code_hash
from course_utils.results.comparison import Comparison
from course_utils.results.environment import Environment
from course_utils.results.measurement import Measurement
from course_utils.results.store import Experiment, LessonRecord, RecordError, load_lesson, recorded, save_lesson
from course_utils.results.sweep import Sweep, SweepPoint
from course_utils.results.unrecorded import Unrecorded
from tests import made_up_notebooks as made_up
from tests.example_results import CPU, GPU


def comparison(environment: Environment = CPU, name: str = "tiny/pair", rounds: int = 12) -> Comparison:
    slow, fast, again = (
        Measurement(label, tuple(seconds * (1 + i / 1000) for i in range(rounds)), first_call_s=seconds)
        for label, seconds in (("slow", 2e-3), ("fast", 1e-3), ("slow again", 2e-3))
    )
    clock = CudaDevice.clock if environment.device_kind == "cuda" else Device.clock
    worked_by = "gpu" if environment.device_kind == "cuda" else "cpu"
    return Comparison((slow, fast), again, environment, name=name, clock=clock, worked_by=worked_by)


def lesson_record(
    *results: Any,
    environment: Environment = CPU,
    lesson: str = "tiny",
    at: str = "2026-11-01T10:00:00+00:00",
    code: str = "code",
) -> LessonRecord:
    experiments = {
        result.name: Experiment(result.name, result.kind, code, result.to_record())
        for result in results or (comparison(environment),)
    }
    return LessonRecord(lesson, environment, experiments, recorded_at=at, seconds=1.0)


# Round trip


def test_a_record_keeps_what_it_is_about(tmp_path: Path) -> None:
    sweep = dataclasses.replace(
        _sweep(CPU, 1, 2), name="tiny/other", worked_by="cpu", notes=("\U0001f40c, \u2028 and \\",)
    )
    record = lesson_record(comparison(), sweep, at="2026-11-02T00:00:00+00:00")
    path = save_lesson(record, tmp_path)
    before = path.read_bytes()
    loaded = load_lesson(path)
    assert (loaded.lesson, loaded.recorded_at, loaded.environment) == ("tiny", record.recorded_at, CPU)
    assert list(loaded.experiments) == ["tiny/other", "tiny/pair"]  # sorted, so that files compare well
    assert loaded.result("tiny/other").to_record() == sweep.to_record()
    assert save_lesson(loaded, tmp_path).read_bytes() == before
    assert before.count(b"cpu_model") == 1  # the environment stands once
    assert loaded.result("tiny/pair")["fast"].verdict == "FASTER"


def test_a_file_has_a_line_for_each_series_of_numbers_and_touches_no_text(tmp_path: Path) -> None:
    parameters = {"text": "[\n  1,\n  2\n]", "lists": [[1, 2], ['a "[\n 1\n]', "b]"], []], "none": []}
    path = save_lesson(lesson_record(dataclasses.replace(comparison(), parameters=parameters)), tmp_path)
    assert load_lesson(path).result("tiny/pair").parameters == parameters
    lines = [line.strip(" ,") for line in path.read_text("utf-8").splitlines()]
    assert sum(line.startswith('"times": [') and line.endswith("]") for line in lines) == 3


# Nothing harms an earlier record


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        ("os.fsync", OSError(errno.ENOSPC, "No space left on device"), "the disk is full: free some space"),
        ("tempfile.mkstemp", PermissionError(errno.EACCES, "Permission denied"), "Permission denied; .*COURSE_RESULTS"),
    ],
)
def test_what_cannot_be_written_keeps_the_old_record_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: OSError, words: str
) -> None:
    path = save_lesson(lesson_record(), tmp_path)
    before = path.read_bytes()

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(call, fails)
    with pytest.raises(RecordError, match=rf"cannot write tiny.json.*{words}.*Earlier records are untouched"):
        save_lesson(lesson_record(comparison(rounds=20)), tmp_path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    # What a killed writer leaves is no record.
    path.with_name(".tiny.json.killed").write_text("{", encoding="utf-8")
    assert [record.lesson for record in store.records_of("tiny", tmp_path)] == ["tiny"]


# Bad files


# In a process of its own, since a fork of a program with threads is not one.
_WRITER = """
import dataclasses, sys
from pathlib import Path
from course_utils.results.store import load_lesson, save_lesson

path, number = Path(sys.argv[1]), 0
record = load_lesson(path)
while True:
    number += 1
    save_lesson(dataclasses.replace(record, seconds=float(number)), path.parents[1])
"""


def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path: Path) -> None:
    # As large as a record gets, so that there is a middle to be killed in.
    path = save_lesson(lesson_record(*(comparison(name=f"tiny/{n}", rounds=400) for n in ("pair", "b", "c"))), tmp_path)
    for pause_s in (0.0, 0.03, 0.07):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)])
        while load_lesson(path).seconds < 3:  # it is in the middle of its work
            assert writer.poll() is None
        time.sleep(pause_s)
        writer.kill()
        writer.wait()
        assert load_lesson(path).result("tiny/pair").rounds == 400
        save_lesson(dataclasses.replace(load_lesson(path), seconds=0.0), tmp_path)


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of reference records, and no notebooks."""
    root, notebooks = tmp_path / "records", tmp_path / "notebooks"
    root.mkdir()
    notebooks.mkdir()
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(root))
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(notebooks))
    return root


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"data"', "data", "cannot be read"),
        ('"schema_version": 3', '"schema_version": 4', "schema version 4, and this course reads 3. Update the course"),
        ('"code_hash"', '"hash"', "cannot be read"),
        ("0.001,", '"fast",', "damaged"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_message(reference: Path, old: str, new: str, words: str) -> None:
    path = save_lesson(lesson_record(), reference)
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(RecordError, match=f"^.*amd-epyc-2-cores.*{words}.*course record tiny.*$"):  # one line
        recorded("tiny/pair", machine=CPU.machine)


# recorded()


def test_the_newest_gpu_is_preferred_even_to_a_newer_cpu(reference: Path) -> None:
    save_lesson(lesson_record(environment=CPU, at="2026-11-20T10:00:00+00:00"), reference)
    save_lesson(lesson_record(environment=GPU, at="2026-11-01T10:00:00+00:00"), reference)
    older = dataclasses.replace(GPU, machine="nvidia-a100")
    save_lesson(lesson_record(environment=older, at="2026-10-01T10:00:00+00:00"), reference)
    result = recorded("tiny/pair")
    assert (result["fast"].verdict, result.environment, result.notes) == ("FASTER", GPU, ())
    assert result.card().head == "Recorded: H200, 1 Aug 2026"
    assert recorded("tiny/pair", machine=CPU.machine).environment == CPU


def test_a_machine_is_found_by_the_beginning_of_its_name_and_of_two_it_is_the_newer_record(reference: Path) -> None:
    longer = dataclasses.replace(GPU, machine=f"{GPU.machine}-140gib-3fa2")
    save_lesson(lesson_record(environment=longer), reference)
    # What was written before the machine got its longer name goes on being found.
    assert recorded("tiny/pair", machine=GPU.machine).environment == longer
    other = dataclasses.replace(GPU, machine=f"{GPU.machine}-140gib-51f9")
    save_lesson(
        lesson_record(comparison(other, "tiny/more"), environment=other, at="2026-11-02T10:00:00+00:00"), reference
    )
    assert recorded("tiny/pair", machine=GPU.machine).environment == longer
    save_lesson(lesson_record(environment=other, at="2026-11-02T10:00:00+00:00"), reference)
    assert recorded("tiny/pair", machine=GPU.machine).environment == other


def test_unknown_names_are_answered_with_what_there_is(reference: Path) -> None:
    save_lesson(lesson_record(environment=GPU), reference)
    save_lesson(lesson_record(comparison(name="other/pair"), lesson="other"), reference)
    for name, machine, message in (
        ("tiny", None, r"no record holds 'tiny'.*Lesson 'tiny' on nvidia-h200 holds: tiny/pair"),
        ("tinny/pair", None, r"lesson 'tinny' \(did you mean 'tiny'\?\).*Recorded lessons: other, tiny\."),
        ("tiny/pair", CPU.machine, "no record of amd-epyc-2-cores holds 'tiny/pair'.*on nvidia-h200 holds: tiny/pair"),
    ):
        with pytest.raises(RecordError, match=message):
            recorded(name, machine=machine)


# With a notebook beside the record.

_SIZES = "n = scaled(cpu=64, cuda=4096)\na = torch.randn(n, n)"
_PAIR = 'pair = compare({"slow": lambda: (a @ a, a @ a)[0], "fast": lambda: a @ a}, name="tiny/pair")'
_NEEDS_CUDA = 'compare({"x": a.cuda, "y": a.cuda}, name="tiny/gpu_only")'


def _write_the_notebook(reference: Path, pair: str = _PAIR) -> None:
    cells = (_SIZES, made_up.code(pair), made_up.code(_NEEDS_CUDA, "needs-cuda"))
    made_up.save(reference.parent / "notebooks" / "01_tiny.ipynb", *cells)


def test_whatever_becomes_of_a_cell_its_record_is_shown_and_changed_code_is_a_notice(reference: Path) -> None:
    _write_the_notebook(reference)
    code = code_hash(find_lesson("tiny"), "tiny/pair")
    save_lesson(lesson_record(comparison(GPU), environment=GPU, code=code), reference)
    assert recorded("tiny/pair").notes == ()
    _write_the_notebook(reference, _PAIR.replace("lambda: a @ a}", "lambda: torch.mm(a, a)}"))
    result = recorded("tiny/pair")
    assert result["fast"].verdict == "FASTER"
    assert result.notes == ("The experiment's code has changed since this was recorded.",)
    # A cell that lost its name, or is no Python any more, is no reason to lose the record.
    _write_the_notebook(reference, "compare({")
    assert recorded("tiny/pair").notes == ()


def test_an_experiment_that_nobody_ran_yet_is_a_sentence(reference: Path) -> None:
    _write_the_notebook(reference)
    save_lesson(lesson_record(comparison(name="tiny/other")), reference)
    assert recorded("tiny/pair") == Unrecorded("tiny/pair")
    assert recorded("tiny/gpu_only") == Unrecorded("tiny/gpu_only", ("a CUDA GPU",))
    with pytest.raises(RecordError):
        recorded("tiny/never_heard_of")


# keep()


def test_named_results_are_kept_while_a_lesson_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = {"dtype": torch.float16, "shape": torch.Size([2, 3]), "n": np.int64(7)}
    result = dataclasses.replace(comparison(), parameters=parameters)
    monkeypatch.delenv("COURSE_RECORD_TO", raising=False)
    assert store.keep(result) == result
    assert list(tmp_path.iterdir()) == []  # nothing is kept while nothing is recorded
    monkeypatch.setenv("COURSE_RECORD_TO", str(tmp_path / "staging"))
    assert store.keep(result) == result
    assert store.keep(dataclasses.replace(result, name=None)).name is None
    (file,) = (tmp_path / "staging").iterdir()
    assert file.name == "tiny__pair.json"
    kept = json.loads(file.read_text("utf-8"))
    assert (kept["name"], kept["kind"]) == ("tiny/pair", "comparison")
    assert Comparison.from_record(kept["data"]).to_record() == result.to_record()
    assert kept["data"]["parameters"] == {"dtype": "torch.float16", "shape": [2, 3], "n": 7}


# Roots, and the records that are committed


_PATH = re.compile(r"(?<![\w.])(?:/(?:home|root|Users|work|tmp|var|opt|usr|mnt|private|data)/|[A-Za-z]:\\\\)")


def _private(text: str) -> list[str]:
    """What in a record would tell whose machine it was."""
    # "root" and "localhost" are nobody's names.
    names = {socket.gethostname(), getpass.getuser()} - {"root", "localhost"}
    return [*_PATH.findall(text), *(name for name in names if re.search(rf"\b{re.escape(name)}\b", text))]


def _problems(path: Path) -> list[str]:
    problems = []
    record = load_lesson(path)
    for name, experiment in record.experiments.items():
        record.result(name)
        if not experiment.data.get("worked_by"):
            problems.append(f"{name} does not say what did the work")
        if record.environment.device_kind == "cpu" and experiment.data.get("worked_by") == "gpu":
            problems.append(f"{name} worked on a GPU that is not there")
    return problems + _private(path.read_text("utf-8"))


def test_committed_records_load_and_tell_nothing_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COURSE_REFERENCE_ROOT", raising=False)
    paths = sorted(store.reference_root().glob("*/*.json"))
    assert {str(path): problems for path in paths if (problems := _problems(path))} == {}


def test_a_learners_records_lie_in_the_clone_wherever_a_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COURSE_RESULTS", raising=False)
    monkeypatch.chdir(tmp_path)
    assert store.results_root() == Path(__file__).resolve().parents[2] / "results"


# The recorded machine behind a live result


def _live(monkeypatch: pytest.MonkeyPatch, **changes: object) -> Comparison:
    """What a comparison made now shows."""
    monkeypatch.delenv("COURSE_RECORD_TO", raising=False)
    return store.keep(dataclasses.replace(comparison(), **changes))


def test_a_live_result_has_the_recorded_machine_behind_it_and_a_recorded_one_has_not(
    reference: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_lesson(lesson_record(comparison(GPU), environment=GPU), reference)
    live = _live(monkeypatch)
    assert live.behind == recorded("tiny/pair")
    assert live.card().head == "You, just now"
    assert "grey: H200, 1 Aug 2026, full sizes" in " ".join(repr(live).split())
    assert live.to_record() == comparison().to_record()
    assert "grey" not in repr(recorded("tiny/pair"))


_MORE = dataclasses.replace(comparison().cases[1], label="another")


def _sweep(environment: Environment, *values: int) -> Sweep:
    points = tuple(SweepPoint(value, comparison(environment)) for value in values)
    return Sweep("n", points, environment, name="tiny/pair")


@pytest.mark.parametrize(
    ("live", "behind"),
    [
        ({"name": None}, False),
        # A laptop's sizes are smaller, and called the same.
        ({"parameters": {"n": 5}}, True),
        ({"parameters": {"n": 5}, "environment": GPU}, False),
        # Cases may be added: what both have is drawn. Of another baseline nothing is.
        ({"cases": (*comparison().cases, _MORE)}, True),
        ({"cases": (_MORE, *comparison().cases)}, False),
    ],
)
def test_the_run_behind_is_found_by_name_and_parameters(
    reference: Path, monkeypatch: pytest.MonkeyPatch, live: dict[str, Any], behind: bool
) -> None:
    then = dataclasses.replace(comparison(GPU), parameters={"n": 4096})
    save_lesson(lesson_record(then, environment=GPU), reference)
    result = _live(monkeypatch, **{"parameters": {"n": 64}, **live})
    assert (result.behind is not None) is behind


def test_of_several_runs_the_one_of_the_same_sizes_is_behind(reference: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for environment, n, at in ((CPU, 64, "2026-10-01"), (GPU, 4096, "2026-11-01")):
        then = dataclasses.replace(comparison(environment), parameters={"n": n})
        save_lesson(lesson_record(then, environment=environment, at=f"{at}T10:00:00+00:00"), reference)
    assert _live(monkeypatch, parameters={"n": 64}).behind.environment == CPU


def test_a_sweep_has_behind_it_the_points_that_both_have(reference: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COURSE_RECORD_TO", raising=False)
    save_lesson(lesson_record(_sweep(GPU, 16, 64, 256), environment=GPU), reference)
    live = store.keep(_sweep(CPU, 4, 16, 64))
    assert [row.behind is not None for row in live.card().rows] == [False, True, True]
    assert store.keep(_sweep(CPU, 4, 8)).behind is None


def test_a_damaged_record_spoils_no_live_result(reference: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_lesson(lesson_record(comparison(GPU), environment=GPU), reference)
    path.write_text(path.read_text("utf-8").replace('"cases"', '"case"'), encoding="utf-8")
    assert _live(monkeypatch).behind is None
