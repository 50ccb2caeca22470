"""Runs of plain torchrun that fail, and what is left of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from course_utils.records.files import variables_for_children

_AT_ONCE, _MOST_S, _FRAMES = 3, 120.0, 3
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*: (\d+).*?exitcode\s*: (-?\d+)", re.DOTALL)


def failed_runs(
    program: str, happenings: Sequence[str]
) -> tuple[list[dict[str, object]], dict[str, list[dict[str, str]]]]:
    """Start a program under torchrun once for each word, on two ranks of the CPU.

    Returns:
        What torchrun made of each run; and where the ranks of each stood if they wrote it down with ``faulthandler``,
        the innermost frame first.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        runs = [*pool.map(lambda happens: _failed_run(program, happens), happenings)]
    return [run for run, _ in runs], dict(zip(happenings, (stacks for _, stacks in runs), strict=True))


def _failed_run(program: str, happens: str) -> tuple[dict[str, object], list[dict[str, str]]]:
    with tempfile.TemporaryDirectory(prefix="course-logs-") as logs:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
        torchrun += ["--nproc-per-node=2", "--redirects=3", f"--log-dir={logs}", program, happens]
        variables = variables_for_children({**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
        ran = subprocess.run(torchrun, env=variables, capture_output=True, text=True, timeout=_MOST_S)
        root_cause = _ROOT_CAUSE.search(ran.stderr)
        if not root_cause:
            raise AssertionError(f"torchrun names no root cause:\n{ran.stderr[-2000:]}")
        said = [next(Path(logs).glob(f"*/attempt_0/{rank}/stderr.log")).read_text(errors="replace") for rank in (0, 1)]
    run = {
        "rank 1": happens,
        "torchrun names": f"rank {root_cause[1]}",
        "exit code": int(root_cause[2]),
        "rank 0 said": _last_words(said[0]),
    }
    frames = zip(*map(_innermost_frames, said), strict=False)  # a rank that is gone wrote none
    return run, [
        {"frame": str(number), "rank 0": first, "rank 1": second} for number, (first, second) in enumerate(frames, 1)
    ]


def _innermost_frames(log: str) -> list[str]:
    """The first frames that ``faulthandler`` wrote of the main thread: function, file and line."""
    _, _, stacks = log.partition("(most recent call first):")
    frames = re.findall(r'^  File "(?:[^"]*/)?([^"/]+)", line (\d+) in (\S+)$', stacks, re.MULTILINE)
    return [f"{function}, {file}:{line}" for file, line, function in frames[:_FRAMES]]


def _last_words(log: str) -> str:
    lines = re.findall(r"^(?:\[rank\d\]: |  what\(\):  )(?!\s)(?!Traceback)(.*)$", log, re.M)
    said = re.sub(r"\[/\S+\] |\[enforce fail at \S+\] | ?\[127\.0\.0\.1\]:\d+", "", lines[-1] if lines else "nothing")
    if re.search("Connection (closed|reset) by peer", said):  # which of the two changes from run to run
        return "a lost connection"
    return said.partition(". ")[0].removeprefix("RuntimeError: ")[:60]
