"""The SLURM file of lesson 17. What its programs find, the lesson itself asserts, on two ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launches import NOTEBOOKS, outputs_of

SBATCH = NOTEBOOKS / "scripts" / "ddp_train.sbatch"
SHORT = ("--steps", "2", "--batch", "12", "--length", "16", "--width", "32")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="torchrun's rendezvous and bash are not there")


def test_the_slurm_file_asks_for_what_it_uses():
    text = SBATCH.read_text(encoding="utf-8")
    # SLURM reads those before the first command.
    head = re.match(r"#!/bin/bash\n(?:#.*\n|\n)*", text)[0]
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", head, re.MULTILINE))
    assert text.count("#SBATCH") == len(asked)
    # One torchrun for each node: it starts the ranks. A task for each GPU would start them twice.
    assert asked["ntasks-per-node"] == "1"
    assert int(asked["nodes"]) >= 2
    assert int(asked["cpus-per-task"]) >= int(asked["gpus-per-node"])
    ranks = int(asked["nodes"]) * int(asked["gpus-per-node"])
    assert int(re.search(r"--batch (\d+)", text)[1]) % ranks == 0
    subprocess.run(["bash", "-n", str(SBATCH)], check=True)


def test_the_slurm_file_runs_as_two_nodes(tmp_path: Path):
    """With an ``srun`` that starts one task for each of two nodes, both of them this machine."""
    for name, lines in {
        "scontrol": ["echo localhost; echo other"],
        "torchrun": [f'exec "{sys.executable}" -m torch.distributed.run "$@"'],
        # Options of srun come first, then the command.
        "srun": ['while [[ "$1" == --* ]]; do shift; done', '"$@" & one=$!', '"$@" & two=$!', "wait $one && wait $two"],
    }.items():
        (tmp_path / name).write_text("\n".join(["#!/bin/bash", *lines, ""]))
        (tmp_path / name).chmod(0o755)
    short = SBATCH.read_text(encoding="utf-8").replace("--steps 1000 --batch 256", " ".join(SHORT))
    assert short != SBATCH.read_text(encoding="utf-8")
    (tmp_path / "short.sbatch").write_text(short)
    (output,) = outputs_of(
        ["bash", str(tmp_path / "short.sbatch")],
        PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        SLURM_JOB_NODELIST="node[1-2]",
        SLURM_JOB_NUM_NODES="2",
        SLURM_GPUS_ON_NODE="1",
        SLURM_CPUS_PER_TASK="1",
        SLURM_JOB_ID=str(os.getpid()),
    )
    # Two ranks took part, and rank 0 found their gradients right.
    errors = re.search(r"gradient_error: float32 (\S+), float64 (\S+)", output)
    assert 0 < float(errors[1]) < 1e-5
    assert float(errors[2]) < 1e-12
