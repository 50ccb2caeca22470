"""`gradient_accumulation`: the code to paste gives the gradient of the batch; another right loop."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch.nn.functional import mse_loss

from course_utils.lessons.gradient_accumulation import cases
from course_utils.lessons.gradient_accumulation.checks import check_train
from course_utils.ranks.launch import run_ranks
from tests.lessons.pasted import pasted, source

PROGRAM = Path(__file__).parents[1] / "rank_programs" / "accumulate.py"


def mean_of_means(model, group):
    for inputs, targets in group:
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        (loss / len(group)).backward()


def test_the_self_test_tells_the_pasted_loop_from_the_usual_one():
    code = pasted("gradient_accumulation", "def accumulate(", F=torch.nn.functional, torch=torch)
    exec(source("gradient_accumulation", "def off_by(").partition("\n\n\ntexts = ")[0], code)
    inputs, targets = map(torch.cat, zip(*cases.parts_of_text(0), strict=True))
    assert code["off_by"](code["accumulate"], cases.small_gpt(), inputs, targets) < 1e-5
    assert code["off_by"](mean_of_means, cases.small_gpt(), inputs, targets) > 0.1
    targets[8:16] = -100  # nothing counts in the second part
    assert code["off_by"](code["accumulate"], cases.small_gpt(), inputs, targets) < 1e-5
    targets[:] = -100
    assert code["accumulate"](model := cases.small_gpt(), [(inputs, targets)]) == 0
    assert all(weight.grad.abs().max() == 0 for weight in model.parameters())


def test_two_ranks_send_once_and_get_the_gradient_of_one_process():
    for found in run_ranks(PROGRAM, ranks=2, threads_per_rank=1, backend="gloo", show_output=False):
        assert found["off"] < 1e-4
        assert found["sent"] == pytest.approx(found["bytes"], rel=0.01)


def test_the_schedule_waits_where_the_scaler_skips_a_step():
    step = pasted("gradient_accumulation", "def step(")["step"]
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-30)
    with warnings.catch_warnings(action="error"):  # "Detected call of `lr_scheduler.step()` before `optimizer.step()`"
        for large in (1e30, 1.0, 1.0):  # the first overflows
            scaler.scale(model(torch.full((2, 4), large)).sum()).backward()
            step(model, optimizer, schedule, scaler)
    assert schedule.last_epoch == 2 == next(iter(optimizer.state.values()))["step"]


def test_another_right_loop_that_looks_first_is_right():
    def divides_gradients(model, batches, optimizer, parts, max_norm):
        with torch.no_grad():  # holds nothing
            assert all(model(inputs).isfinite().all() for inputs, _ in batches)
        samples = 0
        for number, (inputs, targets) in enumerate(batches, start=1):
            mse_loss(model(inputs), targets, reduction="sum").backward()
            samples += len(targets)
            if number % parts == 0 or number == len(batches):
                for weight in model.parameters():
                    weight.grad /= samples
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                optimizer.step()
                optimizer.zero_grad()
                samples = 0

    assert check_train(divides_gradients).outcome == "right"
