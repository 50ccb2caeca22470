"""Watches one torchrun for :func:`course_utils.run_ranks`, and ends everything that came of it, whatever happens.

A process of its own, in a session of its own: it outlives a notebook's kernel that is killed, and then cleans up. On
Linux every descendant, also one that forked away from its parents, is handed to it by the system
(``PR_SET_CHILD_SUBREAPER``), so none gets lost; elsewhere they are found by a mark in their environment.

The notebook writes one line of JSON to the standard input and keeps it open: when it closes, all ends. The outcome goes
into a file. torchrun starts the ranks and ends the others when one fails; here is only what it leaves undone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_utils.ranks.entry import STACK_SIGNAL, failure_file, pid_file, write_whole

if TYPE_CHECKING:
    import psutil

RUN_VARIABLE = "COURSE_RANKS_RUN"
POLL_S = 0.05
# After the first sign that a rank failed: so long may the others take to say what became of them...
_OTHERS_S = 1.0
# ...and so long may torchrun take to sum it up once the other ranks have been killed.
_SUMMARY_S = 1.5
# A rank needs this long to write down where its threads are.
_STACK_S = 0.4
# What a program leaves behind may end by itself, as multiprocessing's resource tracker does.
_LEFT_BEHIND_S = 0.3
_END_S = 10.0
_FAILED = re.compile(rb"closing signal|failed \(exitcode")
_PARENT_DEATH_SIGNAL, _SUBREAPER = 1, 36


def outcome_file(folder: Path) -> Path:
    """How the run ended."""
    return folder / "outcome.json"


def agent_log(folder: Path) -> Path:
    """What torchrun itself printed."""
    return folder / "torchrun.log"


def rank_logs(folder: Path) -> list[Path]:
    """What the ranks printed so far: ``.../<rank>/stdout.log`` and ``.../<rank>/stderr.log``, made by torchrun."""
    return sorted(folder.glob("logs/*/attempt_0/*/std*.log"))


def end_marked(mark: str) -> int:
    """Kill every process of this user that bears the mark of a run in its environment.

    Args:
        mark: the run's mark.

    Returns:
        How many there were.
    """
    import psutil

    count = 0
    deadline = time.monotonic() + _END_S
    while (found := list(_marked(mark))) and time.monotonic() < deadline:
        count = max(count, len(found))
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=0.5)
    return count


def _marked(mark: str) -> Iterator[psutil.Process]:
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(RUN_VARIABLE) == mark:
                yield process


class _Supervisor:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.folder = Path(plan["folder"])
        self.ranks: int = plan["ranks"]
        self.timeout_s: float = plan["timeout_s"]
        self.most_log_bytes: int = plan["most_log_bytes"]
        self.command: list[str] = plan["command"]
        self.mark: str = os.environ[RUN_VARIABLE]
        self.complete = _adopt_orphans()
        # Not a threading.Event: a signal may come while the main thread holds its lock, and set() would wait for it.
        self.stop = False
        self.parent = os.getppid()
        self.last_alive: dict[int, float] = {}
        self.outcome: dict[str, Any] = {"reason": "ended", "exit_status": None, "killed_at": None, "left_behind": 0}

    def run(self) -> None:
        """From the start of torchrun until nothing is left of it."""
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self._told_to_stop)
        threading.Thread(target=self._wait_for_end_of_input, daemon=True).start()
        agent = None
        try:
            with agent_log(self.folder).open("wb") as log:
                agent = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # Who kills this process as well leaves torchrun to end its ranks.
                    preexec_fn=_end_with_parent if sys.platform.startswith("linux") else None,
                )
            self._watch(agent)
        finally:
            self.outcome["last_alive"] = self.last_alive
            self.outcome["exit_status"] = agent.poll() if agent is not None else None
            if self.outcome["reason"] == "ended" and self.outcome["exit_status"] == 0:
                self.outcome["left_behind"] = self._wait_for_the_rest()
            self._end_all(agent)
            if self.outcome["reason"] == "stopped":
                # Nobody waits for the outcome: the notebook was interrupted, or is gone.
                shutil.rmtree(self.folder, ignore_errors=True)
            else:
                write_whole(outcome_file(self.folder), json.dumps(self.outcome))

    def _told_to_stop(self, *_: object) -> None:
        self.stop = True

    def _wait_for_end_of_input(self) -> None:
        # Not through sys.stdin: its lock would be held when this process ends.
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        self.stop = True

    def _watch(self, agent: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self.timeout_s
        failed_at = None
        while agent.poll() is None:
            now = time.monotonic()
            if self.stop or os.getppid() != self.parent:
                self.outcome["reason"] = "stopped"
                return
            self._look_at_ranks()
            if failed_at is None and self._has_failed():
                failed_at = now
            if failed_at is not None:
                if self.outcome["killed_at"] is None and now > failed_at + _OTHERS_S:
                    if self._all_is_said():
                        return
                    self.outcome["killed_at"] = time.time()
                    self._signal_ranks(signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
                if now > failed_at + _OTHERS_S + _SUMMARY_S:
                    return
            elif now > deadline:
                self.outcome["reason"] = "timed out"
                if STACK_SIGNAL is not None:
                    self._signal_ranks(STACK_SIGNAL)
                    time.sleep(_STACK_S)
                return
            if sum(path.stat().st_size for path in rank_logs(self.folder)) > self.most_log_bytes:
                self.outcome["reason"] = "printed too much"
                return
            time.sleep(POLL_S)

    def _pids(self) -> Iterator[tuple[int, int]]:
        for rank in range(self.ranks):
            with contextlib.suppress(OSError, ValueError):
                yield rank, int(pid_file(self.folder, rank).read_text(encoding="utf-8"))

    def _look_at_ranks(self) -> None:
        """Remember when each rank was last seen alive: of several deaths the first one is the cause."""
        for rank, pid in self._pids():
            if _alive(pid):
                self.last_alive[rank] = time.time()

    def _has_failed(self) -> bool:
        if any(failure_file(self.folder, rank).exists() for rank in range(self.ranks)):
            return True
        return _FAILED.search(agent_log(self.folder).read_bytes()) is not None

    def _all_is_said(self) -> bool:
        """Whether every rank that has ended left a traceback; how another one died, only torchrun knows."""
        return all(_alive(pid) or failure_file(self.folder, rank).exists() for rank, pid in self._pids())

    def _signal_ranks(self, signum: int) -> None:
        for _, pid in self._pids():
            if _alive(pid):
                with contextlib.suppress(OSError):
                    os.kill(pid, signum)

    # The end

    def _family(self) -> list[psutil.Process]:
        """All living descendants."""
        import psutil

        found = psutil.Process().children(recursive=True)
        if not self.complete:
            found += [process for process in _marked(self.mark) if process not in found and process.pid != self.parent]
        return [process for process in found if _alive(process.pid)]

    def _wait_for_the_rest(self) -> int:
        """How many processes are still there a moment after torchrun has ended well."""
        deadline = time.monotonic() + _LEFT_BEHIND_S
        while (left := len(self._family())) and not self.stop and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return left

    def _end_all(self, agent: subprocess.Popen[bytes] | None) -> None:
        import psutil

        deadline = time.monotonic() + _END_S
        while family := self._family():
            # Those that start others are killed before they can start more of them: again until none is left.
            for process in family:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
            if agent is not None:
                agent.poll()
        if sys.platform != "win32":
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _adopt_orphans() -> bool:
    """Ask Linux to hand all orphaned descendants to this process; whether it does."""
    return sys.platform.startswith("linux") and _prctl(_SUBREAPER, 1)


def _end_with_parent() -> None:
    """In a child that is about to become another program: get SIGTERM when the parent dies."""
    _prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _prctl(option: int, value: int) -> bool:
    import ctypes

    try:
        return ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0
    except (OSError, AttributeError):
        return False


def _alive(pid: int) -> bool:
    """Whether a process is there and not just waiting for its parent to take note of its death."""
    import psutil

    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def main() -> None:
    """Read the plan and carry it out."""
    _Supervisor(json.loads(_first_line())).run()


def _first_line() -> bytes:
    """The plan. Byte by byte: whatever else is read would be missing when the end of the input is awaited."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(0)
        line += byte
    return line


if __name__ == "__main__":
    main()
