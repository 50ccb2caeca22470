"""Records: what goes in comes out, nothing harms an earlier file, and every bad file gets one clear message."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course_utils.records import store
from course_utils.records.kinds import RESULT_TYPES
from course_utils.records.kinds.ceilings import Ceiling, Ceilings
from course_utils.records.kinds.cluster_check import CheckedPoint, ClusterCheck
from course_utils.records.kinds.cluster_plan import CLUSTER_PARTS, ClusterPlan, ClusterPoint, MethodError
from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.curves import Curve, Curves
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.kinds.memory_trace import MEMORY_KINDS, MemoryBlock, MemoryPhase, MemoryTrace
from course_utils.records.kinds.rank_results import RankReport, RankResults
from course_utils.records.kinds.sweep import Sweep, SweepPoint
from course_utils.records.kinds.table import Table
from course_utils.records.lessons import fingerprint
from course_utils.records.store import Experiment, LessonRecord, RecordError, load_lesson, recorded, save_lesson
from course_utils.records.unrecorded import Unrecorded

CPU = Environment(
    machine="some-cpu-2-cores",
    device_kind="cpu",
    device_name="Some CPU",
    cpu_model="Some CPU",
    cpu_cores=2,
    memory_bytes=8 * 2**30,
    os="Linux x86_64",
    python="3.11.7",
    torch="2.13.0+cpu",
    size="smoke",
    date="2026-11-01",
    cpu_flags=("avx2",),
)
GPU = dataclasses.replace(
    CPU,
    machine="nvidia-h200",
    device_kind="cuda",
    device_name="NVIDIA H200",
    gpu_count=1,
    gpu_memory_bytes=141 * 2**30,
    compute_capability="9.0",
    cuda="13.0",
    driver="580.1",
    torch="2.13.0+cu130",
    size="full",
)


def comparison(environment: Environment = CPU, name: str = "tiny/pair", rounds: int = 12) -> Comparison:
    def measurement(label: str, seconds: float) -> Measurement:
        return Measurement(label, tuple(seconds * (1 + i / 1000) for i in range(rounds)), first_call_s=seconds)

    return Comparison(
        cases=(measurement("slow", 2e-3), measurement("fast", 1e-3)),
        control=measurement("slow again", 2e-3),
        environment=environment,
        name=name,
        planned_rounds=rounds,
    )


def lesson_record(
    *results: Any,
    environment: Environment = CPU,
    lesson: str = "tiny",
    at: str = "2026-11-01T10:00:00+00:00",
    hashes: tuple[str, str] = ("code", "parameters"),
) -> LessonRecord:
    chosen = results or (comparison(environment),)
    return LessonRecord(
        lesson=lesson,
        environment=environment,
        experiments={r.name: Experiment(r.name, r.kind, *hashes, r.to_record()) for r in chosen},
        recorded_at=at,
        seconds=1.0,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Round trip

_seconds = st.floats(min_value=1e-9, max_value=1e4)
_labels = st.text(min_size=1, max_size=20)
_values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
_parameters = st.dictionaries(st.text(max_size=8), st.one_of(_values, st.lists(_values, max_size=3)), max_size=4)
_notes = st.lists(st.text(max_size=40), max_size=3).map(tuple)


def _measurements(rounds: int) -> st.SearchStrategy[Measurement]:
    series = st.lists(_seconds, min_size=rounds, max_size=rounds).map(tuple)
    return st.builds(
        Measurement,
        label=_labels,
        elapsed_s=series,
        calls=st.integers(1, 10**6),
        enqueue_s=st.one_of(st.just(()), series),
        device_s=st.one_of(st.just(()), series),
        prequeued_s=st.none() | _seconds,
        first_call_s=st.none() | _seconds,
        warmup_s=st.lists(_seconds, max_size=4).map(tuple),
        peak_allocated_bytes=st.none() | st.integers(0, 2**45),
        peak_reserved_bytes=st.none() | st.integers(0, 2**45),
        items=st.none() | st.floats(1, 1e15) | st.integers(1, 2**60),
        flops=st.none() | st.floats(1, 1e18),
        bytes=st.none() | st.integers(1, 2**60),
    )


_ceilings = st.builds(
    Ceiling,
    name=_labels,
    unit=st.sampled_from(["B/s", "FLOP/s", "s"]),
    work=st.floats(1, 1e15),
    samples_s=st.lists(_seconds, min_size=1, max_size=5).map(tuple),
)
_environments = st.builds(
    lambda text, number, flags: dataclasses.replace(
        CPU, device_name=text, cpu_model=text, memory_bytes=number, power_limit_w=number / 7, cpu_flags=tuple(flags)
    ),
    st.text(max_size=20),
    st.integers(1, 2**45),
    st.lists(st.sampled_from(["avx2", "asimd"]), unique=True),
)


@st.composite
def _comparisons(draw: st.DrawFn) -> Comparison:
    rounds = draw(st.integers(1, 9))
    labels = draw(st.lists(_labels, min_size=2, max_size=3, unique=True))
    return Comparison(
        cases=tuple(dataclasses.replace(draw(_measurements(rounds)), label=label) for label in labels),
        control=draw(_measurements(rounds)),
        environment=draw(_environments),
        name="tiny/pair",
        parameters=draw(_parameters),
        cache=draw(st.sampled_from(["warm", "cold"])),
        clock=draw(st.text(max_size=20)),
        agreement=draw(st.text(max_size=20)),
        practical=draw(st.floats(0.001, 0.5)),
        planned_rounds=draw(st.integers(0, 400)),
        spent_s=draw(_seconds),
        interrupted=draw(st.booleans()),
        ceiling=draw(st.none() | _ceilings),
        notes=draw(_notes),
    )


@st.composite
def _sweeps(draw: st.DrawFn) -> Sweep:
    points = draw(st.lists(_comparisons(), min_size=1, max_size=2))
    environment = draw(_environments)
    return Sweep(
        over=draw(_labels),
        points=tuple(
            SweepPoint(draw(_values), dataclasses.replace(point, environment=environment)) for point in points
        ),
        environment=environment,
        name="tiny/sweep",
        parameters=draw(_parameters),
        interrupted=draw(st.booleans()),
        notes=draw(_notes),
    )


@st.composite
def _tables(draw: st.DrawFn) -> Table:
    columns = draw(st.lists(_labels, min_size=1, max_size=4, unique=True))
    names = draw(st.lists(_labels, min_size=1, max_size=4, unique=True))
    cells = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | _seconds | st.text(max_size=8)
    return Table(
        columns=tuple(columns),
        rows=tuple((name, *(draw(cells) for _ in columns[1:])) for name in names),
        units={columns[-1]: "bytes"},
        environment=draw(_environments),
        name="tiny/table",
        parameters=draw(_parameters),
        notes=draw(_notes),
    )


@st.composite
def _curves(draw: st.DrawFn) -> Curves:
    def curve(label: str) -> Curve:
        y = draw(st.lists(st.none() | _seconds, min_size=1, max_size=5))
        return Curve(label, tuple(range(1, len(y) + 1)), tuple(y))

    return Curves(
        curves=tuple(map(curve, draw(st.lists(_labels, min_size=1, max_size=3, unique=True)))),
        x_label=draw(_labels),
        y_label=draw(_labels),
        environment=draw(_environments),
        name="tiny/curves",
        parameters=draw(_parameters),
        notes=draw(_notes),
    )


@st.composite
def _memory_traces(draw: st.DrawFn) -> MemoryTrace:
    times = sorted(draw(st.lists(st.integers(0, 10**9), min_size=2, max_size=6)))
    moments = len(times)
    blocks = []
    for _ in range(draw(st.integers(0, 4))):
        born = draw(st.integers(0, moments - 1))
        texts = [draw(st.sampled_from(["", "GPT.blocks.0", "model.py:3 forward"])) for _ in range(3)]
        kind = draw(st.sampled_from(MEMORY_KINDS))
        blocks.append(
            MemoryBlock(draw(st.integers(0, 2**45)), born, draw(st.integers(born + 1, moments)), kind, *texts)
        )
    pairs = draw(st.lists(_seconds, max_size=3).map(tuple))
    return MemoryTrace(
        label=draw(_labels),
        device=draw(st.sampled_from(["cpu", "cuda:0"])),
        times_us=tuple(times),
        blocks=tuple(blocks),
        environment=draw(_environments),
        phases=tuple(MemoryPhase(name, 0, moments - 1) for name in draw(st.lists(_labels, max_size=2))),
        reserved_bytes=draw(st.sampled_from([(), tuple(range(moments))])),
        device_allocs=draw(st.none() | st.integers(0, 99)),
        meter=draw(_labels),
        meter_bytes=draw(st.none() | st.integers(0, 2**45)),
        plain_s=pairs,
        traced_s=pairs,
        condensed=draw(st.booleans()),
        name="tiny/trace",
        parameters=draw(_parameters),
        notes=draw(_notes),
    )


_told = st.one_of(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | _seconds | st.text(max_size=8),
    st.lists(st.none() | _seconds, max_size=4),
    st.dictionaries(_labels, st.integers(0, 2**45), max_size=3),
)


@st.composite
def _rank_results(draw: st.DrawFn) -> RankResults:
    values = draw(st.lists(st.dictionaries(_labels, _told, max_size=3), min_size=1, max_size=3))
    return RankResults(
        program="scripts/train.py",
        reports=tuple(RankReport(rank, of_rank) for rank, of_rank in enumerate(values)),
        environment=draw(_environments),
        args=tuple(draw(st.lists(_labels, max_size=2))),
        backend=draw(st.sampled_from(["gloo", "nccl"])),
        threads_per_rank=draw(st.integers(1, 64)),
        seconds=draw(_seconds),
        name="tiny/ranks",
        parameters=draw(_parameters),
        notes=draw(_notes),
    )


_bytes = st.integers(0, 2**50)
_parts = st.fixed_dictionaries(dict.fromkeys(CLUSTER_PARTS, _bytes))
_cluster_points = st.builds(
    ClusterPoint,
    strategy=_labels,
    ranks=st.integers(1, 4096),
    at_peak=_parts,
    peak_phase=_labels,
    **{f"{part}_bytes": _bytes for part in (*CLUSTER_PARTS, "peak")},
)
_method_errors = st.builds(
    MethodError,
    strategy=_labels,
    deviation=st.floats(0, 1),
    points=st.integers(1, 99),
    ranks=st.integers(1, 99),
    parameters=st.integers(1, 10**12),
)
_cluster_plans = st.builds(
    ClusterPlan,
    points=st.lists(_cluster_points, min_size=1, max_size=3).map(tuple),
    errors=st.lists(_method_errors, max_size=2).map(tuple),
    environment=_environments,
    name=st.just("tiny/plan"),
    parameters=st.fixed_dictionaries(
        {key: st.integers(1, 99) for key in ("width", "layers", "heads", "vocabulary", "context")}
    ),
    notes=_notes,
)
_cluster_checks = st.builds(
    ClusterCheck,
    points=st.lists(
        st.builds(
            CheckedPoint,
            strategy=_labels,
            ranks=st.integers(1, 8),
            parameters=st.integers(1, 10**9),
            setting=_labels,
            measured=_parts,
            simulated=_parts,
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    environment=_environments,
    name=st.just("tiny/check"),
    parameters=_parameters,
    notes=_notes,
)


_results = st.one_of(
    _cluster_plans,
    _cluster_checks,
    _tables(),
    _rank_results(),
    _curves(),
    _memory_traces(),
    _comparisons(),
    _sweeps(),
    st.builds(
        lambda m, environment, parameters, notes: dataclasses.replace(
            m, environment=environment, name="tiny/one", parameters=parameters, notes=notes
        ),
        _measurements(5),
        _environments,
        _parameters,
        _notes,
    ),
    st.builds(
        Ceilings,
        entries=st.lists(_ceilings, min_size=1, max_size=3).map(tuple),
        environment=_environments,
        name=st.just("tiny/ceilings"),
        parameters=_parameters,
        notes=_notes,
    ),
)


def _close(one: Any, other: Any) -> bool:
    """Equal, except that records keep six significant digits."""
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=1e-5, abs=0)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_close(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_close, one, other))
    return one == other


def _plain(value: Any) -> Any:
    """A result as nested dictionaries, without rounding."""
    return dataclasses.asdict(value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(result=_results)
def test_every_result_comes_back_from_a_record(tmp_path_factory: pytest.TempPathFactory, result: Any) -> None:
    root = tmp_path_factory.mktemp("records")
    record = lesson_record(result, environment=result.environment)
    path = save_lesson(record, root)
    assert path == root / CPU.machine / "tiny.json"
    loaded = load_lesson(path)
    again = loaded.result(result.name)
    assert type(again) is type(result)
    assert _close(_plain(again), _plain(result))
    first_bytes = path.read_bytes()
    # Saving what was loaded changes nothing, down to the byte.
    assert save_lesson(loaded, root).read_bytes() == first_bytes
    assert save_lesson(record, root).read_bytes() == first_bytes


def test_round_trip_covers_every_type_that_can_be_recorded() -> None:
    assert set(RESULT_TYPES) == {
        "environment",
        "measurement",
        "ceilings",
        "comparison",
        "sweep",
        "table",
        "curves",
        "memory_trace",
        "rank_results",
        "cluster_plan",
        "cluster_check",
    }


def test_a_record_keeps_what_it_is_about(tmp_path: Path) -> None:
    record = lesson_record(comparison(), comparison(name="tiny/other"), at="2026-11-02T00:00:00+00:00")
    loaded = load_lesson(save_lesson(record, tmp_path))
    assert (loaded.lesson, loaded.recorded_at, loaded.schema_version) == ("tiny", record.recorded_at, 1)
    assert loaded.environment == CPU
    assert list(loaded.experiments) == ["tiny/other", "tiny/pair"]  # sorted, so that files compare well
    assert loaded.experiments["tiny/pair"].code_hash == "code"
    assert loaded.result("tiny/pair")["fast"].verdict == record.result("tiny/pair")["fast"].verdict == "FASTER"
    with pytest.raises(RecordError, match=r"no experiment 'tiny/none'.*tiny/pair.*course record tiny"):
        loaded.result("tiny/none")


def test_the_environment_stands_once_in_a_file(tmp_path: Path) -> None:
    text = save_lesson(lesson_record(comparison(), comparison(name="tiny/other")), tmp_path).read_text("utf-8")
    assert text.count("cpu_model") == 1
    assert text.endswith("}\n")
    assert text.count("\n") == 1


def test_a_record_is_an_ordinary_file(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        path = save_lesson(lesson_record(), tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [p.name for p in path.parent.iterdir()] == ["tiny.json"]


# ---------------------------------------------------------------------------------------------------------------------
# Nothing harms an earlier record

# Kills writers one after the other and looks at the file after each. The import, which takes long, is done once.
_KILLER = """
import json, os, random, signal, sys, time
from pathlib import Path
from course_utils.records.store import load_lesson, save_lesson
import dataclasses

