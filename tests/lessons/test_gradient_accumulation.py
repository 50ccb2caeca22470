"""`gradient_accumulation`: gradients in parts, what they hold, what two ranks send, and the code to paste."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from course_utils.lessons.gradient_accumulation import cases
from course_utils.lessons.gradient_accumulation.checks import check_fewest_parts, check_train
from course_utils.materials.models import GPT
from course_utils.materials.step_memory import peak_bytes
from course_utils.ranks.launch import run_ranks
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
RIGHT, MEANS, TWICE = "sum / all tokens", "mean / parts", "sum / all tokens / parts"
DIVIDE = {
    RIGHT: lambda loss_sum, own, tokens, parts: loss_sum / tokens,
    MEANS: lambda loss_sum, own, tokens, parts: loss_sum / own / parts,
    TWICE: lambda loss_sum, own, tokens, parts: loss_sum / tokens / parts,
}


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {next(iter(row.values())): row for row in rows}


def test_only_tokens_of_all_parts_give_the_gradient_of_the_batch():
    rows = by_name(cases.gradients_by(DIVIDE))
    assert rows[RIGHT]["error"] < 1e-12
    assert rows[RIGHT]["error in float32"] < 1e-5
    assert rows[MEANS]["error"] > 0.1
    assert rows[MEANS]["last token / first"] == pytest.approx(64)  # by autograd's gradient at the logits
    assert rows[RIGHT]["last token / first"] == pytest.approx(1)
    assert rows[TWICE]["norm"] == pytest.approx(1 / 4)


def test_adamw_hides_a_constant_factor_and_clipping_after_each_part_is_a_smaller_mistake():
    rows = by_name(cases.steps_by(DIVIDE))
    assert rows[TWICE]["AdamW"] < 0.05 < rows[TWICE]["SGD, clipped"]
    errors = [rows[name]["SGD, clipped"] for name in (RIGHT, f"{RIGHT}, clipped after each part", MEANS, TWICE)]
    assert errors[0] < 1e-9 < 0.01 < errors[1] < 0.5 * errors[2] < errors[3]


def test_a_peak_in_parts_lies_between_that_of_a_small_batch_and_that_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COURSE_SIZE", "test")
    rows = by_name(cases.memory_by_parts())
    peaks = [rows[label]["peak"] for label in ("32 steps", "32 parts", "8 parts", "at once")]
    assert peaks == sorted(set(peaks))
    waiting = [row["gradients meanwhile"] for row in rows.values()]
    assert waiting == [0, *[rows["at once"]["weights and AdamW"] / 3] * 5, 0]
    assert rows["at once"]["kept by a part"] > 30 * rows["32 parts"]["kept by a part"]


def test_two_parts_peak_as_many_parts_do():
    """So a group of two tells whether a group of any length fits."""
    torch.manual_seed(0)
    model, tokens = GPT(context=16, width=32, layers=1), torch.zeros(4, 16, dtype=torch.int64)

    def group(parts: int) -> None:
        for _ in range(parts):
            cases.loss_sum(model, tokens, tokens).backward()
        model.zero_grad()

    assert peak_bytes(lambda: group(1)) < peak_bytes(lambda: group(2)) == peak_bytes(lambda: group(4))


def test_gpt2_without_its_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COURSE_SIZE", "test")  # two layers
    at_once, in_parts, few = cases.gpt2_in_parts(texts=4, sizes=(4, 1))
    assert in_parts["activations"] < at_once["activations"] / 3
    assert few["activations"] < at_once["activations"] / 3  # logits and loss make up the rest
    assert at_once["gradients"] == 0
    assert 3 * in_parts["gradients"] == pytest.approx(in_parts["weights and AdamW"], rel=1e-4)


def test_what_looks_across_the_batch():
    errors = {name: row["error"] for name, row in by_name(cases.across_the_batch()).items()}
    assert {name for name, error in errors.items() if error < 1e-12} == {"LayerNorm", "BatchNorm, in eval()"}
    assert min(errors[name] for name in ("BatchNorm", "two dropouts", "a contrastive loss")) > 0.05


def test_bfloat16_gradients_lose_bits_with_each_part():
    few, many = cases.bf16_by_parts((4, 128))
    assert many["added up in bfloat16"] > 2 * few["added up in bfloat16"]
    assert many["in float32"] <= few["in float32"] * 1.5


def test_two_ranks_send_once_and_divide_by_the_tokens_of_both():
    run = run_ranks(
        NOTEBOOKS / "scripts" / "accumulate_ranks.py", ranks=2, threads_per_rank=1, backend="gloo", show_output=False
    )
    found = run[0]["cases"]
    assert [case["all-reduces"] for case in found.values()] == [1, 4, 4, 1, 1]
    right, each_time, around_backward, too_short, own = (case["error"] for case in found.values())
    assert max(right, each_time, around_backward) < 1e-12
    assert too_short == pytest.approx(0.5)
    assert own > 0.1


# The code to paste


@functools.cache
def pasted() -> dict[str, Any]:
    sources = [cell["source"] for cell in read_notebook(find_lesson("gradient_accumulation").path)["cells"]]
    scope: dict[str, Any] = {}
    for start in ("import contextlib", "def backward(", "def train_epoch("):
        exec(next(source for source in sources if source.startswith(start)), scope)
    return scope


def small_gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(context=16, width=32, layers=1, heads=2)


def uneven_batches() -> list[cases.Part]:
    """Seven batches, the last smaller than the others, of which different numbers of tokens count."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for number in range(7):
        drawn = torch.randint(256, (2 if number == 6 else 4, 17), generator=generator)
        tokens, targets = drawn[:, :-1], drawn[:, 1:].clone()
        targets[:, : 3 * number % 13] = -100
        batches.append((tokens, targets))
    return batches


