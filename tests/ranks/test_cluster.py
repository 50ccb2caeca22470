"""Simulated clusters: against real ranks, against formulas, and when they fail."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from course_utils.materials.models import GPT, Llama
from course_utils.ranks.cluster import (
    CHOICES,
    CLUSTER_PARTS,
    ClusterError,
    ClusterPoint,
    GPTShape,
    settings_of,
    simulate_points,
    stored_check,
)
from course_utils.ranks.launch import run_ranks
from course_utils.ranks.memory import RankMemory

ROOT = Path(__file__).resolve().parents[2]
SMALL = GPTShape(width=64, layers=3, heads=2, vocabulary=128, context=32)
LLAMA = GPTShape(width=64, layers=6, heads=4, vocabulary=128, context=32, kv_heads=2, hidden=96)
# What real ranks are asked. The simulation of it has gloo's copies.
REAL = [
    *settings_of(SMALL, ranks=2, strategies=CHOICES["strategy"], batch=2, backend="gloo"),
    *settings_of(SMALL, ranks=2, strategies="fsdp", batch=2, backend="gloo", checkpointing=True, optimizer="fused"),
]
PLAN = settings_of(SMALL, ranks=[2, 8], strategies=CHOICES["strategy"])


@pytest.fixture(scope="module")
def simulated() -> dict[str, list[ClusterPoint]]:
    """All that is simulated, by one child: starting one takes longer than most points."""
    points = simulate_points(PLAN + REAL)
    return {"plan": points[: len(PLAN)], "real": points[len(PLAN) :]}


def test_a_shape_knows_its_models_parameters() -> None:
    for shape, kind in ((SMALL, GPT), (LLAMA, Llama)):
        sizes = {key: size for key, size in dataclasses.asdict(shape).items() if size is not None}
        with torch.device("meta"):
            model = kind(**sizes)
        assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())


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


def test_parts_are_what_the_strategies_promise(simulated: dict[str, list[ClusterPoint]]) -> None:
    size = 4 * SMALL.parameters
    plan = {(point.strategy, point.ranks): point for point in simulated["plan"]}
    for (_, ranks), point in plan.items():
        # All sizes of this model can be divided by 8: no padding. AdamW has a counter for each of 40 weights.
        assert point.largest["weights"] == point.largest["gradients"] == size / ranks
        assert point.largest["optimizer"] == 2 * size / ranks + 4 * 40
        assert sum(point.at_peak.values()) == point.peak_bytes
        assert point.peak_phase in ("forward", "backward", "optimizer step")
    # What is gathered stays for one block at a time, or for all.
    assert plan["fsdp", 8].peak_bytes < plan["fsdp_no_reshard", 8].peak_bytes


def test_a_line_through_two_depths_leads_to_a_whole_model() -> None:
    (point,) = settings_of(LLAMA, ranks=4, strategies="fsdp", checkpointing=True, batch=64)
    code = (
        "import json, sys; from course_utils.ranks import cluster_step as step; point = json.loads(sys.argv[1]);"
        "whole, line = step._simulated(point), step.simulate(point);"
        "print(json.dumps([[whole.largest, whole.at_peak, whole.peak_bytes], [line[k] for k in"
        " ('largest', 'at_peak', 'peak_bytes')]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(point)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    whole, line = json.loads(done.stdout)
    assert whole == line


@pytest.mark.slow
@pytest.mark.serial
def test_real_ranks_hold_what_was_predicted(simulated: dict[str, list[ClusterPoint]]) -> None:
    program = ROOT / "tests" / "rank_programs" / "step_memory.py"
    # The step with the lowest peak counts. On a busy machine gloo's threads may hold a buffer in each of three.
    for steps in (3, 15):
        run = run_ranks(program, ranks=2, args=[json.dumps(REAL), steps], backend="gloo", timeout_s=280)
        of_ranks = zip(*run.values("measured").values(), strict=True)
        found = [max(both, key=lambda rank: rank["peak"]) for both in of_ranks]
        pairs = [*zip(simulated["real"], found, strict=True)]
        if all(point.peak_bytes == pytest.approx(measured["peak"], rel=0.02) for point, measured in pairs):
            break
    for point, measured in pairs:
        # PyTorch's own tracker sees the same storages.
        assert measured["by torch"]["weights"] == measured["weights"]
        assert measured["by torch"]["optimizer"] == measured["optimizer"]
        assert measured["by torch"]["peak"] == pytest.approx(measured["peak"], rel=0.02)
        assert point.peak_bytes == pytest.approx(measured["peak"], rel=0.02)
        least = max(measured[part] for part in CLUSTER_PARTS) / 100
        for part in CLUSTER_PARTS:
            assert abs(point.largest[part] - measured[part]) <= 0.05 * max(measured[part], least)


def test_the_stored_check_was_right_to_the_byte() -> None:
    points = stored_check()
    assert {(point.strategy, point.ranks) for point in points} == {
        (way, ranks) for way in CHOICES["strategy"] for ranks in (2, 3, 4)
    }
    assert all(point.simulated["peak"] == point.measured["peak"] for point in points)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": [8, -1]}, "ranks is a whole number of at least 1, got -1"),
        ({"strategies": "zero3"}, "no strategy 'zero3'; there are: fsdp, fsdp_no_reshard"),
        ({"length": 33}, "context of 32, got 33"),
        ({"lenght": 5}, r"there is no 'lenght' \(did you mean 'length'\?\)"),
    ],
)
def test_arguments_that_make_no_sense(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings_of(**{"model": SMALL, "ranks": [2], "strategies": ["fsdp"], **change})


def test_a_simulation_that_ends_early_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"  # to start in place of the interpreter
    program.write_text("#!/bin/sh\necho 'the last word' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ClusterError, match=r"with exit code 3\. It said last: the last word"):
        simulate_points(PLAN)


_INTERRUPTED = """
from course_utils.ranks.cluster import GPTShape, settings_of, simulate_points
print("started", flush=True)
simulate_points(settings_of(GPTShape(4096, 200, 32, 32000, 2048), ranks=8, strategies="fsdp"))
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