path, root, kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
record = load_lesson(path)
chance = random.Random(0)
seen = []
for _ in range(kills):
    child = os.fork()
    if child == 0:
        number = 0
        while True:
            number += 1
            save_lesson(dataclasses.replace(record, seconds=float(number)), root)
    time.sleep(0.05 + chance.random() * 0.05)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    seen.append({
        "signal": os.WTERMSIG(status),
        "seconds": load_lesson(path).seconds,
        "rounds": load_lesson(path).result("tiny/pair").rounds,
        "others": len([p for p in path.parent.iterdir() if p != path]),
    })
print(json.dumps(seen))
"""


def _run(script: str, *arguments: object, cwd: Path | None = None) -> str:
    run = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(store.package_root().parent)},
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and fork are POSIX")
def test_killed_writers_leave_a_whole_file(tmp_path: Path) -> None:
    # 400 rounds and three cases: as large as a record gets, so that there is a middle to be killed in.
    path = save_lesson(lesson_record(*(comparison(name=f"tiny/{n}", rounds=400) for n in ("pair", "b", "c"))), tmp_path)
    seen = json.loads(_run(_KILLER, path, tmp_path, 20))
    assert len(seen) == 20
    assert {entry["signal"] for entry in seen} == {9}
    assert {entry["rounds"] for entry in seen} == {400}
    assert max(entry["seconds"] for entry in seen) > 1, "no writer got as far as to write"
    # Each killed writer leaves at most the one file that it was writing; `course record` sweeps them up.
    left = [entry["others"] for entry in seen]
    assert all(after - before <= 1 for before, after in zip([0, *left], left, strict=False))
    assert all(p.name.startswith(".tiny.json.") for p in path.parent.iterdir() if p != path)
    assert store.machines(tmp_path) == [CPU.machine]
    assert [r.lesson for r in store.records_of("tiny", tmp_path)] == ["tiny"]


_FULL_DISK = """
import dataclasses, resource, signal, sys
from pathlib import Path
from course_utils.records.store import RecordError, load_lesson, save_lesson

