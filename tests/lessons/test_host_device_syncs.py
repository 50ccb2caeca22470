"""`host_device_syncs`: its mode for waits, its two trainings, its late value, its reading of a profile."""

from __future__ import annotations

import contextlib
import inspect
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_utils.lessons.host_device_syncs import cases
from tests.lessons.pasted import pasted

# The mode that names the lines


@pytest.fixture
def mode() -> dict[str, Any]:
    """The three cells to paste."""
    return pasted("host_device_syncs", "waits-helpers", "texts", "waits")


def lines_of(mode: dict[str, Any], run: Any) -> list[str]:
    with mode["Waits"](), mode["Texts"]():
        run()
    return [line for _, line in mode["waits"]]


def test_the_mode_names_the_line_of_each_wait_and_no_other(mode: dict[str, Any]):
    x, n = torch.ones(4, device="meta"), torch.ones(4, dtype=torch.long, device="meta")
    weight = nn.Parameter(torch.ones(4, device="meta"))
    optimizer = torch.optim.AdamW([weight])

    def run():
        (x * weight).sum().backward()
        weight[n].sum().backward()
        x[x > 0] = 1.0
        chosen = weight[x > 0]  # waits
        chosen.sum().backward()  # waits
        nn.utils.clip_grad_norm_([weight], 1.0)
        optimizer.step()
        x.sum().item()  # waits
        x.tolist()  # waits
        str(x)  # waits
        str(torch.ones(1))
        f"{x.sum():.3f}"  # waits
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
        nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)  # waits

    waiting = [line.strip() for line in inspect.getsource(run).splitlines() if line.endswith("# waits")]
    assert set(lines_of(mode, run)) == set(waiting)


def test_a_step_counter_that_was_moved_to_the_gpu_is_read(mode: dict[str, Any]):
    weight = nn.Parameter(torch.ones(4, device="meta"))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight])
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
        (lambda x: x[x > 0].view(5, 3), 1),
        (lambda x: x[x > 0].topk(20), 1),  # too many: a real error, and no second wait
        (lambda x: torch.distributions.Normal(x, x, validate_args=True), 2),
        (lambda x: torch.distributions.Normal(x, x, validate_args=False).sample(), 0),  # waits on a GPU: it is missed
    ],
)
def test_a_selection_takes_all_and_arguments_are_valid(mode: dict[str, Any], after: Any, count: int):
    x = torch.ones(15, device="meta")
    with contextlib.suppress(RuntimeError):
        lines_of(mode, lambda: after(x))
    assert len(mode["waits"]) == count


def test_a_guard_passes_only_after_all(mode: dict[str, Any]):
    x = torch.ones(4, device="meta")
    with mode["Waits"]():
        passes = [bool(x.sum() > 0), torch.allclose(x, x), bool(torch.isfinite(x).all())]
    assert passes == [False, False, True]
    assert len(mode["waits"]) == 3


def test_both_trainings_leave_the_same_weights():
    weights = []
    for name in ("usual", "mended"):
        training = pasted("host_device_syncs", f"def {name}(", F=F, math=math, torch=torch)[name]
        model, *rest = cases.new_run("cpu")
        training(model, *rest)
        weights.append(model[-1].weight)
    torch.testing.assert_close(*weights)


def test_the_mended_training_shows_the_mean_of_its_last_ten_losses_and_stops_at_nan():
    mended, shown = pasted("host_device_syncs", "def mended(", F=F, math=math)["mended"], []
    model, optimizer, batches, _ = cases.new_run("cpu")
    bar = SimpleNamespace(set_postfix=lambda loss: shown.append(loss))
    mended(model, optimizer, iter(batches * 3), bar)
    assert len(shown) == 3
    assert shown[2] < shown[1] < shown[0] < 3  # a mean since the start, divided by ten, would grow
    model[0].weight.data[0] = float("nan")
    with pytest.raises(AssertionError):
        mended(model, optimizer, iter(batches), bar)


# What else is there to paste


def test_a_late_value_comes_one_call_later():
    late = pasted("host_device_syncs", "class LateValue")["LateValue"]()
    value = torch.tensor(1.0, requires_grad=True)
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
    monkeypatch.setattr(torch.profiler.profile, "events", lambda self: events)
    pasted("host_device_syncs", "from torch.profiler import", torch=torch)
    assert "1.5 ms of 4.0 ms" in capsys.readouterr().out
