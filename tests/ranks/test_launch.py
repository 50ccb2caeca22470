"""run_ranks with real processes: what comes back, what goes wrong, and that nothing is ever left running."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from course_utils.ranks import launch as ranks_module
from course_utils.ranks import reports as rank_reports
from course_utils.ranks.launch import RankError, memory_by_kind, report, run_ranks, timed_rounds
from course_utils.records.kinds.rank_results import RankResults
from course_utils.records.paired import Verdict

PROGRAMS = Path(__file__).parents[1] / "rank_programs"
TRAIN, MISBEHAVE = PROGRAMS / "train.py", PROGRAMS / "misbehave.py"
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses /proc, or orphans that Linux hands over")
POSIX = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
# A launch of torchrun takes 2 to 5 seconds, much longer on a machine that is busy with other tests.
pytestmark = pytest.mark.timeout(240)


def remembered(pids: Path) -> list[int]:
    return [int(line) for line in pids.read_text().split()] if pids.exists() else []


def left(pids: Path) -> list[psutil.Process]:
    """Processes of a run that are still there."""
    found = []
    for pid in remembered(pids):
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            found.append(psutil.Process(pid))
    return found


def gone(pids: Path, least: int, within_s: float = 0) -> bool:
    """Whether all processes of a run have ended; a moment may be granted when nobody has waited for it."""
    deadline = time.monotonic() + within_s
    while left(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(remembered(pids)) >= least, "the processes did not even start"
    return not left(pids)


def misbehave(pids: Path, what: str, *more: str, **options: Any) -> RankResults:
    return run_ranks(MISBEHAVE, args=[what, pids, *more], **{"ranks": 2, "show_output": False, **options})


# What comes back


def test_values_curves_memory_and_paired_times_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COURSE_RECORD_TO", str(tmp_path))
    monkeypatch.setenv("COURSE_PROGRESS", "0")
    run = run_ranks(TRAIN, ranks=2, args=["--steps", 4], name="ddp/parity", threads_per_rank=1, parameters={"lr": 0.1})
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line for line in lines if "threads" in line) == [
        "[rank 0] 0 of 2 on cpu, 1 threads",
        "[rank 1] 1 of 2 on cpu, 1 threads",
    ]
    assert (run.ranks, run.backend, run.threads_per_rank, run.args) == (2, "gloo", 1, ("--steps", "4"))
    assert run.parameters == {
        "ranks": 2,
        "args": ["--steps", "4"],
        "backend": "gloo",
        "threads_per_rank": 1,
        "lr": 0.1,
    }
    assert run.command == "torchrun --standalone --nproc-per-node=2 train.py --steps 4"
    # Other data on each rank, one model: other losses, equal weights.
    assert run[0]["loss"] != run[1]["loss"]
    assert all(later < earlier for loss in run.values("loss").values() for earlier, later in itertools.pairwise(loss))
    assert run[0]["weight"] == run[1]["weight"]
    assert run[0]["pid"] != run[1]["pid"]
    size = (64 * 64 + 64) * 4
    assert run[1]["memory_bytes"] == {"weights": size, "gradients": size, "optimizer state": 0}

    assert run.table.columns[:5] == ("rank", "loss (last)", "weights", "optimizer state", "gradients")
    assert run.table[1]["weights"] == size
    assert run.curves("loss")["rank 1"].y == tuple(run[1]["loss"])
    compared = run.comparison("scaling", practical=0.05)
    assert (compared.baseline, compared.labels, compared.rounds) == ("1 rank", ("1 rank", "all ranks"), 8)
    slowest = [max(pair) for pair in zip(*(told["scaling"]["seconds"]["all ranks"] for told in run), strict=True)]
    assert list(compared["all ranks"].measurement.elapsed_s) == slowest
    assert compared["1 rank"].measurement.elapsed_s == tuple(run[0]["scaling"]["seconds"]["1 rank"])
    assert run[1]["scaling"]["seconds"]["1 rank"] == []
    assert compared["all ranks"].measurement.items == 64
    assert compared["all ranks"].verdict in set(Verdict)
    assert "slowest of 2 ranks" in repr(compared)

    # Recorded: what was kept gives the same again, in the same order.
    (file,) = tmp_path.glob("*.json")
    kept = json.loads(file.read_text())
    assert (kept["name"], kept["kind"]) == ("ddp/parity", "rank_results")
    again = RankResults.from_record(kept["data"])
    assert again.keys == run.keys
    assert again.table.columns == run.table.columns
    assert again.comparison("scaling").labels == compared.labels
    assert again[0]["loss"] == pytest.approx(run[0]["loss"], rel=1e-5)
    assert file.stat().st_size < 10_000
    assert str(tmp_path) not in file.read_text()
    assert str(PROGRAMS) not in file.read_text()


def test_a_rank_that_has_done_its_work_is_not_lost_while_python_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = misbehave(tmp_path / "pids", "abort_while_python_ends", ranks=1, show_output=True)
    assert run[0]["done"]
    assert capsys.readouterr().out.split("[rank 0] ")[1:] == ["ready\n", "thread\n", "exit function\n"]


@LINUX
def test_much_output_is_cut_and_what_a_program_leaves_behind_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pids = tmp_path / "pids"
    # Nobody can write there, not even root: a notebook's folder need not be writable.
    monkeypatch.chdir("/proc")
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        # What is left in the environment from another launch does not matter, nor does a port that is taken.
        for key, value in {
            "MASTER_PORT": str(port),
            "PET_MASTER_PORT": str(port),
            "RANK": "7",
            "PET_NNODES": "3",
        }.items():
            monkeypatch.setenv(key, value)
        run = misbehave(pids, "print_megabytes", "fork", show_output=True)
    assert run.values("printed") == {0: 50_000, 1: 50_000}
    assert gone(pids, least=4)
    shown = capsys.readouterr().out
    assert len(shown) < 60_000
    for rank in (0, 1):
        assert f"[rank {rank}] ready\n" in shown
        # One line of the long one, and the next one from its beginning.
        of_rank = [line for line in shown.splitlines() if line.startswith(f"[rank {rank}] ")]
        assert of_rank[1] == f"[rank {rank}] {'x' * 1000}... (and more on this line)"
        assert of_rank[2].startswith(f"[rank {rank}] line 0 of rank {rank} ")
        assert f"[rank {rank}] line 49999 of rank {rank}" in shown
        assert f"[rank {rank}] ... and so on, " in shown
    assert "2 processes that the program left behind" in shown
    folder = Path(shown.partition("All that was printed is in ")[2].partition(" until")[0])
    everything = (folder / "0" / "stdout.log").read_text()
    assert len(everything.splitlines()) == 50_002


# What goes wrong while it runs


@LINUX
@pytest.mark.serial
def test_a_rank_that_raises_is_reported_within_5_seconds(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    for _ in range(3):
        with pytest.raises(RankError) as caught:
            misbehave(pids, "raise_in_rank_1", "fork")
        error = caught.value
        if error.reported_after_s < 5:
            break  # and not only because other programs left this one no time
    assert (error.reason, error.rank, error.exit_status) == ("raised", 1, 1)
    assert error.reported_after_s < 5
    first, *rest = str(error).splitlines()
    assert first == "rank 1 of 2 raised RuntimeError: the shapes do not fit"
    assert rest[0] == "Traceback (most recent call last):"
    assert "rank_entry" not in str(error)
    # A folder that cannot be written is the program's own error.
    assert "/proc/nobody" in error.traceback
    assert error.traceback.endswith("RuntimeError: the shapes do not fit\nA note, which is not the message.")
    # A notebook shows that, and none of our frames.
    assert error._render_traceback_() == [f"RankError: {error}"]
    assert gone(pids, least=4)


CASES: dict[str, dict[str, Any]] = {
    "die_in_rank_1": {},
    "close_everything": {"more": ("fork",), "timeout_s": 12},
    "exit_with_status_3": {},
    "print_for_ever": {"ranks": 1},
}


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[RankError, Path]]]:
    """Programs that fail, all at the same time: each launch is mostly the import of torch, and ports must not clash."""
    root = tmp_path_factory.mktemp("failed")
    before, ranks_module.MOST_LOG_BYTES = ranks_module.MOST_LOG_BYTES, 20 * 2**20

    def run(what: str, more: tuple[str, ...] = (), **options: Any) -> RankError:
        with pytest.raises(RankError) as caught:
            misbehave(root / what, what, *more, **options)
        if len(remembered(root / what)) < 4 and "timeout_s" in options:
            # This machine is too busy to start the ranks in that time.
            return run(what, more, timeout_s=5 * options["timeout_s"])
        return caught.value

    with ThreadPoolExecutor(3) as pool:
        found: dict[str, Future[RankError]] = {what: pool.submit(run, what, **how) for what, how in CASES.items()}
        yield lambda what: (found[what].result(), root / what)
    ranks_module.MOST_LOG_BYTES = before


@LINUX
@pytest.mark.xdist_group("failed ranks")
class TestFailedRanks:
    def test_a_death_by_signal_is_the_cause_not_what_the_others_say_of_it(self, failed: Callable) -> None:
        error, pids = failed("die_in_rank_1")
        assert (error.reason, error.rank, error.exit_status) == ("died", 1, -signal.SIGSEGV)
        assert "die_in_rank_1" in error.traceback
        first, second, *_ = str(error).splitlines()
        assert first.startswith("rank 1 of 2 died: ended by SIGSEGV")
        assert second == "It was here, the latest call first:"
        assert gone(pids, least=2)

    def test_a_rank_that_hangs_says_where(self, failed: Callable) -> None:
        # It has closed its output and forked children away, and is found all the same.
        error, pids = failed("close_everything")
        assert (error.reason, error.rank) == ("timed out", None)
        assert set(error.stacks) == {0, 1}
        for rank, stack in error.stacks.items():
            assert stack.splitlines()[0].endswith("in wait_for_others"), stack
            assert "in close_everything" in stack
            assert f"rank {rank} of 2 was here, the latest call first:" in str(error)
        assert "rank_entry" not in str(error)
        assert str(error).startswith("misbehave.py was not done after ")
        assert gone(pids, least=4)

    def test_an_exit_status_comes_with_the_last_words(self, failed: Callable) -> None:
        error, pids = failed("exit_with_status_3")
        assert (error.reason, error.rank, error.exit_status, error.traceback) == ("died", 0, 3, "")
        assert str(error).startswith("rank 0 of 2 ended with exit status 3\nThe last that rank 0 printed:\n")
        assert str(error).endswith("cannot go on")
        assert gone(pids, least=2)

    def test_endless_output_ends_before_the_disk_is_full(self, failed: Callable) -> None:
        error, pids = failed("print_for_ever")
        assert error.reason == "printed too much"
        assert "more than 20 MiB" in str(error)
        assert gone(pids, least=1)

    def test_no_run_leaves_its_folder_behind(self, failed: Callable) -> None:
        for what in CASES:
            failed(what)
        import tempfile

        assert not list(Path(tempfile.gettempdir()).glob(f"course-ranks-{os.getpid()}-*/rank-*.failure.json"))


# What comes from outside


@contextmanager
def once_they_run(pids: Path, least: int, then: Callable[[], None]) -> Iterator[None]:
    """Do something from another thread as soon as there are so many processes."""

    def wait() -> None:
        deadline = time.monotonic() + 100
        while len(remembered(pids)) < least and time.monotonic() < deadline:
            time.sleep(0.02)
        then()

    thread = threading.Thread(target=wait)
    thread.start()
    yield
    thread.join()


def supervisors() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "course_utils.ranks.supervisor" in child.cmdline()]


@LINUX
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with (
            once_they_run(pids, 2, lambda: os.kill(os.getpid(), signal.SIGINT)),
            pytest.raises(KeyboardInterrupt),
        ):
            misbehave(pids, "close_everything", "fork", ranks=1)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert gone(pids, least=2)
    assert not supervisors()


@POSIX
def test_a_supervisor_that_is_killed_takes_nothing_out_of_sight(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    before = {process.pid for process in supervisors()}

    def kill() -> None:
        for process in supervisors():
            if process.pid not in before:
                process.kill()

    with once_they_run(pids, 1, kill), pytest.raises(RankError, match="was ended from outside"):
        misbehave(pids, "close_everything", ranks=1)
    assert gone(pids, least=1)


@LINUX
def test_a_kernel_that_is_killed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs two programs; one loses its supervisor at the same time."""
    kept, lost = tmp_path / "kept", tmp_path / "lost"
    code = (
        "import threading, torch\nfrom course_utils import run_ranks\n"
        f"for more in ([{str(kept)!r}, 'fork'], [{str(lost)!r}]):\n"
        "    options = dict(ranks=1, args=['close_everything', *more])\n"
        f"    one = threading.Thread(target=run_ranks, args=({str(MISBEHAVE)!r},), kwargs=options)\n"
        "    one.start()\n"
        "one.join()\n"
    )
    variables = {**os.environ, "PYTHONPATH": str(PROGRAMS.parents[1]), "TMPDIR": str(tmp_path)}
    # As Jupyter starts its kernels, and kills them: with all of their group.
    kernel = subprocess.Popen([sys.executable, "-c", code], env=variables, start_new_session=True)

    def kill() -> None:
        for process in psutil.Process(remembered(lost)[0]).parents():
            if "course_utils.ranks.supervisor" in process.cmdline():
                process.kill()
        os.killpg(kernel.pid, signal.SIGKILL)

    def folders() -> list[Path]:
        return list(tmp_path.glob("course-ranks-*"))

    with once_they_run(lost, 1, lambda: None), once_they_run(kept, 2, lambda: None):
        pass
    kill()
    assert kernel.wait(timeout=120) == -signal.SIGKILL
    assert gone(kept, least=2, within_s=60)
    assert gone(lost, least=1, within_s=60)
    # Only the folder of the one without a supervisor is left then, and the next run removes it.
    deadline = time.monotonic() + 60
    while len(folders()) > 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(folders()) == 1
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ranks_module._remove_old_folders()
    assert not folders()


