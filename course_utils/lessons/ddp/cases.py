"""What the lesson measures: shares of a batch, how much of a step is kept, and runs that fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from course_utils.materials.digits import load_digits_split
from course_utils.measure.machine import course_size, device_kind, environment
from course_utils.records.files import variables_for_children
from course_utils.records.kinds.rank_results import RankResults
from course_utils.records.kinds.table import Table

# A batch of digits, and rank 0's share of it where shares are unequal.
BATCH, LARGE_SHARE = 256, 192
CHOICES = ("0%", "8%", "81%")
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*: (\d+)", re.DOTALL)


def as_choice(distance: float) -> str:
    """The choice that is nearest to a relative distance."""
    return min(CHOICES, key=lambda choice: abs(float(choice.rstrip("%")) - 100 * distance))


def digits_network(norm: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 32), norm or nn.Identity(), nn.Tanh(), nn.Linear(32, 10))


def unequal_shares() -> list[dict[str, object]]:
    """The mean of two ranks' mean gradients against that of all samples: in a batch, and added up over many."""
    digits, model = load_digits_split(), digits_network()
    x, y, dice = digits.train_images.flatten(1), digits.train_labels, torch.Generator().manual_seed(0)
    low, high = (y < 5).nonzero().flatten(), (y >= 5).nonzero().flatten()

    def gradient(rows: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        return torch.cat([weight.grad.flatten() for weight in model.parameters()])

    def drawn(rows: torch.Tensor, count: int) -> torch.Tensor:
        return rows[torch.randperm(len(rows), generator=dice)[:count]]

    def row(content: str, batch: Callable[[], torch.Tensor]) -> dict[str, object]:
        errors, all_means, all_right = [], 0, 0
        for _ in range(batches):
            rows = batch()
            means, right = (gradient(rows[:LARGE_SHARE]) + gradient(rows[LARGE_SHARE:])) / 2, gradient(rows)
            errors.append((means - right).norm() / right.norm())
            all_means, all_right = all_means + means, all_right + right
        return {
            "what the ranks read": content,
            "one batch": torch.stack(errors).median().item(),
            "mean of all": ((all_means - all_right).norm() / all_right.norm()).item(),
        }

    batches, everything, rest = 20 if course_size() == "test" else 400, torch.arange(len(y)), BATCH - LARGE_SHARE
    return [
        row("all digits", lambda: drawn(everything, BATCH)),
        row("0 to 4, 5 to 9", lambda: torch.cat([drawn(low, LARGE_SHARE), drawn(high, rest)])),
    ]


def ranks_here() -> int:
    """One for each GPU if there are two; else by the cores of the CPU."""
    gpus = torch.cuda.device_count() if device_kind() == "cuda" else 0
    cores = environment().cpu_cores
    return gpus if gpus > 1 else 8 if cores >= 8 else 4 if cores >= 4 else 2


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
    with ThreadPoolExecutor(3) as pool:
        return [*pool.map(lambda happens: _failed_run(program, happens), happenings)]


def _failed_run(program: str, happens: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="course-logs-") as logs:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
        torchrun += ["--nproc-per-node=2", "--redirects=3", f"--log-dir={logs}", program, happens]
        variables = variables_for_children({**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
        ran = subprocess.run(torchrun, env=variables, capture_output=True, text=True, timeout=120)
        root_cause = _ROOT_CAUSE.search(ran.stderr)
        if not root_cause:
            raise AssertionError(f"torchrun names no root cause:\n{ran.stderr[-2000:]}")
        said = [next(Path(logs).glob(f"*/attempt_0/{rank}/stderr.log")).read_text(errors="replace") for rank in (0, 1)]
    stood = {f"rank {rank} stood in": _innermost_frame(log) for rank, log in enumerate(said)}
    return {"rank 1": happens, "torchrun names": f"rank {root_cause[1]}"} | stood


def _innermost_frame(log: str) -> str:
    """Function, file and line of the frame that ``faulthandler`` wrote first, if the rank was still there."""
    _, _, stacks = log.partition("(most recent call first):")
    frame = re.search(r'^  File "(?:[^"]*/)?([^"/]+)", line (\d+) in (\S+)$', stacks, re.MULTILINE)
    return f"{frame[3]}, {frame[1]}:{frame[2]}" if frame else "gone"
