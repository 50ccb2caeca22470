"""`batch_size`'s search: what it finds, that it leaves no trace, and what it says when it cannot go on."""

from __future__ import annotations

import gc
import sys
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from course_utils import recorded
from course_utils.lessons.batch_size import cases
from course_utils.lessons.batch_size.limited import Trainer, largest_from, search_under_limit
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook

CELLS = {cell["id"]: cell["source"] for cell in read_notebook(find_lesson("batch_size").path)["cells"]}
SCOPE: dict[str, Any] = {}
for name in ("fits", "search", "put-back"):
    exec(CELLS[name], SCOPE)
SCOPE["gc"] = SimpleNamespace(collect=lambda: None)  # the heap of a whole test run takes long to search
SOURCES = [CELLS["fits"], CELLS["search"]]
MIB = 2**20


def memory_of(capacity: int, tried: list[int] | None = None):
    """A trial that runs out of memory above a capacity."""

    def trial(batch: int) -> None:
        if tried is not None:
            tried.append(batch)
        if batch > capacity:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    return trial


@pytest.mark.parametrize("capacity", [1, 2, 3, 31, 32, 33, 100, 1000, 4096])
def test_the_search_returns_a_batch_that_it_tried_and_that_fits(capacity):
    tried: list[int] = []
    found = SCOPE["largest_batch"](memory_of(capacity, tried), most=5000, spare=0)
    assert found in tried
    assert capacity - max(1, capacity // 32) < found <= capacity
    assert len(tried) < 25


@pytest.mark.parametrize("most", [1, 7, 64, 100, 1000])
def test_a_data_set_that_fits_whole_is_tried_and_returned(most):
    tried: list[int] = []
    assert SCOPE["largest_batch"](memory_of(10**9, tried), most) == most
    assert tried[-1] == most


def test_it_begins_with_a_batch_of_two_where_one_cannot_be_trained():
    norm = nn.BatchNorm1d(3)

    def trial(batch: int) -> None:
        norm(torch.randn(batch, 3))
        memory_of(20)(batch)

    with pytest.raises(ValueError, match="more than 1 value per channel"):
        SCOPE["largest_batch"](trial, most=64)
    assert SCOPE["largest_batch"](trial, most=64, first=2, spare=0) == 20


def test_the_margin_is_spared():
    assert SCOPE["largest_batch"](memory_of(64), most=100) == 57


def test_not_even_one_fits():
    with pytest.raises(MemoryError, match="not even a batch of 1 fits"):
        SCOPE["largest_batch"](memory_of(0), most=64)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "could not create a primitive",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
        "MPS backend out of memory (MPS allocated: 1.00 GB)",
    ],
)
def test_each_librarys_words_for_too_little_memory_are_known(message):
    def trial(batch: int) -> None:
        raise RuntimeError(message)

    assert SCOPE["fits"](trial, 1) is False


def test_another_error_is_raised_at_once():
    def wrong_shape(batch: int) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        SCOPE["largest_batch"](wrong_shape, most=64)


def test_the_failed_steps_tensors_are_freed():
    held = []

    def trial(batch: int) -> None:
        activations = torch.ones(batch)
        held.append(weakref.ref(activations))
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")

    gc.disable()
    try:
        assert SCOPE["fits"](trial, 4) is False
    finally:
        gc.enable()
    assert held[0]() is None


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_search_leaves_no_trace(optimizer, steps_before):
    def trained(search: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
        rule = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)

        def step(batch: int) -> None:
            rule.zero_grad()
            model(torch.randn(batch + 1, 6)).square().mean().backward()
            rule.step()

        for _ in range(steps_before):
            step(8)
        model(torch.randn(4, 6)).sum().backward()  # half of an accumulation
        if search:
            with SCOPE["put_back"](model, rule):
                SCOPE["largest_batch"](lambda batch: (step(batch), step(batch)), most=40)
        gradients = [weight.grad.clone() for weight in model.parameters()]
        rule.step()
        step(8)
        return [*gradients, *model.parameters(), *model.buffers(), torch.rand(3)]

    assert all(map(torch.equal, trained(search=False), trained(search=True)))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to RLIMIT_DATA")
def test_two_peaks_predict_what_fits_under_a_real_limit():
    predicted = largest_from(Trainer().peaks(4, 8), 32 * MIB)
    found = search_under_limit(SOURCES, 32 * MIB, most=1024)
    assert found["error"] == "DefaultCPUAllocator: can't allocate memory"
    assert 0.7 * predicted < found["fitted"] <= 1.1 * predicted
    assert found["largest"] == int(0.9 * found["fitted"])


def test_the_best_rate_needs_all_its_runs():
    needs = {0.1: {100: 50, 101: 60, 102: None}, 0.2: {100: 90, 101: 70, 102: 80}, 0.4: {100: 90, 101: 60, 102: 80}}
    ask = lambda batch, rate, seed, most: needs[rate][seed]  # noqa: E731
    assert cases.best_rate(ask, 16, grid=[0.1, 0.2]) == 0.2
    with pytest.raises(ValueError, match="no rate of"):
        cases.best_rate(ask, 16, grid=[0.1])


def test_a_rate_that_the_lesson_uses_wins_over_a_smaller_one():
    scope = {
        **{name: getattr(cases, name) for name in ("batches_of", "convnet", "train_step", "loss_on_test")},
        **{"torch": torch, "device": "cpu", "digits": cases.digits_on("cpu"), "partial": partial},
    }
    exec(CELLS["to-target"], scope)
    rate = cases.RATES[64]
    assert cases.best_rate(scope["samples_to_target"], 64, grid=[rate / 4, rate]) == rate


def test_samples_a_second_have_the_ratio_that_the_comparison_shows():
    throughput = recorded("batch_size/throughput")
    rows = [{"seed": str(seed), **{f"batch {batch}": 10 * batch for batch in cases.BATCHES}} for seed in range(6)]
    found = cases.summary(rows, throughput)
    base = found[0]["samples/s"]
    gains = [case.speedup for case in throughput.others]
    assert [row["samples/s"] / base for row in found] == pytest.approx([1, *gains])
    assert all(
        row["time to the target"] * row["samples/s"] == pytest.approx(row["samples to the target"]) for row in found
    )
    with pytest.raises(RuntimeError, match="with batch 64 1 of 7 runs did not reach the target"):
        cases.summary([*rows, {**rows[0], "batch 64": None}], throughput)