# What is refused before anything starts


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: object) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr(ranks_module._Run, "__enter__", refuse)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 0}, "ranks is a whole number, 1 or more; got 0"),
        ({"ranks": -2}, "got -2"),
        ({"ranks": 1.5}, "got 1.5"),
        ({"ranks": True}, "got True"),
        ({"ranks": 10_000}, r"10000 ranks are too many for this machine's \d+ core"),
        ({"timeout_s": 0}, "timeout_s is a number of seconds"),
        ({"threads_per_rank": 0}, "threads_per_rank is a whole number"),
        ({"args": "--steps 20"}, "args is a list"),
        ({"args": ["--steps", None]}, "args holds None"),
        ({"backend": "mpi"}, "'nccl' or 'gloo'"),
        ({"variables": {"RANK": "3"}}, "RANK is set by run_ranks itself"),
        ({"variables": {"DEBUG": 1}}, "names to texts"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_said_before_anything_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_ranks(TRAIN, **{"ranks": 1, **options})


@pytest.mark.usefixtures("nothing_starts")
def test_more_ranks_than_memory_or_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "_available_bytes", lambda: 2 * ranks_module.RANK_BYTES)
    with pytest.raises(ValueError, match=r"3 ranks need about 1\.17 GiB of memory, and 800 MiB are free: ask for 2"):
        run_ranks(TRAIN, ranks=3)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="NCCL needs a GPU for each rank: 2 were asked for, and torch sees 1"):
        run_ranks(TRAIN, ranks=2, backend="nccl")
    assert ranks_module._checked_backend(None, 1) == "nccl"
    assert ranks_module._checked_backend(None, 2) == "gloo"


