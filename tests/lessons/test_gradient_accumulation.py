"""`gradient_accumulation`: the code to paste gives the gradient of the batch; what parts hold; another right loop."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from authoring.reference_pages import code_blocks, reference_pages
from course_utils.lesson_notebooks import find_lesson, read_notebook
from course_utils.lessons.gradient_accumulation import cases
from course_utils.lessons.gradient_accumulation.checks import check_train
from course_utils.ranks.launch import run_ranks

PROGRAM = Path(__file__).parents[1] / "rank_programs" / "accumulate.py"


@pytest.fixture(autouse=True)
def _one_thread():
    """Two wait for each other longer than these small models compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pasted(*starts: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    sources = [cell["source"] for cell in read_notebook(find_lesson("gradient_accumulation").path)["cells"]]
    for start in starts:
        source = next(source for source in sources if start in source)
        exec(source.partition("\n\n\ntexts = ")[0], scope)
    return scope


def mean_of_means(model, group):
    for inputs, targets in group:
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        (loss / len(group)).backward()


def test_the_self_test_tells_the_pasted_loop_from_the_usual_one():
    code = pasted("def accumulate(", "def off_by(")
    inputs, targets = map(torch.cat, zip(*cases.parts_of_text(0), strict=True))
    assert code["off_by"](code["accumulate"], cases.small_gpt(), inputs, targets) < 1e-5
    assert code["off_by"](mean_of_means, cases.small_gpt(), inputs, targets) > 0.1
    targets[8:16] = -100  # nothing counts in the second part
    assert code["off_by"](code["accumulate"], cases.small_gpt(), inputs, targets) < 1e-5
    assert code["accumulate"](cases.small_gpt(), iter([(inputs, targets)])) > 0
    targets[:] = -100
    assert code["accumulate"](model := cases.small_gpt(), [(inputs, targets)]) == 0
    assert all(weight.grad.abs().max() == 0 for weight in model.parameters())


def test_two_ranks_send_once_and_get_the_gradient_of_one_process():
    for found in run_ranks(PROGRAM, ranks=2, threads_per_rank=1, backend="gloo", show_output=False):
        assert found["off"] < 1e-4
        assert found["sent"] == pytest.approx(found["bytes"], rel=0.01)


def test_the_mean_of_means_is_another_gradient_and_a_higher_loss(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cases, "STEPS", (0, 20))
    monkeypatch.setattr(cases, "BATCHES", 2)
    ways = {"right": lambda loss, own, tokens: loss / tokens, "wrong": lambda loss, own, tokens: loss / own / 4}
    first, last = cases.by_step(ways)
    assert first["another right batch"] < first["gradient off by"] > first["mild"]
    assert 0.1 < first["gradient off by"] < last["gradient off by"]
    assert first["loss, right"] == first["loss, wrong"]
    assert last["loss, right"] < last["loss, wrong"]


def test_a_peak_in_parts_lies_between_that_of_small_steps_and_that_at_once():
    rows = {row["32 texts"]: row["peak"] for row in cases.peaks(cases.PARTS, "cpu")}
    peaks = [rows[label] for label in ("4 steps", "4 parts", "2 parts", "at once")]
    assert peaks == sorted(set(peaks))


def test_the_schedule_waits_where_the_scaler_skips_a_step():
    page = next(page for page in reference_pages() if page.stem == "gradient_accumulation")
    exec(next(code for code in code_blocks(page) if "def step(" in code), scope := {})
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-30)
    with warnings.catch_warnings(action="error"):  # "Detected call of `lr_scheduler.step()` before `optimizer.step()`"
        for large in (1e30, 1.0, 1.0):  # the first overflows
            scaler.scale(model(torch.full((2, 4), large)).sum()).backward()
            scope["step"](model, optimizer, schedule, scaler)
    assert schedule.last_epoch == 2 == next(iter(optimizer.state.values()))["step"]


def divides_gradients(model, batches, optimizer, parts, max_norm):
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


def test_a_forward_pass_without_gradients_holds_nothing():
    def looks_first(model, batches, optimizer, parts, max_norm):
        with torch.no_grad():
            assert all(model(inputs).isfinite().all() for inputs, _ in batches)
        divides_gradients(model, batches, optimizer, parts, max_norm)

    assert check_train(looks_first).outcome == "right"
