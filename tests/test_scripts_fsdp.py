"""The programs of lesson 18 as a learner runs them: from a shell, with torchrun, on 1, 2 and 3 ranks and on two nodes.

What the other programs find, the lesson itself asserts: on two ranks, and for checkpoints on one and three.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
SMALL = ("--width", "64", "--layers", "1", "--length", "16")

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not dist.is_gloo_available(), reason="needs torch.distributed with gloo"),
]


@contextlib.contextmanager
def started(*command: str, launcher: tuple[str, ...] = ("--standalone",)) -> Iterator[subprocess.Popen[str]]:
    """torchrun in the notebooks' folder, without GPUs. Nothing of it is left afterwards."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *launcher, *command],
        cwd=NOTEBOOKS,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for each in tree:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        process.wait()


def torchrun(ranks: int, program: str, *args: str) -> str:
    """What the program printed; it has to succeed."""
    with started(f"--nproc-per-node={ranks}", f"scripts/{program}", *args) as process:
        output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    return output


def number(output: str, before: str) -> float:
    """The number after some words."""
    found = re.search(re.escape(before) + r" ?:? ?(-?[\d.]+(?:e[-+]?\d+)?)", output)
    assert found, f"{before!r} is not in:\n{output}"
    return float(found[1])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_training_shares_what_the_strategy_shares(ranks: int):
    output = torchrun(ranks, "fsdp_train.py", *SMALL, "--steps", "3", "--strategies", "DDP", "FSDP")
    parameters = number(output, "parameters")
    (memory,) = re.findall(r"^memory: (.*)$", output, re.MULTILINE)
    ddp, fsdp = memory.split("FSDP")
    assert number(ddp, "weights") == 4 * parameters
    # The embedding's rows may not come out even; rank 0 then has one more.
    assert 4 * parameters <= ranks * number(fsdp, "weights") < 4.2 * parameters
    assert ranks * number(fsdp, "optimizer state") < 8.5 * parameters
    (losses,) = re.findall(r"^losses: (.*FSDP.*)$", output, re.MULTILINE)
    last = [float(value) for value in re.findall(r"the last ([\d.]+)", losses)]
    assert len(last) == 3
    assert last == pytest.approx([last[0]] * 3, rel=1e-3)
    (traffic,) = re.findall(r"^traffic: (.*)$", output, re.MULTILINE)
    # The block is gathered for each pass. What is in the root stays gathered: that is the default of torch 2.13.
    assert number(f"{traffic}, allgather calls 0", "allgather calls") == (3 if ranks > 1 else 0)


def test_two_nodes_meet_and_train_as_one(tmp_path: Path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    node = (
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=localhost:{port}",
        f"--rdzv-id={tmp_path.name}",
    )
    train = ("scripts/fsdp_train.py", *SMALL, "--steps", "3", "--strategies", "FSDP")
    with started(*train, launcher=node) as first, started(*train, launcher=node) as second:
        outputs = [process.communicate(timeout=200)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], "\n".join(outputs)
    (memory,) = re.findall(r"^memory: (.*)$", "".join(outputs), re.MULTILINE)  # rank 0 alone speaks
    parameters = number("".join(outputs), "parameters")
    assert 4 * parameters <= 2 * number(memory, "weights") < 4.2 * parameters
