"""Records: what goes in comes out, nothing harms an earlier file, and every bad file gets one clear message."""

from __future__ import annotations

import dataclasses
import errno
import getpass
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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

_values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_parameters = st.dictionaries(st.text(max_size=8), _values | st.lists(_values, max_size=3), max_size=4)
_seconds = st.lists(st.floats(1e-9, 1e4), min_size=5, max_size=5).map(tuple)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seconds=_seconds, text=st.text(min_size=1, max_size=20), parameters=_parameters, value=_values)
def test_whatever_a_result_is_called_and_holds_comes_back(
    tmp_path_factory: pytest.TempPathFactory, seconds: tuple[float, ...], text: str, parameters: Any, value: Any
) -> None:
    here = dataclasses.replace(CPU, device_name=text)
    cases = (Measurement(text, seconds), Measurement(f"{text}2", seconds, first_call_s=seconds[0]))
    more = {"environment": here, "parameters": parameters, "worked_by": "cpu"}
    pair = Comparison(cases=cases, control=cases[0], name="tiny/pair", notes=(text,), **more)
    sweep = Sweep("n", (SweepPoint(value, pair),), name="tiny/sweep", **more)
    root = tmp_path_factory.mktemp("records")
    path = save_lesson(lesson_record(pair, sweep, environment=here), root)
    loaded = load_lesson(path)
    assert loaded.result("tiny/pair").to_record() == pair.to_record()
    assert loaded.result("tiny/sweep").to_record() == sweep.to_record()
    before = path.read_bytes()
    assert save_lesson(loaded, root).read_bytes() == before


def test_a_record_keeps_what_it_is_about(tmp_path: Path) -> None:
    record = lesson_record(comparison(), comparison(name="tiny/other"), at="2026-11-02T00:00:00+00:00")
    loaded = load_lesson(save_lesson(record, tmp_path))
    assert (loaded.lesson, loaded.recorded_at, loaded.environment) == ("tiny", record.recorded_at, CPU)
    assert list(loaded.experiments) == ["tiny/other", "tiny/pair"]  # sorted, so that files compare well
    assert save_lesson(loaded, tmp_path).read_text("utf-8").count("cpu_model") == 1  # the environment stands once
    assert loaded.result("tiny/pair")["fast"].verdict == "FASTER"
    with pytest.raises(RecordError, match=r"no experiment 'tiny/none'.*tiny/pair.*course record tiny"):
        loaded.result("tiny/none")


def test_a_file_has_a_line_for_each_series_of_numbers_and_touches_no_text(tmp_path: Path) -> None:
    parameters = {"text": "[\n  1,\n  2\n]", "lists": [[1, 2], ['a "[\n 1\n]', "b]"], []], "none": []}
    record = lesson_record(dataclasses.replace(comparison(), parameters=parameters, notes=("one", "two")))
    path = save_lesson(record, tmp_path)
    assert load_lesson(path).result("tiny/pair").parameters == parameters
    lines = [line.strip(" ,") for line in path.read_text("utf-8").splitlines()]
    for line in ("[1,2]", '"notes": ["one","two"]', '"label": "fast"'):
        assert line in lines
    assert sum(line.startswith('"times": [') and line.endswith("]") for line in lines) == 3


# Nothing harms an earlier record