@pytest.mark.usefixtures("nothing_starts")
def test_a_program_that_is_not_there_is_named_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROGRAMS.parent)
    with pytest.raises(FileNotFoundError, match=r"Did you mean 'rank_programs/train.py'\?.*rank_programs/misbehave.py"):
        run_ranks("rank_programs/trian.py", ranks=1)
    with pytest.raises(FileNotFoundError, match="is a folder"):
        run_ranks("rank_programs", ranks=1)


@pytest.mark.usefixtures("nothing_starts")
def test_a_temporary_folder_that_cannot_be_made_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(RankError, match=r"none can be made: .*Set TMPDIR") as caught:
        run_ranks(TRAIN, ranks=1)
    assert caught.value.reason == "did not start"


@pytest.mark.parametrize(
    ("limit", "used", "cached"),
    [
        ("memory.max", "memory.current", "memory.stat inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat total_inactive_file",
        ),
    ],
    ids=["v2", "v1"],
)
def test_memory_is_that_of_the_container_and_files_give_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, used: str, cached: str
) -> None:
    monkeypatch.setattr(ranks_module, "_CGROUP", tmp_path)
    of_machine = ranks_module._available_bytes()
    (tmp_path / "memory").mkdir()
    file, kind = cached.split()
    for name, text in ((limit, "1000"), (used, "900"), (file, f"anon 300\n{kind} 600\n")):
        (tmp_path / name).write_text(text)
    assert of_machine > ranks_module._available_bytes() == 700


