"""The programs of `ddp`: the SLURM file, the technique as a file, mistakes on two ranks, and the checks to paste."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from course_utils.lesson_notebooks import find_lesson
from course_utils.ranks.launch import run_ranks
from tests.launches import NOTEBOOKS, outputs_of

SBATCH = NOTEBOOKS / "scripts" / "ddp_train.sbatch"
LONG = '--epochs 20 --samples 25600 --batch 256 --checkpoint "$SLURM_JOB_NAME.pt"'
SHORT = ("--epochs", "2", "--compare", "--samples", "12", "--batch", "12", "--length", "16", "--width", "32")

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
    # A job submitted again has another number and the same name: it goes on, and waits for the one before.
    assert "$SLURM_JOB_ID" not in LONG
    assert asked["dependency"] == "singleton"
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
    short = SBATCH.read_text(encoding="utf-8").replace(LONG, " ".join(SHORT))
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


def test_the_technique_is_a_file_for_torchrun(tmp_path: Path):
    cells = nbformat.read(find_lesson("ddp").path, as_version=4).cells
    (cell,) = (cell for cell in cells if "DistributedSampler(data" in cell.source)
    code, found = re.subn(r"init_process_group\(.*\)", "init_process_group()", cell.source)
    assert found == 1
    (tmp_path / "FILE.py").write_text(code)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    (output,) = outputs_of([*torchrun, "--nproc-per-node=2", str(tmp_path / "FILE.py")])
    assert output.count("4 steps an epoch") == 2


@pytest.fixture
def where_the_notebook_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(NOTEBOOKS)


def test_which_mistakes_raise_and_which_wait_is_what_the_page_says(where_the_notebook_is):
    run = run_ranks("scripts/ddp_mistakes.py", ranks=2, threads_per_rank=1, backend="gloo", show_output=False)
    page = (NOTEBOOKS.parent / "book/reference/a_run_that_hangs.md").read_text(encoding="utf-8")
    for what, of in (run[0]["happened"] | run[0]["mended"]).items():
        assert "| " + " | ".join([what, *of["does"]]) + " |\n" in page
    assert run[1]["last_gradient"] == {
        "divide_by_initial_world_size=True": 0.5,
        "divide_by_initial_world_size=False": 1.0,
    }


def test_the_checks_to_paste_see_what_the_lesson_says(where_the_notebook_is):
    program, lesson = NOTEBOOKS.parent / "tests/rank_programs/pasted_checks.py", find_lesson("ddp").path.name
    found = run_ranks(program, ranks=3, args=[lesson], threads_per_rank=1, backend="gloo", show_output=False)[0]
    assert [found[way][0] for way in ("right", "weighted", "uneven", "same")] == [0] * 4
    assert max(found["right"][1], found["weighted"][1]) < 1e-6
    assert found["uneven"][1] > 0.05
    assert found["same"][1] == "same batch twice"
    assert min(*found["around"], *found["local"]) > 0.1
    assert found["batch_norm"][1] < 1e-6
    assert found["undivided"] == [0, pytest.approx(1, abs=1e-5)]
    assert found["other_lengths"] < 1e-6
    # One rank with NaN, of which the largest of all ranks knows nothing.
    assert found["not_a_number"] == "inf"