# Kills writers one after the other and looks at the file after each. The import, which takes long, is done once.
_KILLER = """
import dataclasses, json, os, random, signal, sys, time
from pathlib import Path
from course_utils.results.store import load_lesson, save_lesson

path, root = Path(sys.argv[1]), Path(sys.argv[2])
record = load_lesson(path)
chance = random.Random(0)
seen = []
for _ in range(10):
    done, report = os.pipe()
    child = os.fork()
    if child == 0:
        number = 1.0
        while True:
            number += 1
            save_lesson(dataclasses.replace(record, seconds=number), root)
            os.write(report, b".")
    os.read(done, 1)  # it has written once, and writes again
    time.sleep(chance.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    after = load_lesson(path)
    others = len([p for p in path.parent.iterdir() if p != path])
    seen.append([after.seconds, after.result("tiny/pair").rounds, others])
print(json.dumps(seen))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and fork are POSIX")
def test_killed_writers_leave_a_whole_file(tmp_path: Path) -> None:
    # 400 rounds and three cases: as large as a record gets, so that there is a middle to be killed in.
    path = save_lesson(lesson_record(*(comparison(name=f"tiny/{n}", rounds=400) for n in ("pair", "b", "c"))), tmp_path)
    command = [sys.executable, "-c", _KILLER, str(path), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(store.package_root().parent)}
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    seen = json.loads(run.stdout)
    assert {rounds for _, rounds, _ in seen} == {400}
    assert min(seconds for seconds, *_ in seen) > 1
    # Each killed writer leaves at most the one file that it was writing; `course record` sweeps them up.
    left = [others for *_, others in seen]
    assert all(after - before <= 1 for before, after in zip([0, *left], left, strict=False))
    assert all(p.name.startswith(".tiny.json.") for p in path.parent.iterdir() if p != path)
    assert store.machines(tmp_path) == [CPU.machine]
    assert [r.lesson for r in store.records_of("tiny", tmp_path)] == ["tiny"]


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


# Bad files


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
    ("content", "words"),
    [
        pytest.param(b"{", "cannot be read", id="truncated"),
        pytest.param(b'{"hello": "world"}', "not a record of this course", id="foreign"),
        pytest.param(b'{"schema_version": 3}', "damaged", id="nothing but a version"),
    ],
)
def test_a_damaged_file_is_one_clear_message(reference: Path, content: bytes, words: str) -> None:
    path = reference / "amd-epyc-2-cores" / "tiny.json"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(RecordError, match=f"amd-epyc-2-cores/tiny.json.*{words}.*course record tiny"):
        recorded("tiny/pair")
    assert path.read_bytes() == content


@pytest.mark.parametrize(("version", "advice"), [(2, "Run `course"), (4, "Update the course (git pull), or run")])
def test_a_record_of_another_schema_says_what_to_do(reference: Path, version: int, advice: str) -> None:
    path = save_lesson(lesson_record(), reference)
    text = path.read_text("utf-8")
    assert '"schema_version": 3' in text
    path.write_text(text.replace('"schema_version": 3', f'"schema_version": {version}'), encoding="utf-8")
    words = rf"schema version {version}, and this course reads 3\. {re.escape(advice)}.*record tiny"
    with pytest.raises(RecordError, match=words):
        load_lesson(path)


_DATA = ("experiments", "tiny/pair", "data")
_GONE = object()


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("experiments",), []),
        (("experiments", "tiny/pair", "kind"), "story"),
        (("experiments", "tiny/pair", "code_hash"), _GONE),
        ((*_DATA, "cases", 0, "elapsed_s", "times", 0), "fast"),
        ((*_DATA, "colour"), "red"),
        ((*_DATA, "worked_by"), "abacus"),
        (("lesson",), "another"),
    ],
    ids=lambda value: ".".join(map(str, value))[-40:] if isinstance(value, tuple) else str(type(value)),
)
def test_damage_deep_inside_is_one_clear_message(reference: Path, where: tuple[Any, ...], value: Any) -> None:
    path = save_lesson(lesson_record(), reference)
    data = json.loads(path.read_text("utf-8"))
    inner = data
    for key in where[:-1]:
        inner = inner[key]
    if value is _GONE:
        del inner[where[-1]]
    else:
        inner[where[-1]] = value
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(RecordError, match=r"^.*course record tiny.*$"):  # one line
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


def test_a_machine_is_found_by_the_beginning_of_its_name_as_long_as_no_other_has_it(reference: Path) -> None:
    longer = dataclasses.replace(GPU, machine=f"{GPU.machine}-140gib-3fa2")
    save_lesson(lesson_record(environment=longer), reference)
    # What was written before the machine got its longer name goes on being found.
    assert recorded("tiny/pair", machine=GPU.machine).environment == longer
    with pytest.raises(RecordError, match="there is no machine 'nvidia-h2'"):
        recorded("tiny/pair", machine="nvidia-h2")
    other = dataclasses.replace(GPU, machine=f"{GPU.machine}-140gib-51f9")
    save_lesson(lesson_record(environment=other), reference)
    with pytest.raises(RecordError, match=rf"'{GPU.machine}' may be {longer.machine} or {other.machine}"):
        recorded("tiny/pair", machine=GPU.machine)
    assert recorded("tiny/pair", machine=other.machine).environment == other
    # Unless one alone has recorded the lesson.
    (reference / other.machine / "tiny.json").rename(reference / other.machine / "another.json")
    assert recorded("tiny/pair", machine=GPU.machine).environment == longer
    # A whole name is never the beginning of another.
    save_lesson(lesson_record(environment=GPU), reference)
    assert recorded("tiny/pair", machine=GPU.machine).environment == GPU


@pytest.mark.parametrize(
    ("name", "machine", "message"),
    [
        ("tiny", None, "'lesson/experiment', for example 'pinned_memory/copy'"),
        ("tinny/pair", None, r"lesson 'tinny' \(did you mean 'tiny'\?\).*Recorded lessons: other, tiny\."),
        ("tiny/pear", None, r"'tiny/pear' \(did you mean 'tiny/pair'\?\).*nvidia-h200 holds: tiny/pair"),
        ("tiny/pair", "nvidia-h20", r"machine 'nvidia-h20' \(did you mean 'nvidia-h200'\?\)"),
        ("tiny/pair", CPU.machine, "no record of amd-epyc-2-cores holds 'tiny/pair'.*on nvidia-h200 holds: tiny/pair"),
    ],
)
def test_unknown_names_are_answered_with_what_there_is(
    reference: Path, name: str, machine: str | None, message: str
) -> None:
    save_lesson(lesson_record(environment=GPU), reference)
    save_lesson(lesson_record(comparison(name="other/pair"), lesson="other"), reference)
    with pytest.raises(RecordError, match=message):
        recorded(name, machine=machine)


# With a notebook beside the record.

_SIZES = "n = scaled(cpu=64, cuda=4096)\na = torch.randn(n, n)"
_PAIR = 'pair = compare({"slow": lambda: (a @ a, a @ a)[0], "fast": lambda: a @ a}, name="tiny/pair")'
_NEEDS_CUDA = 'compare({"x": a.cuda, "y": a.cuda}, name="tiny/gpu_only")'


@pytest.fixture
def tiny(reference: Path) -> Callable[..., None]:
    """Writes the tiny lesson's notebook, with one text replaced."""

    def write(old: str = "", new: str = "") -> None:
        assert old in f"{_SIZES} {_PAIR}"
        cells = [made_up.code(source.replace(old, new)) for source in (_SIZES, _PAIR)]
        made_up.save(reference.parent / "notebooks" / "01_tiny.ipynb", *cells, made_up.code(_NEEDS_CUDA, "needs-cuda"))

    write()
    return write


