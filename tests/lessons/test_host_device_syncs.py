"""Lesson 03: its timeline against formulas and the played GPU, its mode for waits, and its value that comes late."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_utils.lessons.host_device_syncs.checks import check_clip, check_step_s
from course_utils.lessons.host_device_syncs.timeline import KERNELS, PREPARES, WAITS, simulate_loop
from course_utils.records.notebook_files import read_notebook
from tests.played_cuda.scripted import ScriptedCuda

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "03_host_device_syncs.ipynb"
SOURCES = [cell["source"] for cell in read_notebook(NOTEBOOK)["cells"]]


def defined(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(source, names)
    return names


# The timeline


@pytest.mark.parametrize(("prepare_s", "gpu_s"), [(1e-3, 4e-3), (4e-3, 1e-3), (2e-3, 2e-3), (0.0, 3e-3)])
@pytest.mark.parametrize("read_every", [1, 5, 20])
def test_a_step_takes_the_longer_part_and_its_share_of_the_shorter_one(prepare_s: float, gpu_s: float, read_every: int):
    step_s = simulate_loop(20, prepare_s, gpu_s, read_every).step_s
    assert math.isclose(step_s, max(prepare_s, gpu_s) + min(prepare_s, gpu_s) / read_every)


@pytest.mark.parametrize("read_every", [1, 3, 12])
@pytest.mark.parametrize(("prepare_s", "gpu_s", "kernels"), [(1e-3, 4e-3, 10), (2e-3, 5e-5, 7), (0.0, 2e-5, 40)])
def test_the_timeline_is_that_of_the_played_gpu(prepare_s: float, gpu_s: float, kernels: int, read_every: int):
    gpu, steps = ScriptedCuda(), 12
    begun_s = gpu.host_s
    for step in range(1, steps + 1):
        gpu.host(prepare_s)
        for _ in range(kernels):
            gpu.kernel(gpu_s / kernels)
        if step % read_every == 0:
            gpu.synchronize()
    costs = {"launch_s": gpu.launch_s, "latency_s": gpu.latency_s, "read_s": gpu.synchronize_s}
    timeline = simulate_loop(steps, prepare_s, gpu_s, read_every, kernels=kernels, **costs)
    assert math.isclose(timeline.step_s * steps, gpu.host_s - begun_s, rel_tol=1e-9)


def test_what_a_read_costs_is_at_most_the_gap_after_it():
    for kernels in (1, 10, 100):
        costs = {"kernels": kernels, "launch_s": 1e-5, "latency_s": 3e-6}
        read, free = (simulate_loop(100, 1e-3, 4e-3, every, **costs) for every in (1, 100))
        first = [span for span in read.gpu if span.what == KERNELS][::kernels]
        last = read.gpu[kernels - 1 :: kernels]
        gap_s = max(begin.start_s - end.end_s for begin, end in zip(first[1:], last, strict=False))
        assert 0 < read.step_s - free.step_s <= gap_s + 1e-9


def test_no_lane_does_two_things_at_once():
    timeline = simulate_loop(6, 1e-3, 2e-3, 2, kernels=3, launch_s=1e-5)
    for spans in (timeline.python, timeline.gpu):
        assert all(after.start_s >= before.end_s - 1e-12 for before, after in pairwise(spans))
    assert [span.what for span in timeline.python].count(WAITS) == 3
    assert [span.what for span in timeline.python].count(PREPARES) == 6


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"read_every": 0}, {"kernels": 0}])
def test_a_loop_has_steps(wrong: dict[str, int]):
    with pytest.raises(ValueError, match="at least 1"):
        simulate_loop(**{"steps": 2, "prepare_s": 0.0, "gpu_s": 1.0, "read_every": 1} | wrong)


# The mode that names the lines


@pytest.fixture
def mode() -> dict[str, Any]:
    """The cell to paste."""
    return defined(next(source for source in SOURCES if "class Waits(" in source))


def lines_of(mode: dict[str, Any], run: Any) -> list[str]:
    with mode["Waits"]():
        run()
    return [line for _, line in mode["waiting"]]


def test_the_mode_names_the_line_of_each_wait_and_no_other(mode: dict[str, Any]):
    x, n = torch.ones(4, device="meta"), torch.ones(4, dtype=torch.long, device="meta")
    weight = nn.Parameter(torch.ones(4, device="meta"))
    optimizer = torch.optim.AdamW([weight])

    def run():
        (x * weight).sum().backward()
        nn.utils.clip_grad_norm_([weight], 1.0)
        optimizer.step()
        x.sum().item()  # waits
        x.tolist()  # waits
        x.cpu().numpy()  # waits
        x[x > 0]  # waits
        x[n]
        x.unique()  # waits
        torch.equal(x, x)  # waits
        torch.where(x > 0)  # waits
        torch.where(x > 0, x, 0.0)
        n.repeat_interleave(n)  # waits
        n.repeat_interleave(n, output_size=4)
        F.one_hot(n)  # waits
        F.one_hot(n, 3)
        assert not x.isnan().any()  # waits
        x.detach()
        torch.stack([x, x])
        nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)  # waits

    waiting = [line.strip() for line in inspect.getsource(run).splitlines() if line.endswith("# waits")]
    assert set(lines_of(mode, run)) == set(waiting)


def test_the_mode_sees_the_scaler_wait(mode: dict[str, Any]):
    weight = nn.Parameter(torch.ones(4, device="meta"))
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD([weight])

    def run():
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    assert lines_of(mode, run) == ["scaler.step(optimizer)"]


def test_a_real_error_stays_one(mode: dict[str, Any]):
    with mode["Waits"](), pytest.raises(RuntimeError, match="shapes"):
        torch.ones(2, 3, device="meta") @ torch.ones(2, 3, device="meta")


# Answers of another form


@pytest.mark.parametrize(
    "answer",
    [
        lambda g, most: g * torch.clamp(most / (g.norm() + 1e-6), max=1.0),
        lambda g, most: torch.where(g.norm() > most, g * most / g.norm(), g),
        lambda g, most: g.mul_((most / g.norm()).clamp(max=1)),
        lambda g, most: g / (g.norm() / most).clamp(min=1),
        lambda g, most: g * torch.minimum(most / g.norm(), torch.ones_like(g.norm())),
        lambda g, most: g * torch.minimum(most / g.norm(), torch.ones((), device=g.device)),
        lambda g, most: g * torch.minimum(most / g.norm(), torch.tensor(1.0)),  # a GPU takes a scalar of the CPU
    ],
)
def test_a_gradient_is_clipped_in_many_ways(answer: Any):
    assert check_clip(answer).outcome == "right"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda g, most: g * (most / g.norm()).clamp(max=0.5), "was to have 1|comes out changed"),
        (lambda g, most: g.norm(), "same shape"),
        (lambda g, most: None, "return"),
        (lambda g, most: g * most.item(), "has no attribute 'item'"),
        (lambda g, most: g * min(1.0, most / g.norm().item()), r"in line \d+, `.*meta.*wait there"),
        (lambda g, most: g * most / g.norm() if g.norm() > most else g, r"in line \d+, `.*meta.*wait there"),
        (lambda g, most: g / g.norm() if most < g.norm().cpu() else g, r"in line \d+, `.*meta.*wait there"),
        (lambda g, most: g * torch.minimum(most / g.norm(), torch.tensor(1.0).to(g.device)), "waits for such a copy"),
        (lambda g, most: g * torch.minimum(most / g.norm(), g.new_tensor(1.0)), "waits for such a copy"),
        (lambda g, most: g * (most / g.norm(dim=1, keepdim=True)).clamp(max=1), "each row or column"),
    ],
)
def test_what_clips_in_no_way_is_told_so(answer: Any, words: str):
    feedback = check_clip(answer)
    assert feedback.outcome == "not yet"
    assert re.search(words, feedback.words)


def test_the_time_of_a_step_in_other_words():
    assert check_step_s(lambda p, g, n: ((n - 1) * max(p, g) + p + g) / n).outcome == "right"
    assert "side by side" in check_step_s(lambda p, g, n: 2 * max(p, g)).words


# What else is there to paste


def test_warnings_are_named_by_the_line_of_the_program(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    modes = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    print_waits = defined(next(source for source in SOURCES if "def print_waits(" in source))["print_waits"]

    def step():
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)  # here
        warnings.warn("something else", stacklevel=1)
        raise KeyError

    with pytest.raises(KeyError):
        print_waits(step)
    assert re.fullmatch(r".*test_host_device_syncs\.py:\d+ warnings\.warn\(.*# here\n", capsys.readouterr().out)
    assert modes == ["warn", "default"]


def test_a_late_value_comes_one_call_later():
    (code,) = re.findall(r"```python\n(class LateValue.*?)```", "\n".join(SOURCES), re.DOTALL)
    late, value = defined("import torch\n\n\n" + code)["LateValue"](), torch.tensor(1.0, requires_grad=True)
    given = []
    for number in (3.0, 2.0, 1.0):
        given.append(late(value * number))
    assert given == [None, 3.0, 2.0]
    buffer = torch.tensor(5.0)
    late(buffer)
    buffer.zero_()  # the loop goes on, and writes into what was sent
    assert late(buffer) == 5.0
