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

_AT_ONCE, _MOST_S = 3, 120.0
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*: (\d+).*?exitcode\s*: (-?\d+)", re.DOTALL)


def failed_runs(program: str, happenings: Sequence[str]) -> list[dict[str, object]]:
    """Start a program under torchrun once for each word, on two ranks of the CPU, and say what torchrun made of it."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda happens: _failed_run(program, happens), happenings))


def _failed_run(program: str, happens: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="course-logs-") as logs:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
        torchrun += ["--nproc-per-node=2", "--redirects=3", f"--log-dir={logs}", program, happens]
        variables = variables_for_children({**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
        ran = subprocess.run(torchrun, env=variables, capture_output=True, text=True, timeout=_MOST_S)
        root_cause = _ROOT_CAUSE.search(ran.stderr)
        if not root_cause:
            raise AssertionError(f"torchrun names no root cause:\n{ran.stderr[-2000:]}")
        said = _last_words(next(Path(logs).glob("*/attempt_0/0/stderr.log")))
    return {
        "rank 1": happens,
        "torchrun names": f"rank {root_cause[1]}",
        "exit code": int(root_cause[2]),
        "rank 0 said": said,
    }


def _last_words(log: Path) -> str:
    """The exception that a rank wrote down, without paths and addresses."""
    lines = re.findall(
        r"^(?:\[rank\d\]: |  what\(\):  )(?!\s)(?!Traceback)(.*)$", log.read_text(errors="replace"), re.M
    )
    said = re.sub(r"\[/\S+\] |\[enforce fail at \S+\] | ?\[127\.0\.0\.1\]:\d+", "", lines[-1] if lines else "nothing")
    if re.search("Connection (closed|reset) by peer", said):  # which of the two changes from run to run
        return "a lost connection"
    return said.partition(". ")[0].removeprefix("RuntimeError: ")[:60]