def test_ranks_with_gloo_see_no_gpu_and_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("MPLBACKEND", "inline")
    gloo = ranks_module._variables({"GLOO_SOCKET_IFNAME": "lo"}, "gloo", 3)
    assert (gloo["CUDA_VISIBLE_DEVICES"], gloo["OMP_NUM_THREADS"], gloo["GLOO_SOCKET_IFNAME"]) == ("", "3", "lo")
    assert "MPLBACKEND" not in gloo
    # Who sets another path does not lose this package.
    path = ranks_module._variables({"PYTHONPATH": "mine"}, "gloo", 1)["PYTHONPATH"].split(os.pathsep)
    assert path == [str(PROGRAMS.parents[1]), "mine"]
    assert ranks_module._variables(None, "nccl", 3)["CUDA_VISIBLE_DEVICES"] == "0,1"


# The program's side, without any launcher


def test_reports_elsewhere_are_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    report(loss=torch.tensor([2.0, 1.5]), peak_bytes=8, kinds={"weights": 4}, gap=float("nan"), ok=True)
    assert capsys.readouterr().out.splitlines() == [
        "loss: 2 values, the first 2, the last 1.5",
        "peak_bytes: 8",
        "kinds: weights 4",
        "gap: None",
        "ok: True",
    ]
    monkeypatch.setenv("RANK", "1")
    report(loss=1.0)
    assert capsys.readouterr().out == ""
    for value in (object(), b"bytes", torch.zeros(2, 2)):
        with pytest.raises(TypeError, match=r"report\(\) cannot hand over 'it'"):
            report(it=value)