def _record_the_notebook(reference: Path) -> None:
    code = code_hash(find_lesson("tiny"), "tiny/pair")
    save_lesson(lesson_record(comparison(GPU), environment=GPU, code=code), reference)


def test_whatever_becomes_of_a_cell_its_record_is_shown_and_changed_code_is_a_notice(
    reference: Path, tiny: Callable[..., None]
) -> None:
    _record_the_notebook(reference)
    assert recorded("tiny/pair").notes == ()
    tiny(old="cuda=4096", new="cuda=8192")  # of another cell
    assert recorded("tiny/pair").notes == ()
    for old, new in (("lambda: a @ a}", "lambda: torch.mm(a, a)}"), (_PAIR, f'{_PAIR[:-1]}, parameters={{"n": n}})')):
        tiny(old=old, new=new)
        result = recorded("tiny/pair")
        assert result["fast"].verdict == "FASTER"
        assert result.notes == ("The experiment's code has changed since this was recorded.",)
    # A cell that lost its name, or is no Python any more, is no reason to lose the record.
    tiny(old=_PAIR, new="compare({")
    assert recorded("tiny/pair").notes == ()


def test_an_experiment_that_nobody_ran_yet_is_a_sentence(reference: Path, tiny: Callable[..., None]) -> None:
    for prepare in (lambda: None, lambda: save_lesson(lesson_record(comparison(name="tiny/other")), reference)):
        prepare()
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


def test_roots_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(tmp_path / "a"))
    monkeypatch.setenv("COURSE_RESULTS", str(tmp_path / "b"))
    assert (store.reference_root(), store.results_root()) == (tmp_path / "a", tmp_path / "b")
    monkeypatch.delenv("COURSE_REFERENCE_ROOT")
    monkeypatch.delenv("COURSE_RESULTS")
    assert store.reference_root() == store.package_root() / "records"
    assert store.results_root() == store.package_root().parent / "results"


_PATH = re.compile(r"(?<![\w.])(?:/(?:home|root|Users|work|tmp|var|opt|usr|mnt|private|data)/|[A-Za-z]:\\\\)")


def _private(text: str) -> list[str]:
    """What in a record would tell whose machine it was."""
    # "root" and "localhost" are nobody's names.
    names = {socket.gethostname(), getpass.getuser()} - {"root", "localhost"}
    return [*_PATH.findall(text), *(name for name in names if re.search(rf"\b{re.escape(name)}\b", text))]


