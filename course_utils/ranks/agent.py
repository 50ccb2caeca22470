"""The process that runs torchrun for :func:`run_ranks`, and ends all that came of it when the notebook's kernel ends.

It has a session of its own, so it outlives a kernel that is killed: its standard input closes then. Every process of a
run bears a mark in its environment, which its children inherit: so they are found when their parents are dead.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from course_utils.ranks.entry import FOLDER_VARIABLE

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

RUN_VARIABLE = "COURSE_RANKS_RUN"
_END_S, _POLL_S = 10.0, 0.02
# Whoever has it ends this process.
_last = threading.Lock()


def outcome_file(folder: Path) -> Path:
    """The ranks that failed, and how; written when torchrun has ended."""
    return folder / "outcome.json"


def end_run(mark: str, patience_s: float = 0.0) -> int:
    """Kill every other process that bears the mark of a run, and its children.

    Args:
        mark: the run's mark.
        patience_s: how long they may take to end by themselves.

    Returns:
        How many had to be killed.
    """
    patient_until = time.monotonic() + patience_s
    while _processes_of(mark) and time.monotonic() < patient_until:
        time.sleep(_POLL_S)
    killed: set[psutil.Process] = set()
    deadline = time.monotonic() + _END_S
    while (processes := _processes_of(mark)) and time.monotonic() < deadline:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        killed |= processes
        time.sleep(_POLL_S)
    return len(killed)


def _processes_of(mark: str) -> set[psutil.Process]:
    processes = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(RUN_VARIABLE) == mark:
                processes.add(process)
                processes.update(process.children(recursive=True))
    return set(filter(_runs, processes))


def _runs(process: psutil.Process) -> bool:
    """Whether it does not only wait for its parent to take note of its death."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _end_with_the_notebook() -> None:
    os.read(0, 1)  # returns when nobody holds the other end any more
    with _last:
        end_run(os.environ[RUN_VARIABLE])
        shutil.rmtree(os.environ[FOLDER_VARIABLE], ignore_errors=True)
        os._exit(1)


def _described(failure: ProcessFailure) -> dict[str, Any]:
    """How a rank failed, from torchelastic's error file if the rank could still write one."""
    if isinstance(failure.message, dict):
        return {
            "status": failure.exitcode,
            "moment": os.path.getmtime(failure.error_file),
            "message": failure.message["message"],
            "traceback": failure.message["extraInfo"]["py_callstack"],
        }
    # Here torchelastic knows only the second in which it noticed. A rank that dies is the cause of what others raise.
    return {"status": failure.exitcode, "moment": failure.timestamp - 1, "message": "", "traceback": ""}


def main() -> None:
    """Run torchrun with the arguments of the command line."""
    threading.Thread(target=_end_with_the_notebook, daemon=True).start()
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    failures = {}
    try:
        torchrun(sys.argv[1:])
    except ChildFailedError as error:
        failures = {rank: _described(failure) for rank, failure in error.failures.items()}
    with _last:
        outcome_file(Path(os.environ[FOLDER_VARIABLE])).write_text(json.dumps(failures), encoding="utf-8")
        os._exit(0)


if __name__ == "__main__":
    main()
