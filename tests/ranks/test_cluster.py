"""Simulated clusters: against real ranks, against formulas, and when they fail."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from course_utils.materials.models import Llama
from course_utils.ranks import cluster_step
from course_utils.ranks.cluster import (
    CLUSTER_PARTS,
    ClusterError,
    ClusterMemory,
    ClusterStep,
    LlamaShape,
    simulate_steps,
    stored_check,
)
from course_utils.ranks.launch import run_ranks
from course_utils.ranks.memory import RankMemory

ROOT = Path(__file__).resolve().parents[2]
SMALL = LlamaShape(width=64, layers=3, heads=4, vocabulary=128, context=32, hidden=96, kv_heads=2)
# What real ranks are asked. The simulation of it has gloo's copies.
REAL = [
    ClusterStep(SMALL, ranks=2, batch=2, backend="gloo"),
    ClusterStep(SMALL, ranks=2, batch=2, backend="gloo", checkpointing=True, optimizer="fused"),
]
PLAN = [ClusterStep(SMALL, ranks) for ranks in (2, 8)]


@pytest.fixture(scope="module")
def simulated() -> list[ClusterMemory]:
    """All that is simulated, by one child: starting one takes longer than most steps."""
    return simulate_steps(PLAN + REAL)


def test_a_shape_knows_its_models_parameters() -> None:
    with torch.device("meta"):
        model = Llama(**dataclasses.asdict(SMALL))
    assert SMALL.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_followed_memory_is_told_apart_by_what_it_became() -> None:
    with RankMemory() as memory:
        model = nn.Linear(1000, 1000, bias=False)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for _ in range(2):
            with memory.step(model, optimizer):
                memory.phase("forward")
                optimizer.zero_grad()
                y = model(torch.ones(3000, 1000))
                memory.phase("backward")
                y.sum().backward()
                del y
                memory.phase("optimizer step")
                optimizer.step()
    step = memory.last_step
    lasting = {part: size // 10**6 for part, size in step.largest.items() if part != "activations"}
    assert lasting == {"weights": 4, "gradients": 4, "optimizer": 8, "gathered": 0}
    assert sum(step.at_peak.values()) == step.peak_bytes
    # Input and output, 12 MB each, and what the backward pass makes of them.
    assert 24 * 10**6 <= step.largest["activations"] < 40 * 10**6
    assert step.peak_phase in ("forward", "backward")


def test_parts_are_what_the_strategy_promises(simulated: list[ClusterMemory]) -> None:
    size = 4 * SMALL.parameters
    for step, memory in zip(PLAN, simulated, strict=False):
        # All sizes of this model can be divided by 8: no padding. AdamW has a counter for each of 30 weights.
        assert memory.largest["weights"] == memory.largest["gradients"] == size / step.ranks
        assert memory.largest["optimizer"] == 2 * size / step.ranks + 4 * 30
        assert sum(memory.at_peak.values()) == memory.peak_bytes
        assert memory.peak_phase in ("forward", "backward", "optimizer step")


def test_a_line_through_two_depths_leads_to_a_whole_model() -> None:
    step = ClusterStep(dataclasses.replace(SMALL, layers=6), ranks=4, batch=64, checkpointing=True)
    whole, line = cluster_step.simulate_whole(step), cluster_step.simulate(step)
    assert (whole.largest, whole.at_peak, whole.peak_bytes) == (line.largest, line.at_peak, line.peak_bytes)


@pytest.mark.slow
@pytest.mark.serial
def test_real_ranks_hold_what_was_predicted(simulated: list[ClusterMemory]) -> None:
    program = ROOT / "tests" / "rank_programs" / "step_memory.py"
    asked = json.dumps([dataclasses.asdict(step) for step in REAL])
    # The step with the lowest peak counts. On a busy machine gloo's threads may hold a buffer in each of three.
    for steps in (3, 12):
        run = run_ranks(program, ranks=2, args=[asked, steps], backend="gloo", timeout_s=280)
        of_ranks = zip(*run.values("measured").values(), strict=True)
        found = [max(both, key=lambda rank: rank["peak"]) for both in of_ranks]
        pairs = [*zip(simulated[len(PLAN) :], found, strict=True)]
        if all(point.peak_bytes == pytest.approx(measured["peak"], rel=0.02) for point, measured in pairs):
            break
    for point, measured in pairs:
        assert point.peak_bytes == pytest.approx(measured["peak"], rel=0.02)
        least = max(measured[part] for part in CLUSTER_PARTS) / 100
        for part in CLUSTER_PARTS:
            assert abs(point.largest[part] - measured[part]) <= 0.05 * max(measured[part], least)
    for of_rank in run:  # PyTorch's own tracker sees the same storages
        ours, theirs = of_rank["measured"][0], of_rank["by torch"]
        assert (theirs["weights"], theirs["optimizer"]) == (ours["weights"], ours["optimizer"])
        assert theirs["peak"] == pytest.approx(ours["peak"], rel=0.02)


def test_the_stored_check_was_right_to_the_byte() -> None:
    points = stored_check()
    assert {point["ranks"] for point in points} == {2, 3, 4}
    assert all(point["simulated"]["peak"] == point["measured"]["peak"] for point in points)


def test_a_simulation_that_ends_early_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"  # to start in place of the interpreter
    program.write_text("#!/bin/sh\necho 'the last word' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ClusterError, match=r"with exit code 3\. It said last: the last word"):
        simulate_steps(PLAN)


_INTERRUPTED = """
from course_utils.ranks.cluster import ClusterStep, LlamaShape, simulate_steps
print("started", flush=True)
simulate_steps([ClusterStep(LlamaShape(4096, 200, 32, 32000, 2048, 11008), ranks=8)])
"""


def test_ctrl_c_ends_the_simulation() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout.readline() == "started\n"
        deadline = time.monotonic() + 120
        while not (simulating := psutil.Process(parent.pid).children(recursive=True)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        parent.send_signal(signal.SIGINT)
        _, messages = parent.communicate(timeout=120)
        assert "KeyboardInterrupt" in messages
        gone, alive = psutil.wait_procs(simulating, timeout=120)
        assert gone
        assert not alive
    finally:
        parent.kill()
        parent.wait()