def _problems(path: Path) -> list[str]:
    problems = []
    if path.stat().st_size >= 200_000:
        problems.append(f"{path.stat().st_size} bytes")
    record = load_lesson(path)
    for name, experiment in record.experiments.items():
        record.result(name)
        if not experiment.data.get("worked_by"):
            problems.append(f"{name} does not say what did the work")
        if record.environment.device_kind == "cpu" and experiment.data.get("worked_by") == "gpu":
            problems.append(f"{name} worked on a GPU that is not there")
    if (record.environment.machine, record.lesson) != (path.parent.name, path.stem):
        problems.append(f"is of {record.environment.machine}/{record.lesson}")
    return problems + _private(path.read_text("utf-8"))


def test_committed_records_load_are_small_and_tell_nothing_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COURSE_REFERENCE_ROOT", raising=False)
    paths = sorted(store.reference_root().glob("*/*.json"))
    assert {str(path): problems for path in paths if (problems := _problems(path))} == {}


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
    grey = "grey: H200, 1 Aug 2026, full sizes"
    assert live.behind == recorded("tiny/pair")
    assert live.card().head == "You, just now"
    assert grey in " ".join(repr(live).split())
    assert live._repr_html_().count('class="behind"') > 0 == recorded("tiny/pair")._repr_html_().count('class="behind"')
    # Neither part of a record nor of what is compared.
    assert live == comparison()
    assert live.to_record() == comparison().to_record()
    assert "grey" not in repr(recorded("tiny/pair"))


_MORE = dataclasses.replace(comparison().cases[1], label="another")


def _sweep(environment: Environment, *values: int) -> Sweep:
    points = tuple(SweepPoint(value, comparison(environment)) for value in values)
    return Sweep("n", points, environment, name="tiny/pair")


@pytest.mark.parametrize(
    ("live", "behind"),
    [
        ({}, True),
        ({"name": None}, False),
        ({"name": "tiny/other"}, False),
        ({"name": "nowhere/pair"}, False),
        # A laptop's sizes are smaller, and called the same.
        ({"parameters": {"n": 5}}, True),
        ({"parameters": {"m": 5}}, False),
        ({"parameters": {"n": 5}, "environment": GPU}, False),
        ({"parameters": {"n": 4096, "more": True}, "environment": GPU}, True),
        # Cases may be added: what both have is drawn. Of another baseline nothing is.
        ({"cases": (*comparison().cases, _MORE)}, True),
        ({"cases": (_MORE, *comparison().cases)}, False),
    ],
)
def test_the_run_behind_is_found_by_name_kind_and_parameters(
    reference: Path, monkeypatch: pytest.MonkeyPatch, live: dict[str, Any], behind: bool
) -> None:
    then = dataclasses.replace(comparison(GPU), parameters={"n": 4096})
    save_lesson(lesson_record(then, environment=GPU), reference)
    result = _live(monkeypatch, **{"parameters": {"n": 64}, **live})
    assert (result.behind is not None) is behind
    assert ("grey: " in repr(result)) is behind


def test_a_sweep_has_behind_it_the_points_that_both_have(reference: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COURSE_RECORD_TO", raising=False)
    save_lesson(lesson_record(_sweep(GPU, 16, 64, 256), environment=GPU), reference)
    live = store.keep(_sweep(CPU, 4, 16, 64))
    assert [row.behind is not None for row in live.card().rows] == [False, True, True]
    assert store.keep(_sweep(CPU, 4, 8)).behind is None
    # A comparison of that name is something else.
    assert _live(monkeypatch).behind is None
    # The machine that has more of it comes first.
    small = dataclasses.replace(CPU, machine="small")
    save_lesson(lesson_record(_sweep(small, 4, 16, 64), environment=small), reference)
    assert store.keep(_sweep(CPU, 4, 16, 64)).behind.environment == small


def test_a_live_result_reads_no_notebook_and_a_damaged_record_spoils_none(
    reference: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_lesson(lesson_record(comparison(GPU), environment=GPU), reference)
    monkeypatch.setattr(store, "find_lesson", pytest.fail)
    assert _live(monkeypatch).behind is not None
    data = json.loads(path.read_text("utf-8"))
    data["experiments"]["tiny/pair"]["data"]["cases"] = []
    for text in (json.dumps(data), "{"):
        path.write_text(text, encoding="utf-8")
        assert _live(monkeypatch).behind is None