def test_a_report_that_no_record_could_hold_is_refused_where_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COURSE_RANKS_FOLDER", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(rank_reports, "_reported", {})
    report(loss=1.0)
    with pytest.raises(ValueError, match=r"this rank's report has 100 kB.*'curve' alone takes 100 kB"):
        report(curve=[0.123456] * 10_000)
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["values"] == {"loss": 1.0}


def test_rounds_run_in_one_process_and_are_the_same_on_every_rank(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)

    def order(seed: int) -> list[str]:
        called: list[str] = []
        seconds = timed_rounds(
            {"a": lambda: called.append("a"), "b": lambda: called.append("b"), "none": None},
            rounds=24,
            warmup=1,
            seed=seed,
        )
        assert [len(seconds[label]) for label in ("a", "b", "none")] == [24, 24, 0]
        assert min(seconds["a"]) > 0
        return called

    one, same, other = order(0), order(0), order(1)
    assert one == same != other
    # The first call, the warm-up and the rounds; the baseline once more each time.
    assert (one.count("a"), one.count("b")) == (1 + 2 + 2 * 24, 1 + 1 + 24)
    assert capsys.readouterr().out.splitlines()[0] == "rounds: 24 rounds of a, b, none"
    for wrong in ({"cases": {"a": len}}, {"rounds": 0}, {"items": {"a": 1}}):
        with pytest.raises(ValueError, match=r"two cases|whole number|items="):
            timed_rounds(**{"cases": {"a": list, "b": list}, **wrong})


