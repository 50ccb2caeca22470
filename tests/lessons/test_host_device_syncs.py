"""`host_device_syncs`: its timeline against formulas and the played GPU, its mode for waits, its late value."""

from __future__ import annotations

import contextlib
import inspect
import math
import re
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_utils.lessons.host_device_syncs.checks import check_clip, check_step_s
from course_utils.lessons.host_device_syncs.timeline import KERNELS, simulate_loop
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook
from tests.played_cuda.scripted import ScriptedCuda

NOTEBOOK = find_lesson("host_device_syncs").path
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


def test_the_fold_beside_the_record_is_worked_out():
    def step_s(prepare_s: float, read_every: int) -> float:
        return simulate_loop(10, prepare_s, 8e-3, read_every).step_s

    shorter = [1 - step_s(prepare_s, 10) / step_s(prepare_s, 1) for prepare_s in (0, 2e-3, 8e-3, 16e-3)]
    words = "{:.0%}, {:.0%}, {:.0%} and {:.0%} shorter, for 0, 2, 8 and 16 ms".format(*shorter)
    assert words in "\n".join(SOURCES)


def test_what_a_read_costs_is_at_most_the_gap_after_it():
    for kernels in (1, 10, 100):
        costs = {"kernels": kernels, "launch_s": 1e-5, "latency_s": 3e-6}
        read, free = (simulate_loop(100, 1e-3, 4e-3, every, **costs) for every in (1, 100))
        first = [span for span in read.gpu if span.what == KERNELS][::kernels]
        last = read.gpu[kernels - 1 :: kernels]
        gap_s = max(begin.start_s - end.end_s for begin, end in zip(first[1:], last, strict=False))
        assert 0 < read.step_s - free.step_s <= gap_s + 1e-9


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


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}])
def test_a_step_counter_that_was_moved_to_the_gpu_is_read(mode: dict[str, Any], options: dict[str, bool]):
    weight = nn.Parameter(torch.ones(4, device="meta"))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight], **options)
    assert lines_of(mode, optimizer.step) == []
    optimizer.state[weight]["step"] = optimizer.state[weight]["step"].to("meta")
    assert lines_of(mode, optimizer.step) != []


def test_the_mode_sees_the_scaler_wait(mode: dict[str, Any]):
    weight = nn.Parameter(torch.ones(4, device="meta"))
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD([weight])

    def run():
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    assert lines_of(mode, run) == ["scaler.step(optimizer)"]


@pytest.mark.parametrize(
    ("after", "count"),
    [
        (lambda x: x[x > 0].topk(3), 1),
        (lambda x: x[x > 0].argmax(0), 1),
        (lambda x: x[x > 0][0], 1),
        (lambda x: x[x > 0].view(5, 3), 1),
        (lambda x: x.masked_select(x > 0).topk(3), 1),
        (lambda x: x[x > 0].topk(20), 1),  # too many: a real error, and no second wait
        (lambda x: torch.distributions.Normal(x, x, validate_args=True), 2),
        (lambda x: torch.distributions.Normal(x, x, validate_args=False), 0),
        (lambda x: torch.distributions.Normal(x, x, validate_args=False).sample(), 0),  # waits on a GPU: it is missed
    ],
)
def test_a_selection_takes_all_and_arguments_are_valid(mode: dict[str, Any], after: Any, count: int):
    x = torch.ones(15, device="meta")
    with contextlib.suppress(RuntimeError):
        lines_of(mode, lambda: after(x))
    assert len(mode["waiting"]) == count


@pytest.mark.parametrize(
    ("guard", "passes"),
    [
        (lambda x: torch.isfinite(x.sum()), False),
        (lambda x: x.sum() > 0, False),
        (lambda x: torch.allclose(x, x), False),
        (lambda x: torch.equal(x, x), False),
        (lambda x: torch.isfinite(x.sum()).all(), True),
    ],
)
def test_a_guard_passes_only_after_all(mode: dict[str, Any], guard: Any, passes: bool):
    x = torch.ones(4, device="meta")
    with mode["Waits"]():
        assert bool(guard(x)) == passes
    assert len(mode["waiting"]) == 1


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
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 2)
    print_waits = defined(next(source for source in SOURCES if "def print_waits(" in source))["print_waits"]

    def step():
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)  # here
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)  # here
        warnings.warn("something else", stacklevel=1)
        raise KeyError

    with pytest.raises(KeyError), pytest.warns(UserWarning, match="something else") as others:
        print_waits(step)
    line = r".*test_host_device_syncs\.py:\d+ warnings\.warn\(.*# here\n"
    assert re.fullmatch(line * 2, capsys.readouterr().out)
    assert len(others) == 1
    assert modes == ["warn", 2]  # it was the user's


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
    assert late() == 0.0  # the last one, after the loop
    assert late() is None


# The profile


def test_an_annotation_is_no_kernel_and_copies_count(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    def event(start: float, end: float, *, gpu: bool = True, annotation: bool = False) -> SimpleNamespace:
        kind = torch.autograd.DeviceType.CUDA if gpu else torch.autograd.DeviceType.CPU
        span = SimpleNamespace(start=start, end=end)
        return SimpleNamespace(device_type=kind, is_user_annotation=annotation, time_range=span)

    events = [
        event(0, 5000, annotation=True),
        event(0, 9000, gpu=False),
        event(3000, 4000),
        event(0, 1000),
        event(500, 1500),
    ]
    cell = next(source for source in SOURCES if "torch.profiler import" in source)
    monkeypatch.setattr(torch.profiler.profile, "events", lambda self: events)
    defined(cell)
    assert "1.5 ms, 38%," in capsys.readouterr().out
    events.clear()
    defined(cell)
    assert "no GPU" in capsys.readouterr().out
