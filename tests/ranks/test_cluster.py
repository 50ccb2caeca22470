"""Simulated clusters: against real ranks, against formulas, what happens when they fail."""

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
from course_utils.ranks import cluster
from course_utils.ranks.cluster import ClusterError, settings_of, simulate_cluster, stored_check
from course_utils.ranks.cluster_plan import CLUSTER_PARTS, ClusterPlan, GPTShape
from course_utils.ranks.launch import run_ranks
from course_utils.ranks.memory import RankMemory

ROOT = Path(__file__).resolve().parents[2]
SMALL = GPTShape(width=64, layers=2, heads=2, vocabulary=128, context=32)
# What real ranks are asked. The simulation of it has gloo's copies.
REAL = [
    point
    for more in ({"precision": "fp32"}, {"checkpointing": True, "optimizer": "loop"})
    for point in settings_of(SMALL, ranks=2, strategies=[*cluster.STRATEGIES], batch=2, backend="gloo", **more)
][:4]
REAL[-1]["strategy"] = "fsdp"


def key_of(point: dict[str, Any]) -> str:
    return json.dumps(point, sort_keys=True)


@pytest.fixture(scope="module")
def sizes() -> dict[str, dict[str, Any]]:
    """What one child says of the points of all tests: starting one takes longer than most points."""
    points = settings_of(SMALL, ranks=[2, 8], strategies=[*cluster.STRATEGIES], precision="fp32")
    points += settings_of(SMALL, ranks=1, strategies=["ddp", "fsdp"], precision="fp32")
    points += REAL
    return dict(zip(map(key_of, points), cluster._simulated(points), strict=True))


