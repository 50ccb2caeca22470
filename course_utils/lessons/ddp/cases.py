"""What the lesson measures: how much of a step is kept, and runs that fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from course_utils.files import variables_for_children
from course_utils.measure.machine import course_size, device_kind, environment
from course_utils.results.rank_results import RankResults
from course_utils.results.table import Table

_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*: (\d+)", re.DOTALL)


def ranks_here() -> int:
    """One for each GPU if there are two; else by the cores of the CPU."""
    gpus = torch.cuda.device_count() if device_kind() == "cuda" else 0
    return gpus if gpus > 1 else max(2, min(8, environment().cpu_cores))


def kept(run: RankResults) -> list[dict[str, object]]:
    """What of N times the speed of one rank is left, after sharing the machine and after sending."""
    sharing, sending = run.comparison("steps")["one alone"].ratio, run.comparison("steps")["DDP"].speedup
    return [
        {"ranks": f"{len([*run])} at once", "of the one before": sharing, "of one alone": sharing},
        {"ranks": "... and DDP sends", "of the one before": sending, "of one alone": sharing * sending},
    ]


def says_kept(it: Table) -> str:
    sharing, sending = (it.text(row["ranks"], "of the one before") for row in it)
    return f"Sharing the machine kept {sharing}, sending the gradients {sending} of that."


def failed_runs(program: str, happenings: Sequence[str]) -> list[dict[str, object]]:
    """Start a program under torchrun once for each word, on two ranks of the CPU: what torchrun made of each run."""
    happenings = happenings[1:3] if course_size() == "test" else happenings
    with ThreadPoolExecutor(3) as pool:
        return [*pool.map(lambda happens: _failed_run(program, happens), happenings)]


def _failed_run(program: str, happens: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="course-logs-") as logs:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
        torchrun += ["--nproc-per-node=2", "--redirects=3", f"--log-dir={logs}", program, happens]
        variables = variables_for_children({**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
        ran = subprocess.run(torchrun, env=variables, capture_output=True, text=True, timeout=120)
        root_cause = _ROOT_CAUSE.search(ran.stderr)
        assert root_cause, f"torchrun names no root cause:\n{ran.stderr[-2000:]}"
        said = [next(Path(logs).glob(f"*/attempt_0/{rank}/stderr.log")).read_text(errors="replace") for rank in (0, 1)]
    stood = {f"rank {rank} stood in": _innermost_frame(log) for rank, log in enumerate(said)}
    return {"rank 1": happens, "torchrun names": f"rank {root_cause[1]}"} | stood


def _innermost_frame(log: str) -> str:
    _, _, stacks = log.partition("(most recent call first):")
    frame = re.search(r'^  File ".*", line \d+ in (\S+)$', stacks, re.MULTILINE)
    return frame[1] if frame else "gone"