class Nccl:
    """Stands for torch.distributed with two GPUs: notes who waits how."""

    def __init__(self, done: list[str]) -> None:
        self.group = type("group", (), {"WORLD": Nccl.__new__(Nccl)})
        self.done = done

    def get_backend(self) -> str:
        return "nccl"

    def get_world_size(self) -> int:
        return 2

    def new_group(self, backend: str) -> str:
        self.done.append(f"new {backend}")
        return backend

    def all_reduce(self, tensor: torch.Tensor, group: str) -> None:
        self.done.append(f"{group} on {tensor.device}")


def test_ranks_wait_on_the_cpu_so_that_their_gpus_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(rank_reports, "_waiting", None)
    monkeypatch.setattr(rank_reports, "_synchronize", lambda: done.append("device"))
    for _ in range(2):  # two process groups, one after the other
        nccl = Nccl(done)
        monkeypatch.setattr(rank_reports, "_distributed", lambda: nccl)  # noqa: B023
        done.clear()
        for _ in range(2):
            timed_rounds({"a": None, "b": None}, rounds=1, warmup=0)
        # The device is idle before the others are waited for; the group is made once.
        assert done[:3] == ["device", "new gloo", "gloo on cpu"]
        assert done[3:] == ["device", "gloo on cpu"] * 9


def test_a_group_of_one_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    monkeypatch.delenv("RANK", raising=False)
    dist.init_process_group("cpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert len(timed_rounds({"a": list, "b": list}, rounds=2)["b"]) == 2
        assert rank_reports._waiting is None
        # The same with the group that ranks on GPUs wait in: any backend's name that is not known to wait on the CPU.
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)
        monkeypatch.setattr(rank_reports, "_waiting", None)
        assert len(timed_rounds({"a": list, "b": list}, rounds=2)["b"]) == 2
        assert dist.get_backend(rank_reports._waiting[1]) == "gloo"
    finally:
        dist.destroy_process_group()


def test_memory_by_kind_counts_each_storage_once() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.BatchNorm1d(8))
    model.append(torch.nn.Linear(8, 8, bias=False))
    model[2].weight = model[0].weight
    # What Adam holds; making a real one would import half of torch's compiler.
    optimizer = SimpleNamespace(state={})
    assert memory_by_kind(model, optimizer)["optimizer state"] == 0
    model(torch.randn(4, 8)).sum().backward()
    for parameter in model.parameters():
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}
    parameters = (64 + 8 + 8) * 4
    assert memory_by_kind(model, optimizer) == {
        "weights": parameters + 8 * 4 * 2 + 8,
        "gradients": parameters,
        # Two moments for each parameter, and a count of the steps for each of the three.
        "optimizer state": 2 * parameters + 3 * 4,
    }


# What it costs


@pytest.mark.serial
def test_it_adds_little_to_what_torchrun_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from course_utils.ranks.launch import report\n"
        "def hook(bucket: int): ...\n"
        "report(answer=42, annotation=type(hook.__annotations__['bucket']).__name__)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS.parents[1]))
    alone = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]

    def seconds(run: Callable[[], Any]) -> float:
        started = time.perf_counter()
        run()
        return time.perf_counter() - started

    by_hand: list[str] = []
    runs: list[RankResults] = []
    pairs = []
    for _ in range(3):
        alone_s = seconds(
            lambda: by_hand.append(subprocess.run(alone, capture_output=True, text=True, check=True).stdout)
        )
        pairs.append((alone_s, seconds(lambda: runs.append(run_ranks(program, ranks=2, show_output=False)))))
        if pairs[-1][1] - pairs[-1][0] < 3:
            break  # other programs on the machine can only make a launch longer
    print("torchrun alone, run_ranks:", [(round(a, 2), round(b, 2)) for a, b in pairs])  # noqa: T201
    # The program does no harm without us: rank 0 says what it has to say.
    assert by_hand[0] == "answer: 42\nannotation: type\n"
    # It is compiled as Python would: DistributedDataParallel's hooks must not find texts for annotations.
    assert runs[0][1] == {"answer": 42, "annotation": "type"}
    assert min(b - a for a, b in pairs) < 3


def test_the_limit_of_a_report_keeps_a_lesson_small() -> None:
    # A lesson with three runs of two ranks at the limit stays below what a record should have.
    assert 3 * 2 * rank_reports.MOST_REPORT_BYTES < 200_000
