"""The programs of lesson 17: on other numbers of ranks than in the lesson, and with torchrun itself as two nodes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from course_utils.ranks.launch import run_ranks
from tests.launches import LIMIT_S, NOTEBOOKS, outputs_of

SBATCH = NOTEBOOKS / "scripts" / "ddp_train.sbatch"
SHORT = ("--steps", "2", "--batch", "12", "--length", "16", "--width", "32")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="torchrun's rendezvous and bash are not there")

# Lesson 17 itself runs each program on two ranks, and asserts what it finds there. Here: on the other numbers.
PROGRAMS = {
    "ddp_train.py": (3, SHORT, {"gradient_error", "loss_error"}),
    "ddp_causes.py": (1, ("--rounds", "1"), {"small operations", "large product", "gil"}),
    "ddp_communication.py": (1, ("--rounds", "1", "--width", "32"), {"settings", "lanes", "accumulation"}),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_runs_on_1_and_3_ranks(program: str):
    """``run_ranks`` is torchrun with a time limit: ranks that hang are ended, and the failure says where each was."""
    ranks, args, told = PROGRAMS[program]
    run = run_ranks(
        NOTEBOOKS / "scripts" / program, ranks=ranks, args=args, threads_per_rank=1, backend="gloo", timeout_s=LIMIT_S
    )
    assert told <= set(run.keys)
    if "gradient_error" in told:
        # Three ranks find the gradients of one process: the program itself fails if they differ.
        assert 0 < run[0]["gradient_error"]["float32"] < 1e-5
        assert run[0]["gradient_error"]["float64"] < 1e-12


# The SLURM file


def directives() -> dict[str, str]:
    """What stands in the ``#SBATCH`` lines that SLURM reads: those before the first command."""
    found = {}
    for line in SBATCH.read_text(encoding="utf-8").splitlines()[1:]:
        if line and not line.startswith("#"):
            break
        match = re.fullmatch(r"#SBATCH --([a-z-]+)=(\S+)", line)
        assert match or not line.startswith("#SBATCH"), line
        found |= {match[1]: match[2]} if match else {}
    return found


def test_the_slurm_file_asks_for_what_it_uses():
    text, asked = SBATCH.read_text(encoding="utf-8"), directives()
    assert text.startswith("#!/bin/bash\n")
    assert len(re.findall(r"^#SBATCH", text, re.MULTILINE)) == len(asked)
    # One torchrun for each node: it starts the ranks. A task for each GPU would start them twice.
    assert asked["ntasks-per-node"] == "1"
    assert int(asked["nodes"]) >= 2
    assert int(asked["cpus-per-task"]) >= int(asked["gpus-per-node"])
    assert re.fullmatch(r"\d\d:\d\d:\d\d", asked["time"])
    ranks = int(asked["nodes"]) * int(asked["gpus-per-node"])
    assert int(re.search(r"--batch (\d+)", text)[1]) % ranks == 0
    subprocess.run(["bash", "-n", str(SBATCH)], check=True)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) != 0


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
        SLURM_JOB_ID=str(next(job for job in range(os.getpid() % 500, 1000) if is_free(29400 + job))),
    )
    # Two ranks took part, and rank 0 found their gradients right.
    assert "gradient_error" in output
    assert float(re.search(r"float32 (\S+),", output)[1]) > 0