@pytest.fixture
def answered(sizes: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """No child is started: what is asked was answered already."""

    def look_up(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [sizes[key_of(point)] for point in points]

    monkeypatch.setattr(cluster, "_simulated", look_up)


@pytest.fixture
def plan(answered: None) -> ClusterPlan:
    return simulate_cluster(SMALL, ranks=[2, 8], strategies=[*cluster.STRATEGIES], precision="fp32")


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def sizes_of(shape: GPTShape) -> dict[str, int]:
    return {key: size for key, size in dataclasses.asdict(shape).items() if size is not None}


# The model, and the followed memory


def test_a_shape_knows_its_models_parameters() -> None:
    for shape, kind in ((GPTShape(96, 1, 3, 17, 5), GPT), (GPTShape(96, 2, 6, 17, 5, kv_heads=2, hidden=80), Llama)):
        with torch.device("meta"):
            model = kind(**sizes_of(shape))
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


def test_followed_memory_sees_storages_change_their_size_and_die() -> None:
    plain = torch.UntypedStorage.resize_
    model = nn.Linear(1, 1)
    with RankMemory() as memory:
        kept = torch.zeros(1000)
        with memory.step(model):
            kept.untyped_storage().resize_(0)
            other = torch.ones(10_000)
            view = other[10:].view(-1)
            del other
            assert view.numel() == 9990
            del view
            kept.untyped_storage().resize_(80_000)
        assert memory.last_step.largest["activations"] == 80_000
        with memory.step(model):
            kept.add_(1)
        assert memory.last_step.largest["activations"] == 80_000
    assert torch.UntypedStorage.resize_ is plain


# What is predicted


def test_parts_are_what_the_strategies_promise(plan: ClusterPlan) -> None:
    size = 4 * SMALL.parameters
    assert len(plan.points) == 6
    alone = simulate_cluster(SMALL, ranks=1, strategies=["ddp", "fsdp"], precision="fp32")
    for point in (*alone, *plan):
        split = {"ddp": 1}.get(point.strategy, point.ranks)
        # All sizes of this model can be divided by 8, apart from nothing: no padding.
        assert point.weights_bytes == point.gradients_bytes == size / split
        counters = 4 * sum(1 for _ in GPT(**sizes_of(SMALL)).parameters())
        assert point.optimizer_bytes == 2 * size / split + counters
        assert sum(point.at_peak.values()) == point.peak_bytes
        assert all(point.at_peak[part] <= point[part] for part in CLUSTER_PARTS)
        assert point.peak_phase in ("forward", "backward", "optimizer step")
    assert len({point.peak_bytes for point in plan if point.strategy == "ddp"}) == 1
    # What must be there at once: one block at a time, or all but the outer layers.
    assert plan["fsdp", 8].gathered_bytes < plan["fsdp_no_reshard", 8].gathered_bytes
    assert not torch.distributed.is_initialized()


def test_a_line_through_two_depths_leads_to_a_whole_model() -> None:
    deep = GPTShape(width=64, layers=9, heads=4, vocabulary=128, context=32, kv_heads=2, hidden=96)
    (point,) = settings_of(deep, ranks=4, strategies="fsdp", checkpointing=True, batch=64)
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


def test_seven_billion_parameters_on_1024_ranks_take_little_memory() -> None:
    code = (
        "import resource; from course_utils.ranks.cluster import simulate_cluster;"
        "from course_utils.ranks.cluster_plan import GPTShape;"
        "simulate_cluster(GPTShape(4096, 32, 32, 32000, 2048), ranks=1024, strategies='fsdp');"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=150
    )
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 10**9


# Measured ahead


def test_a_missing_and_a_damaged_check_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "package_root", lambda: tmp_path)
    with pytest.raises(cluster.RecordError, match="is missing or damaged"):
        stored_check()
    folder = tmp_path / "ranks" / "plans" / "cluster_memory"
    folder.mkdir(parents=True)
    (folder / "one.json").write_text('{"environment": {}')
    with pytest.raises(cluster.RecordError, match=r"one.json is missing or damaged .* Restore it"):
        stored_check()


# Against real ranks


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.usefixtures("answered")
def test_real_ranks_hold_what_was_predicted() -> None:
    program = ROOT / "tests" / "rank_programs" / "step_memory.py"
    # The step with the lowest peak counts. On a busy machine gloo's threads may hold a buffer in each of three.
    for steps in (3, 15):
        run = run_ranks(program, ranks=2, args=[json.dumps(REAL), steps], backend="gloo", timeout_s=280)
        pairs = []
        for of_ranks in zip(*(values["measured"] for values in run), strict=True):
            by_torch, by_us = ([rank[by] for rank in of_ranks] for by in ("torch", "rank_memory"))
            pairs.append([max(of, key=lambda rank: rank["peak"]) for of in (by_torch, by_us)])
        if all(by_us["peak"] == pytest.approx(by_torch["peak"], rel=0.02) for by_torch, by_us in pairs):
            break
    simulated = cluster.simulate_points(REAL)
    for point, (by_torch, by_us) in zip(simulated, pairs, strict=True):
        # PyTorch's tracker and ours agree on real tensors: they see the same storages.
        assert by_us["weights"] == by_torch["weights"]
        assert by_us["optimizer"] == by_torch["optimizer"]
        assert point.peak_bytes == pytest.approx(by_torch["peak"], rel=0.02)
        most = max(by_us.values())
        assert all(abs(point[part] - by_us[part]) <= 0.05 * max(by_us[part], most / 100) for part in CLUSTER_PARTS)


def test_the_stored_check_covers_every_strategy() -> None:
    points = stored_check()
    assert {(point.strategy, point.ranks) for point in points} == {
        (way, n) for way in cluster.STRATEGIES for n in (2, 3, 4)
    }
    assert all(point.simulated["peak"] == point.measured["peak"] for point in points)
    assert max(point.deviation for point in points) < 0.001


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": [8, -1]}, "ranks is a whole number of at least 1, got -1"),
        ({"strategies": "zero3"}, "no strategy 'zero3'; there are: ddp, fsdp_no_reshard, fsdp"),
        ({"model": GPTShape(64, 2, 2, kv_heads=1)}, "kv_heads is a Llama's"),
        ({"model": GPTShape(64, 2, 4, kv_heads=3, hidden=96)}, "multiple of kv_heads"),
        ({"length": 33}, "context of 32, got 33"),
        ({"model": GPTShape(65, 2, 2)}, "multiple of heads"),
        ({"strategy": "fsdp"}, r"there is no 'strategy' \(did you mean 'strategies'\?\)"),
        ({"layers": 5}, "there is no 'layers'"),
    ],
)
def test_arguments_that_make_no_sense(change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_simulated", None)  # nothing is started
    with pytest.raises(ValueError, match=message):
        simulate_cluster(**{"model": SMALL, "ranks": [2], "strategies": ["fsdp"], **change})


# What can go wrong


def test_a_simulation_that_ends_early_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()  # other tests' helpers
    program = tmp_path / "python"  # to start in place of the interpreter
    program.write_text("#!/bin/sh\necho 'the last word' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ClusterError, match=r"with exit code 3\. It said last: the last word"):
        simulate_cluster(SMALL, ranks=[2], strategies=["fsdp"])
    assert set(children()) <= set(before)


_INTERRUPTED = """
from course_utils.ranks.cluster import simulate_cluster
from course_utils.ranks.cluster_plan import GPTShape
print("started", flush=True)
simulate_cluster(GPTShape(4096, 200, 32, 32000, 2048), ranks=[8])
"""


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_the_child_does_not_outlive_its_parent(sign: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout.readline() == "started\n"
        waiting = psutil.Process(parent.pid)
        deadline = time.monotonic() + 120
        while not (simulating := waiting.children(recursive=True)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(0.5)
        parent.send_signal(sign)
        _, messages = parent.communicate(timeout=120)
        assert ("KeyboardInterrupt" in messages) == (sign == signal.SIGINT)
        gone, alive = psutil.wait_procs(simulating, timeout=120)
        assert gone
        assert not alive
    finally:
        parent.kill()
        parent.wait()
