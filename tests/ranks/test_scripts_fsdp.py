"""The program of `fsdp` as a learner runs it: from a shell, with torchrun, on two nodes with 1 and 2 ranks.

What the other programs find, the lesson itself asserts: on two ranks, and for checkpoints on one and three.
"""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest

from tests.launches import outputs_of

TRAIN = (
    *("scripts/fsdp_train.py", "--width", "64", "--layers", "1", "--length", "16"),
    *("--steps", "3", "--strategies", "DDP", "FSDP"),
)


def number(output: str, before: str) -> float:
    """The number after some words."""
    match = re.search(re.escape(before) + r" ?:? ?(-?[\d.]+(?:e[-+]?\d+)?)", output)
    assert match, f"{before!r} is not in:\n{output}"
    return float(match[1])


@pytest.mark.timeout(300)
def test_two_nodes_meet_train_as_one_and_share_what_the_strategy_shares(tmp_path: Path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", f"--rdzv-id={tmp_path.name}")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nnodes=2", *meeting)
    output = "".join(outputs_of(*((*torchrun, f"--nproc-per-node={own}", *TRAIN) for own in (1, 2))))

    # Rank 0 alone speaks, and what it found is what the strategies promise.
    ranks, parameters = 3, number(output, "parameters")
    (memory,) = re.findall(r"^memory: (.*)$", output, re.MULTILINE)
    ddp, fsdp = memory.split("FSDP")
    assert number(ddp, "weights") == 4 * parameters
    # The embedding's rows do not come out even; rank 0 then has one more.
    assert 4 * parameters <= ranks * number(fsdp, "weights") < 4.2 * parameters
    assert ranks * number(fsdp, "optimizer state") < 8.5 * parameters
    (losses,) = re.findall(r"^losses: (.*FSDP.*)$", output, re.MULTILINE)
    last = [float(value) for value in re.findall(r"the last ([\d.]+)", losses)]
    assert len(last) == 3
    assert last == pytest.approx([last[0]] * 3, rel=1e-3)
    (traffic,) = re.findall(r"^traffic: (.*)$", output, re.MULTILINE)
    # The block is gathered for each pass. What is in the root stays gathered: that is the default of torch 2.13.
    assert number(traffic, "allgather calls") == 3
