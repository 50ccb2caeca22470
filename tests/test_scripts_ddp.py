"""The programs of lesson 17: with torchrun's engine on 1, 2 and 3 ranks, and with torchrun itself as two nodes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
SBATCH = NOTEBOOKS / "scripts" / "ddp_train.sbatch"
SEVERAL = Path(__file__).parent / "rank_programs" / "several.py"
SHORT = ("--steps", "2", "--batch", "12", "--length", "16", "--width", "32")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="torchrun's rendezvous and bash are not there")


def shell_environment(**more: str) -> dict[str, str]:
    """No GPU, one thread a rank, and this very package."""
    here = str(NOTEBOOKS.parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **more}


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=NOTEBOOKS,
        env=shell_environment(**environment),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


PROGRAMS = {
    f"3 scripts/ddp_train.py {' '.join(SHORT)}": ("gradient_error",),
    "1 scripts/ddp_causes.py --rounds 1": ("small operations", "large product", "gil"),
    "1 scripts/ddp_communication.py --rounds 1 --width 32": ("settings", "lanes", "accumulation"),
    "2 scripts/ddp_scaling.py --rounds 1 --width 16 --batch 1": ("DDP, 2 ranks", "gradient_bytes"),
    "2 scripts/ddp_uneven.py": ("gradient_error",),
}


def test_each_program_runs_alone_on_1_2_or_3_ranks():
    output = run(sys.executable, str(SEVERAL), *PROGRAMS)
    parts = dict(part.split("\n", 1) for part in output.split("== ")[1:])
    assert list(parts) == list(PROGRAMS)
    assert [(line, word) for line, words in PROGRAMS.items() for word in words if word not in parts[line]] == []
    # Three ranks find the gradients of one process: the program itself fails if they differ.
    errors = re.search(r"gradient_error: float32 (\S+), float64 (\S+)", next(iter(parts.values())))
    assert 0 < float(errors[1]) < 1e-5
    assert float(errors[2]) < 1e-12


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
    output = run(
        "bash",
        str(tmp_path / "short.sbatch"),
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