@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-4), (torch.bfloat16, 0.05), (torch.float16, 0.05)])
def test_the_pasted_loop_steps_on_the_gradients_of_whole_groups(dtype: torch.dtype | None, tolerance: float):
    batches, model, norms = uneven_batches(), small_gpt(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # the weights stay, so norms can be held against each other
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    steps = pasted()["train_epoch"](model, batches, optimizer, schedule, scaler, 3, "cpu", dtype)
    losses = []
    for start in (0, 3, 6):
        tokens, targets = (torch.cat(tensors) for tensors in zip(*batches[start : start + 3], strict=True))
        alone = small_gpt()
        loss = functional.cross_entropy(alone(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        losses.append(loss.item())
        norms.append(cases.gradient(alone).norm().item())
    assert [norm.item() for _, norm in steps] == pytest.approx(norms, rel=tolerance)
    assert [loss.item() for loss, _ in steps] == pytest.approx(losses, rel=tolerance)
    assert schedule.last_epoch == 3


def test_the_schedule_waits_where_the_scaler_skips_a_step():
    model = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-30)  # overflows once
    with warnings.catch_warnings(action="error"):  # "Detected call of `lr_scheduler.step()` before `optimizer.step()`"
        steps = pasted()["train_epoch"](model, uneven_batches(), optimizer, schedule, scaler, 3, "cpu", torch.float16)
    assert [bool(norm.isfinite()) for _, norm in steps] == [False, True, True]
    assert schedule.last_epoch == 2 == next(iter(optimizer.state.values()))["step"]


def test_a_group_without_any_token_that_counts_leaves_zeros():
    model, (tokens, targets) = small_gpt(), uneven_batches()[0]
    nothing = [(tokens, torch.full_like(targets, -100))] * 2
    loss = pasted()["backward"](model, nothing, torch.amp.GradScaler("cpu", enabled=False), "cpu")
    assert loss == 0
    assert cases.gradient(model).abs().max() == 0


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_with_a_static_graph_the_first_group_has_to_send_each_part(group_of_one: None):
    backward, group = pasted()["backward"], uneven_batches()[:3]
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with pytest.raises(RuntimeError, match="expect_autograd_hooks_ INTERNAL ASSERT FAILED"):
        backward(DistributedDataParallel(small_gpt(), static_graph=True), group, scaler, "cpu")
    model, alone = DistributedDataParallel(small_gpt(), static_graph=True), small_gpt()
    backward(alone, group, scaler, "cpu")
    model.no_sync = contextlib.nullcontext
    backward(model, group, scaler, "cpu")
    del model.no_sync
    model.zero_grad()
    backward(model, group, scaler, "cpu")
    assert cases.error(cases.gradient(model), cases.gradient(alone)) < 1e-5


# Answers that neither solve an exercise as the course does nor go wrong as a hint foresaw


def divides_gradients(model, batches, optimizer, scheduler, parts, max_norm):
    samples = 0
    for number, (inputs, targets) in enumerate(batches, start=1):
        functional.mse_loss(model(inputs), targets, reduction="sum").backward()
        samples += len(targets)
        if number % parts == 0 or number == len(batches):
            for weight in model.parameters():
                weight.grad /= samples
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            samples = 0


def one_sample_at_a_time(model, batches, optimizer, scheduler, parts, max_norm):
    for start in range(0, len(batches), parts):
        inputs, targets = (torch.cat(tensors) for tensors in zip(*batches[start : start + parts], strict=True))
        with torch.no_grad():
            model(inputs)  # keeps no graph
        for place in range(len(inputs)):
            error = model(inputs[place : place + 1]) - targets[place : place + 1]
            (error.square().sum() / len(inputs)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("train", [divides_gradients, one_sample_at_a_time])
def test_other_loops_that_are_right(train):
    assert check_train(train).outcome == "right"


def tried_one_by_one(batch, sample_bytes, weight_bytes, limit_bytes, otherwise: int | None = 0):
    if 3 * weight_bytes + batch * sample_bytes <= limit_bytes:
        return 1
    for parts in range(2, batch + 1):
        if 4 * weight_bytes + math.ceil(batch / parts) * sample_bytes <= limit_bytes:
            return parts
    return otherwise


def test_other_answers_about_the_fewest_parts():
    assert check_fewest_parts(tried_one_by_one).outcome == "right"
    assert "return 0" in check_fewest_parts(functools.partial(tried_one_by_one, otherwise=None)).words
    assert "`return`" in check_fewest_parts(lambda *case: None).words