path, root = Path(sys.argv[1]), Path(sys.argv[2])
record = load_lesson(path)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    save_lesson(dataclasses.replace(record, seconds=99.0), root)
except RecordError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_a_full_disk_keeps_the_old_record_and_says_so(tmp_path: Path) -> None:
    path = save_lesson(lesson_record(comparison(rounds=400)), tmp_path)
    before = path.read_bytes()
    assert len(before) > 4096
    said = _run(_FULL_DISK, path, tmp_path)
    assert "the disk is full" in said
    assert "tiny.json" in said
    assert "Earlier records are untouched" in said
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


_READ_ONLY = """
import dataclasses, os
from pathlib import Path
from course_utils.records.store import RecordError, load_lesson, save_lesson

# The folder is the working directory: nobody need not be able to walk there.
record = load_lesson(Path("some-cpu-2-cores/tiny.json"))
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for environment in (record.environment, dataclasses.replace(record.environment, machine="another")):
    try:
        save_lesson(dataclasses.replace(record, seconds=99.0, environment=environment), Path("."))
    except RecordError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are POSIX")
def test_a_read_only_folder_keeps_the_old_record_and_says_so(tmp_path: Path) -> None:
    path = save_lesson(lesson_record(), tmp_path)
    before = path.read_bytes()
    path.parent.chmod(0o555)
    tmp_path.chmod(0o555)
    try:
        said = _run(_READ_ONLY, cwd=tmp_path).splitlines()
    finally:
        tmp_path.chmod(0o755)
        path.parent.chmod(0o755)
    assert len(said) == 2
    for line in said:
        assert "Permission denied" in line
        assert "COURSE_RESULTS" in line
        assert "Earlier records are untouched" in line
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path.parent]


def test_a_result_that_is_no_json_keeps_the_old_record(tmp_path: Path) -> None:
    path = save_lesson(lesson_record(), tmp_path)
    before = path.read_bytes()
    broken = lesson_record()
    broken.experiments["tiny/pair"].data["parameters"]["what"] = object()
    with pytest.raises(TypeError):
        save_lesson(broken, tmp_path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


# ---------------------------------------------------------------------------------------------------------------------
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
    ("content", "says"),
    [
        pytest.param(b"", "cannot be read", id="empty"),
        pytest.param(b"{", "cannot be read", id="truncated"),
        pytest.param(b"\xff\xfe\x00", "cannot be read", id="not text"),
        pytest.param(b"not json", "cannot be read", id="not JSON"),
        pytest.param(b"[]", "not a record of this course", id="a list"),
        pytest.param(b"3", "not a record of this course", id="a number"),
        pytest.param(b'{"hello": "world"}', "not a record of this course", id="foreign"),
        pytest.param(b'{"schema_version": "1"}', "not a record of this course", id="version is a text"),
        pytest.param(b'{"schema_version": true}', "not a record of this course", id="version is a truth value"),
        pytest.param(b'{"schema_version": 1}', "damaged", id="nothing but a version"),
    ],
)
def test_a_damaged_file_is_one_clear_message(reference: Path, content: bytes, says: str) -> None:
    path = reference / "some-cpu-2-cores" / "tiny.json"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(RecordError) as caught:
        recorded("tiny/pair")
    message = str(caught.value)
    assert says in message
    assert "some-cpu-2-cores/tiny.json" in message
    assert "course record tiny" in message
    assert path.read_bytes() == content


def test_every_truncation_of_a_record_is_noticed(tmp_path: Path) -> None:
    path = save_lesson(lesson_record(), tmp_path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 97):
        path.write_bytes(whole[:length])
        with pytest.raises(RecordError, match="cannot be read"):
            load_lesson(path)


def test_a_newer_schema_asks_for_an_update(reference: Path) -> None:
    path = save_lesson(dataclasses.replace(lesson_record(), schema_version=store.SCHEMA_VERSION + 1), reference)
    with pytest.raises(RecordError, match=r"schema version 2.*reads up to 1.*git pull"):
        load_lesson(path)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no record some-machine/tiny.json.*course record tiny"):
        load_lesson(tmp_path / "some-machine" / "tiny.json")


_DATA = ("experiments", "tiny/pair", "data")
_GONE = object()


@pytest.mark.parametrize(
    ("where", "value"),
    [
        *((("environment",), value) for value in (_GONE, [], "text", 3)),
        (("environment", "machine"), _GONE),
        (("environment", "machine"), 5),
        (("environment", "device_kind"), "abacus"),
        (("environment", "cpu_flags"), 5),
        *((("experiments",), value) for value in (_GONE, [], "text", None)),
        *((("experiments", "tiny/pair"), value) for value in ([], "text", None, {})),
        *(
            (("experiments", "tiny/pair", "kind"), value)
            for value in (_GONE, "story", ["comparison"], 5, "environment")
        ),
        (("experiments", "tiny/pair", "code_hash"), _GONE),
        (("experiments", "tiny/pair", "parameters_hash"), 5),
        *((_DATA, value) for value in (_GONE, [], "text", {})),
        *(((*_DATA, "cases"), value) for value in (_GONE, [], "text", {}, [3], 5)),
        ((*_DATA, "unheard_of"), 1),
        ((*_DATA, "control"), _GONE),
        ((*_DATA, "control"), "text"),
        *(
            ((*_DATA, "control", "elapsed_s"), value)
            for value in (_GONE, [], "123456789012", 5, None, [1.0] * 11, [1.0] * 11 + ["x"], [1.0] * 11 + [None])
        ),
        *(
            ((*_DATA, "cases", 1, "elapsed_s"), [1e-3] * 11 + [value])
            for value in ("x", None, -1.0, 0.0, True, [1.0], float("nan"), float("inf"))
        ),
        ((*_DATA, "cases", 0, "label"), 5),
        ((*_DATA, "cases", 0, "label"), "fast"),
        ((*_DATA, "cases", 0, "peak_allocated_bytes"), "much"),
        ((*_DATA, "cases", 0, "first_call_s"), "long"),
        ((*_DATA, "cases", 0, "warmup_s"), "long"),
        ((*_DATA, "cases", 0, "device_s"), [1.0]),
        ((*_DATA, "ceiling"), {"name": "copy"}),
        ((*_DATA, "ceiling"), {"name": "copy", "unit": "B/s", "work": 1, "samples_s": []}),
        ((*_DATA, "practical"), "little"),
        ((*_DATA, "notes"), 5),
        ((*_DATA, "parameters"), 5),
        (("recorded_at",), 5),
        (("recorded_at",), _GONE),
        (("seconds",), "long"),
        (("lesson",), "another"),
        (("lesson",), 5),
    ],
    ids=lambda value: (
        ".".join(map(str, value))[-40:] if isinstance(value, tuple) else repr(value).split(" at 0x")[0][:30]
    ),
)
def test_damage_deep_inside_is_one_clear_message(reference: Path, where: tuple[Any, ...], value: Any) -> None:
    path = save_lesson(lesson_record(), reference)
    # A second record, so that sorting has something to compare.
    save_lesson(lesson_record(environment=dataclasses.replace(CPU, machine="other")), reference)
    data = json.loads(path.read_text("utf-8"))
    inner = data
    for key in where[:-1]:
        inner = inner[key]
    if value is _GONE:
        del inner[where[-1]]
    else:
        inner[where[-1]] = value
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(RecordError) as caught:
        recorded("tiny/pair", machine=CPU.machine)
    assert "course record tiny" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


# ---------------------------------------------------------------------------------------------------------------------
# recorded()


def test_a_recorded_result_is_the_same_result_with_its_origin(reference: Path) -> None:
    save_lesson(lesson_record(environment=GPU), reference)
    result = recorded("tiny/pair")
    assert isinstance(result, Comparison)
    assert result["fast"].verdict == "FASTER"
    assert result.environment == GPU
    assert result.notes == ("A recorded run.",)


def test_a_gpu_is_preferred_even_when_it_is_older(reference: Path) -> None:
    save_lesson(lesson_record(environment=CPU, at="2026-11-20T10:00:00+00:00"), reference)
    save_lesson(lesson_record(environment=GPU, at="2026-11-01T10:00:00+00:00"), reference)
    assert recorded("tiny/pair").environment.machine == "nvidia-h200"
    assert recorded("tiny/pair", machine=CPU.machine).environment == CPU


def test_among_gpus_the_newest_is_taken(reference: Path) -> None:
    for day, machine in ((3, "nvidia-a100"), (9, "nvidia-t4"), (5, "nvidia-h200")):
        environment = dataclasses.replace(GPU, machine=machine)
        save_lesson(lesson_record(environment=environment, at=f"2026-11-0{day}T10:00:00+00:00"), reference)
    assert recorded("tiny/pair").environment.machine == "nvidia-t4"
    assert [r.environment.machine for r in store.records_of("tiny", reference)] == [
        "nvidia-t4",
        "nvidia-h200",
        "nvidia-a100",
    ]


def test_an_experiment_that_only_the_older_record_holds_is_found(reference: Path) -> None:
    save_lesson(lesson_record(comparison(CPU, "tiny/extra"), environment=CPU), reference)
    save_lesson(lesson_record(environment=GPU), reference)
    assert recorded("tiny/extra").environment == CPU


def test_a_cpu_record_says_that_no_gpu_run_exists(reference: Path) -> None:
    save_lesson(lesson_record(), reference)
    assert any("No GPU run of this experiment is recorded yet" in note for note in recorded("tiny/pair").notes)
    # Who asks for this machine by name knows.
    assert not any("No GPU run" in note for note in recorded("tiny/pair", machine=CPU.machine).notes)


@pytest.mark.parametrize("name", ["tiny", "", "/pair", "tinypair"])
def test_a_name_without_lesson_and_experiment_is_explained(reference: Path, name: str) -> None:
    with pytest.raises(RecordError, match="'lesson/experiment', for example 'pinned_memory/copy'"):
        recorded(name)


def test_unknown_names_are_answered_with_the_nearest(reference: Path) -> None:
    save_lesson(lesson_record(environment=GPU), reference)
    with pytest.raises(RecordError, match=r"lesson 'tinny' \(did you mean 'tiny'\?\).*Recorded lessons: tiny\."):
        recorded("tinny/pair")
    with pytest.raises(RecordError, match=r"'tiny/pear' \(did you mean 'tiny/pair'\?\).*nvidia-h200 holds: tiny/pair"):
        recorded("tiny/pear")
    with pytest.raises(RecordError, match=r"machine 'nvidia-h20' \(did you mean 'nvidia-h200'\?\)"):
        recorded("tiny/pair", machine="nvidia-h20")
    with pytest.raises(RecordError, match=r"no experiment|no record holds 'tiny/\*'"):
        recorded("tiny/*")


def test_a_machine_without_this_lesson_names_those_that_have_it(reference: Path) -> None:
    save_lesson(lesson_record(environment=GPU), reference)
    save_lesson(lesson_record(comparison(CPU, "other/pair"), lesson="other"), reference)
    with pytest.raises(RecordError, match=r"'tiny' is not recorded on some-cpu-2-cores; it is on nvidia-h200"):
        recorded("tiny/pair", machine=CPU.machine)


def test_no_records_at_all(reference: Path) -> None:
    with pytest.raises(RecordError, match=r"no record of a lesson 'tiny'.*Recorded lessons: none.*course record tiny"):
        recorded("tiny/pair")
    with pytest.raises(RecordError, match="Recorded machines: none"):
        recorded("tiny/pair", machine="nvidia-h200")
    reference.rmdir()
    with pytest.raises(RecordError, match="Recorded lessons: none"):
        recorded("tiny/pair")


def test_a_half_written_file_is_not_taken_for_a_record(reference: Path) -> None:
    path = save_lesson(lesson_record(environment=GPU), reference)
    path.with_name(".tiny.json.abc.tmp").write_text("{", encoding="utf-8")
    (reference / "killed-machine").mkdir()
    (reference / "killed-machine" / ".tiny.json.abc.tmp").write_text("{", encoding="utf-8")
    assert store.machines(reference) == ["nvidia-h200"]
    assert recorded("tiny/pair").environment == GPU


# With a notebook beside the record.

_IMPORTS = "import torch\nfrom course_utils import compare, environment, scaled"
_SIZES = "n = scaled(cpu=64, cuda=4096)\na = torch.randn(n, n)"
_PAIR = 'pair = compare({"slow": lambda: (a @ a, a @ a)[0], "fast": lambda: a @ a}, name="tiny/pair")'
_NEEDS_CUDA = 'if environment().device_kind == "cuda":\n    compare({"x": a.cuda, "y": a.cuda}, name="tiny/gpu_only")'


def _notebook(folder: Path, *cells: tuple[str, list[str]]) -> Path:
    path = folder / "01_tiny.ipynb"
    path.write_text(
        json.dumps(
            {
                "nbformat": 4,
                "nbformat_minor": 5,
                "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
                "cells": [
                    {
                        "cell_type": "code",
                        "id": f"cell-{number}",
                        "metadata": {"tags": tags},
                        "execution_count": None,
                        "outputs": [],
                        "source": source,
                    }
                    for number, (source, tags) in enumerate(cells)
                ],
            }
        ),
        encoding="utf-8",
    )
    return path


@pytest.fixture
def tiny(reference: Path) -> Callable[..., None]:
    """Writes the tiny lesson's notebook; arguments replace texts in it."""

    def write(**changes: str) -> None:
        cells = [
            (_IMPORTS, []),
            (_SIZES, []),
            (_PAIR, ["experiment"]),
            (_NEEDS_CUDA, ["experiment", "needs-cuda"]),
        ]
        for old, new in zip(changes.get("old", "").split("|"), changes.get("new", "").split("|"), strict=True):
            if old:
                assert any(old in source for source, _ in cells)
                cells = [(source.replace(old, new), tags) for source, tags in cells]
        _notebook(reference.parent / "notebooks", *cells)

    write()
    return write


