"""The programs of lesson 18 as a learner runs them: from a shell, with torchrun, on 1 and 3 ranks and on two nodes.

What the other programs find, the lesson itself asserts: on two ranks, and for checkpoints on one and three.
"""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.launches import outputs_of

TRAIN = (
    *("scripts/fsdp_train.py", "--width", "64", "--layers", "1", "--length", "16"),
    *("--steps", "3", "--strategies", "DDP", "FSDP"),
)

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not dist.is_gloo_available(), reason="needs torch.distributed with gloo"),
]


def torchrun(*args: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *args]


def number(output: str, before: str) -> float:
    """The number after some words."""
    found = re.search(re.escape(before) + r" ?:? ?(-?[\d.]+(?:e[-+]?\d+)?)", output)
    assert found, f"{before!r} is not in:\n{output}"
    return float(found[1])


def check_training(output: str, ranks: int) -> None:
    """Rank 0 alone speaks, and what it found is what the strategies promise."""
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


@pytest.mark.parametrize("ranks", [1, 3])
def test_training_shares_what_the_strategy_shares(ranks: int):
    (output,) = outputs_of(torchrun("--standalone", f"--nproc-per-node={ranks}", *TRAIN))
    check_training(output, ranks)


def test_two_nodes_meet_and_train_as_one(tmp_path: Path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    node = torchrun(
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=localhost:{port}",
        f"--rdzv-id={tmp_path.name}",
        *TRAIN,
    )
    check_training("".join(outputs_of(node, node)), ranks=2)
