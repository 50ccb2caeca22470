"""run_ranks with real processes: what comes back, what goes wrong, and that nothing is ever left running."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from course_utils.ranks.launch import RankError, run_ranks
from course_utils.results.rank_results import RankResults
from tests.sandbox import alive

PROGRAMS = Path(__file__).parents[1] / "rank_programs"
TRAIN, MISBEHAVE = PROGRAMS / "train.py", PROGRAMS / "misbehave.py"
POSIX = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
# A launch of torchrun takes 2 to 5 seconds, much longer on a machine that is busy with other tests.
pytestmark = pytest.mark.timeout(240)


def started(pids: Path) -> list[int]:
    """Processes of a program that have told their numbers."""
    return [int(line) for line in pids.read_text().split()] if pids.exists() else []


def all_gone(pids: Path, least: int, within_s: float = 0) -> bool:
    """Whether all processes of a run have ended; a moment may be granted when nobody has waited for it."""
    assert len(started(pids)) >= least, "the processes did not even start"
    deadline = time.monotonic() + within_s
    while any(map(alive, started(pids))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, started(pids)))


def misbehave(pids: Path, what: str, **options: Any) -> RankResults:
    return run_ranks(MISBEHAVE, args=[what, pids, "fork"], **{"ranks": 2, "show_output": False, **options})


# What comes back


def test_values_curves_memory_and_paired_times_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COURSE_RECORD_TO", str(tmp_path))
    monkeypatch.setenv("COURSE_PROGRESS", "0")
    run = run_ranks(TRAIN, ranks=2, args=["--steps", 4], name="ddp/parity", threads_per_rank=1)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line for line in lines if "threads" in line) == [
        "[rank 0] 0 of 2 on cpu, 1 threads",
        "[rank 1] 1 of 2 on cpu, 1 threads",
    ]
    assert run.parameters == {"ranks": 2, "args": ["--steps", "4"], "backend": "gloo", "threads_per_rank": 1}
    assert run.command == "torchrun --standalone --nproc-per-node=2 train.py --steps 4"
    # Other data on each rank, one model: other losses, equal weights.
    assert run[0]["loss"] != run[1]["loss"]
    assert all(later < earlier for loss in run.values("loss").values() for earlier, later in itertools.pairwise(loss))
    assert run[0]["weight"] == run[1]["weight"]
    size = (64 * 64 + 64) * 4
    assert run[1]["memory_bytes"] == {"weights": size, "gradients": size, "optimizer state": 0}

    compared = run.comparison("scaling")
    assert (compared.baseline, compared.labels, compared.rounds) == ("1 rank", ("1 rank", "all ranks"), 8)
    slowest = [max(pair) for pair in zip(*(values["scaling"]["seconds"]["all ranks"] for values in run), strict=True)]
    assert list(compared["all ranks"].measurement.elapsed_s) == slowest
    assert compared["1 rank"].measurement.elapsed_s == tuple(run[0]["scaling"]["seconds"]["1 rank"])
    assert run[1]["scaling"]["seconds"]["1 rank"] == []
    assert compared["all ranks"].measurement.items == 64
    assert "slowest of 2 ranks" in repr(compared.numbers)

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


@POSIX
def test_much_output_is_cut_nothing_is_left_and_no_rank_is_lost_while_python_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pids = tmp_path / "pids"
    # Nobody can write there, not even root: a notebook's folder need not be writable.
    monkeypatch.chdir("/proc" if sys.platform == "linux" else tmp_path)
    run = misbehave(pids, "print_megabytes_and_abort_while_python_ends", show_output=True)
    assert run.values("printed") == {0: 50_000, 1: 50_000}
    assert all_gone(pids, least=4)
    shown = capsys.readouterr().out
    assert len(shown) < 60_000
    for rank in (0, 1):
        of_rank = [line for line in shown.splitlines() if line.startswith(f"[rank {rank}] ")]
        assert of_rank[0] == f"[rank {rank}] ready"
        assert of_rank[1] == f"[rank {rank}] {'x' * 1000}... (and more on this line)"
        assert of_rank[2].startswith(f"[rank {rank}] line 0 of rank {rank} ")
        assert any(line.endswith(" lines in all. The last:") for line in of_rank)
        assert of_rank[-3].startswith(f"[rank {rank}] line 49999 of rank {rank}")
        assert of_rank[-2:] == [f"[rank {rank}] thread", f"[rank {rank}] exit function"]


# What goes wrong while it runs

FAILURES: dict[str, list[str]] = {
    "raise_in_rank_1": [
        "rank 1 of 2 raised RuntimeError: the shapes do not fit\nTraceback (most recent call last):",
        "/proc/nobody",  # a folder that cannot be written is the program's own error
        "RuntimeError: the shapes do not fit\nA note, which is not the message.",
    ],
    "be_killed_in_rank_1": [
        "rank 1 of 2 died: ended by SIGKILL, often for want of memory\nThe last that rank 1 printed:\nready",
    ],
    "close_everything": [
        "misbehave.py was not done after ",
        "rank 0 of 2 was here:\n",
        "rank 1 of 2 was here",
        "in close_everything",
    ],
}


@POSIX
@pytest.mark.parametrize("what", FAILURES)
def test_a_failed_rank_is_named_and_nothing_is_left(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for timeout_s in (25, 90) if what == "close_everything" else (200,):  # a busy machine takes longer
        with pytest.raises(RankError) as caught:
            misbehave(tmp_path / "pids", what, timeout_s=timeout_s)
        if str(caught.value).count("in close_everything") == 2:
            break
    error = caught.value
    for phrase in FAILURES[what]:
        assert phrase in str(error)
    # A notebook shows that, and none of our frames.
    assert error._render_traceback_() == [f"RankError: {error}"]
    assert not {"entry.py", "runpy", "multiprocessing/errors"} & set(str(error).split())
    assert all_gone(tmp_path / "pids", least=4)
    assert not list(tmp_path.glob("course-ranks-*"))


# What comes from outside

_KERNEL = """
import sys
from course_utils.ranks.launch import run_ranks
run_ranks(sys.argv[1], ranks=1, args=["close_everything", sys.argv[2], "fork"])
"""


@POSIX
@pytest.mark.parametrize("who", ["Ctrl-C", "kernel is killed"])
def test_whatever_ends_the_launch_nothing_is_left(who: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    variables = {**os.environ, "PYTHONPATH": str(PROGRAMS.parents[1]), "TMPDIR": str(tmp_path)}
    # As Jupyter starts its kernels, and kills them: with all of their group.
    kernel = subprocess.Popen(
        [sys.executable, "-c", _KERNEL, str(MISBEHAVE), str(pids)],
        env=variables,
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 100
    while len(started(pids)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(kernel.pid, signal.SIGINT if who == "Ctrl-C" else signal.SIGKILL)
    _, messages = kernel.communicate(timeout=100)
    assert ("KeyboardInterrupt" in messages) == (who == "Ctrl-C")
    assert all_gone(pids, least=2, within_s=60)
    while list(tmp_path.glob("course-ranks-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(tmp_path.glob("course-ranks-*"))


# What is refused before anything starts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 0}, "ranks and threads_per_rank are 1 or more.* got ranks=0"),
        ({"ranks": 10_000}, r"10000 ranks are too many for this machine's \d+ core"),
        ({"args": "--steps 20"}, "args is a list"),
        ({"backend": "mpi"}, "'nccl' or 'gloo'"),
        ({"program": "train.pyy"}, "there is no program 'train.pyy'.*notebook's folder"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_said_before_anything_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run_ranks(**{"program": TRAIN, "ranks": 1, **options})


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a wheel for CUDA on a machine without a driver, where torch would raise "Found no NVIDIA driver"."""
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="NCCL needs a GPU for each rank: 1 were asked for, and torch sees 0"):
            run_ranks(TRAIN, ranks=1, backend="nccl")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="NCCL needs a GPU for each rank: 2 were asked for, and torch sees 1"):
        run_ranks(TRAIN, ranks=2, backend="nccl")