def _record_the_notebook(reference: Path, environment: Environment = GPU) -> None:
    found = fingerprint(reference.parent / "notebooks" / "01_tiny.ipynb", "tiny/pair")
    hashes = (found.code_hash, found.parameters_hash)
    save_lesson(lesson_record(environment=environment, hashes=hashes), reference)


def test_an_unchanged_notebook_adds_no_notice(reference: Path, tiny: Callable[..., None]) -> None:
    _record_the_notebook(reference)
    assert len(recorded("tiny/pair").notes) == 1
    tiny(old="a = torch.randn(n, n)", new="# A comment changes nothing.\na = torch.randn( n,  n )")
    assert len(recorded("tiny/pair").notes) == 1


def test_changed_code_shows_the_record_with_a_notice(reference: Path, tiny: Callable[..., None]) -> None:
    _record_the_notebook(reference)
    tiny(old="lambda: a @ a}", new="lambda: torch.mm(a, a)}")
    result = recorded("tiny/pair")
    assert result["fast"].verdict == "FASTER"
    assert "The experiment's code has changed since this was recorded." in result.notes


def test_changed_parameters_do_not_stop_the_run_that_records_them(
    reference: Path, tiny: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _record_the_notebook(reference)
    tiny(old="cuda=4096", new="cuda=8192")
    monkeypatch.setenv("COURSE_RECORD_TO", str(tmp_path))
    assert recorded("tiny/pair") == Unrecorded("tiny/pair")


def test_changed_parameters_refuse_the_record(reference: Path, tiny: Callable[..., None]) -> None:
    _record_the_notebook(reference)
    tiny(old="cuda=4096", new="cuda=8192")
    with pytest.raises(
        RecordError,
        match=r"'tiny/pair' was recorded on nvidia-h200 with other parameters.*course record tiny --reference",
    ):
        recorded("tiny/pair")
    tiny()
    assert recorded("tiny/pair").environment == GPU


def test_an_experiment_that_the_notebook_no_longer_has_is_shown_as_it_is(
    reference: Path, tiny: Callable[..., None]
) -> None:
    _record_the_notebook(reference)
    tiny(old="tiny/pair", new="tiny/renamed")
    assert recorded("tiny/pair").notes == ("A recorded run.",)


def test_an_experiment_that_nobody_ran_yet_is_a_sentence(reference: Path, tiny: Callable[..., None]) -> None:
    for prepare in (lambda: None, lambda: save_lesson(lesson_record(comparison(name="tiny/other")), reference)):
        prepare()
        waiting = recorded("tiny/pair")
        assert waiting == Unrecorded("tiny/pair")
        assert repr(waiting) == ("No run of tiny/pair is recorded yet. Run `course record tiny --reference`.")
        assert waiting.plot() is waiting
        gpu_only = recorded("tiny/gpu_only")
        assert gpu_only == Unrecorded("tiny/gpu_only", ("a CUDA GPU",))
        assert "needs a CUDA GPU" in gpu_only._repr_html_()
    with pytest.raises(RecordError):
        recorded("tiny/never_heard_of")


# ---------------------------------------------------------------------------------------------------------------------
# keep()


def test_nothing_is_kept_while_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COURSE_RECORD_TO", raising=False)
    monkeypatch.chdir(tmp_path)
    result = comparison()
    assert store.keep(result) is result
    monkeypatch.setenv("COURSE_RECORD_TO", "")
    assert store.keep(result) is result
    assert list(tmp_path.iterdir()) == []


def test_named_results_are_kept_while_a_lesson_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_RECORD_TO", str(tmp_path / "staging"))
    result = comparison()
    assert store.keep(result) is result
    assert store.keep(dataclasses.replace(result, name=None)).name is None
    (file,) = (tmp_path / "staging").iterdir()
    assert file.name == "tiny__pair.json"
    kept = json.loads(file.read_text("utf-8"))
    assert (kept["name"], kept["kind"]) == ("tiny/pair", "comparison")
    assert Comparison.from_record(kept["data"]).to_record() == result.to_record()


def test_parameters_of_torch_and_numpy_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`parameters={"dtype": torch.float16}` is what a lesson's author writes."""
    import numpy as np
    import torch

    monkeypatch.setenv("COURSE_RECORD_TO", str(tmp_path))
    parameters = {"dtype": torch.float16, "shape": torch.Size([2, 3]), "n": np.int64(7), "device": torch.device("cpu")}
    store.keep(dataclasses.replace(comparison(), parameters=parameters))
    kept = json.loads((tmp_path / "tiny__pair.json").read_text("utf-8"))["data"]["parameters"]
    assert kept == {"dtype": "torch.float16", "shape": [2, 3], "n": 7, "device": "cpu"}


# ---------------------------------------------------------------------------------------------------------------------
# Roots, and the records that are committed


def test_roots_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(tmp_path / "a"))
    monkeypatch.setenv("COURSE_RESULTS", str(tmp_path / "b"))
    assert (store.reference_root(), store.results_root()) == (tmp_path / "a", tmp_path / "b")
    monkeypatch.delenv("COURSE_REFERENCE_ROOT")
    monkeypatch.delenv("COURSE_RESULTS")
    assert store.reference_root() == store.package_root() / "records"
    assert store.results_root() == store.package_root().parent / "results"
    monkeypatch.setattr(store, "package_root", lambda: tmp_path / "lib" / "site-packages" / "course_utils")
    monkeypatch.chdir(tmp_path)
    assert store.results_root() == tmp_path / "results"


