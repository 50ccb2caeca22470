"""Programs started from a shell, as a learner starts torchrun: with a time limit, and nothing of them left behind."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from course_utils.ranks.agent import RUN_VARIABLE, end_run

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
# A launch takes seconds. A machine that is slow, or busy with other tests, gets many times that.
LIMIT_S = 150


def outputs_of(*commands: Sequence[str], limit_s: float = LIMIT_S, **variables: str) -> list[str]:
    """Run commands at the same time in the notebooks' folder, without GPUs; all of them have to succeed.

    Returns:
        What each printed, and its errors among it.
    """
    mark = uuid.uuid4().hex
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        RUN_VARIABLE: mark,
        **variables,
    }
    with TemporaryDirectory() as folder:
        # Files, not pipes: a pipe ends only when the last process that was ever given it has ended.
        logs = [Path(folder, str(number)) for number in range(len(commands))]
        started = []
        try:
            for command, path in zip(commands, logs, strict=True):
                with path.open("wb") as log:
                    started.append(
                        subprocess.Popen(command, cwd=NOTEBOOKS, env=environment, stdout=log, stderr=subprocess.STDOUT)
                    )
            statuses = [process.wait(timeout=limit_s) for process in started]
        except subprocess.TimeoutExpired:
            statuses = ["too late"]
        finally:
            end_run(mark)
        outputs = [log.read_text(encoding="utf-8", errors="replace") for log in logs]
    if any(statuses):
        pytest.fail(f"ended with {statuses}:\n" + "\n".join(outputs))
    return outputs
