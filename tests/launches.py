"""Programs started from a shell, as a learner starts torchrun: with a time limit, and nothing of them left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
# A launch takes seconds. A machine that is slow, or busy with other tests, gets many times that.
LIMIT_S = 150
_SAY_WHERE_S = 5


def outputs_of(*commands: Sequence[str], limit_s: float = LIMIT_S, **variables: str) -> list[str]:
    """Run commands at the same time in the notebooks' folder, without GPUs; all of them have to succeed.

    Args:
        *commands: each a program and its arguments.
        limit_s: after so many seconds all processes say where they are, are killed, and the test fails.
        **variables: more environment variables.

    Returns:
        What each printed, and its errors among it.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        # Whoever is aborted prints the stacks of its threads.
        "PYTHONFAULTHANDLER": "1",
        **variables,
    }
    deadline = time.monotonic() + limit_s
    with contextlib.ExitStack() as stack:
        # Files, not pipes: a pipe ends only when the last process that was ever given it has ended.
        logs = [stack.enter_context(TemporaryFile()) for _ in commands]
        started = []
        for command, log in zip(commands, logs, strict=True):
            process = subprocess.Popen(command, cwd=NOTEBOOKS, env=environment, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(_end, process)
            started.append(process)
        late = False
        for process in started:
            try:
                process.wait(timeout=max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                late = True
        if late:
            _ask_where(started)
        outputs = [_text(log) for log in logs]
        said = "\n".join(outputs)
        if late:
            pytest.fail(f"not done after {limit_s:g} s; what was printed, then where each process was:\n{said}")
        assert [process.returncode for process in started] == [0] * len(started), said
    return outputs


def _tree(process: subprocess.Popen) -> list[psutil.Process]:
    try:
        root = psutil.Process(process.pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _ask_where(started: Sequence[subprocess.Popen]) -> None:
    """Let every process print its stacks, the ranks before the torchrun that would end them."""
    if os.name == "nt":
        return  # no signal there lets a process speak first
    for process in started:
        for each in reversed(_tree(process)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGABRT)
    deadline = time.monotonic() + _SAY_WHERE_S
    while any(process.poll() is None for process in started) and time.monotonic() < deadline:
        time.sleep(0.1)


def _end(process: subprocess.Popen) -> None:
    for each in _tree(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


def _text(log) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")