_PATH = re.compile(r"(?<![\w.])(?:/(?:home|root|Users|work|tmp|var|opt|usr|mnt|private|data)/|[A-Za-z]:\\\\)")


def _private(text: str) -> list[str]:
    """What in a record would tell whose machine it was."""
    found = _PATH.findall(text)
    for name in (socket.gethostname(), getpass.getuser()):
        # "root" and "localhost" are nobody's names.
        if name not in ("root", "localhost") and re.search(rf"\b{re.escape(name)}\b", text):
            found.append(name)
    return found


def _problems(path: Path) -> list[str]:
    problems = []
    if path.stat().st_size >= 200_000:
        problems.append(f"{path.stat().st_size} bytes")
    record = load_lesson(path)
    for name in record.experiments:
        result = record.result(name)
        assert repr(result)
    if (record.environment.machine, record.lesson) != (path.parent.name, path.stem):
        problems.append(f"is of {record.environment.machine}/{record.lesson}")
    return problems + _private(path.read_text("utf-8"))


def test_committed_records_load_are_small_and_tell_nothing_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COURSE_REFERENCE_ROOT", raising=False)
    paths = sorted(store.reference_root().glob("*/*.json"))
    assert {str(path): problems for path in paths if (problems := _problems(path))} == {}


def test_problems_of_a_record_would_be_noticed(tmp_path: Path) -> None:
    assert _problems(save_lesson(lesson_record(), tmp_path)) == []
    large = lesson_record(*(comparison(name=f"tiny/{n}", rounds=400) for n in range(20)))
    assert "bytes" in _problems(save_lesson(large, tmp_path))[0]
    told = dataclasses.replace(comparison(), notes=("see /home/someone/data",))
    assert _problems(save_lesson(lesson_record(told), tmp_path)) == ["/home/"]
    moved = tmp_path / "elsewhere" / "tiny.json"
    moved.parent.mkdir()
    moved.write_bytes(save_lesson(lesson_record(), tmp_path).read_bytes())
    assert _problems(moved) == ["is of some-cpu-2-cores/tiny"]
