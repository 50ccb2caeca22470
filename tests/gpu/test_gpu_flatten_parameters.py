"""`flatten_parameters` on a real GPU: cuDNN's own check against the lesson's, autocast, and the tiny RNNs."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from course_utils.lessons.flatten_parameters import cases
from course_utils.lessons.flatten_parameters.stand_in import WARNING, examine, is_flat
from course_utils.measure.compare import compare
from tests.flatten_operations import OPERATIONS

if torch.version.hip is not None:
    pytest.skip("cuDNN's layout; AMD's library has another", allow_module_level=True)


def warns(call: Callable[[], Any]) -> bool:
    """Whether a call makes cuDNN's wrapper warn of scattered weights."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return any(WARNING in str(warning.message) for warning in caught)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_warning_comes_exactly_when_scattered(kind: type[nn.RNNBase]) -> None:
    rnn, x = kind(32, 64, num_layers=2, bidirectional=True).cuda(), torch.randn(4, 4, 32, device="cuda")
    assert is_flat(rnn._flat_weights)
    assert not warns(lambda: rnn(x))
    expected = rnn(x)[0]

    scattered = copy.deepcopy(rnn)
    assert not is_flat(scattered._flat_weights)
    assert [warns(lambda: scattered(x)) for _ in range(3)] == [True] * 3  # at every call, nothing repairs it
    torch.testing.assert_close(scattered(x)[0], expected)

    scattered.flatten_parameters()
    assert is_flat(scattered._flat_weights)
    assert not warns(lambda: scattered(x))
    torch.testing.assert_close(scattered(x)[0], expected)


def test_each_row_of_the_table() -> None:
    operations = dict(OPERATIONS)
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        del operations[".bfloat16()"]
    for name, change in operations.items():
        on_gpu, on_cpu = examine(change, "cuda"), examine(change, "cpu")
        warned = on_gpu.pop("cuDNN warns")
        assert on_gpu == on_cpu, name  # the stand-in keeps the rules
        if name != ".bfloat16()":  # goes to cuDNN from version 9.13 only
            assert warned == on_gpu["scattered in forward 2"], name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_flattens_whatever_it_gets_and_computes_in_float16(dtype: torch.dtype) -> None:
    scattered = copy.deepcopy(nn.LSTM(64, 64, device="cuda"))
    x = torch.randn(4, 4, 64, device="cuda")
    assert warns(lambda: scattered(x))
    with torch.autocast("cuda", dtype):
        assert not warns(lambda: scattered(x))
        assert scattered(x)[0].dtype == torch.float16


def test_rnns_of_8_units_can_be_compared_whatever_their_layers() -> None:
    for rnn in cases.QUESTIONS:
        compare(cases.tiny(rnn), check=cases.agree, budget_s=0.05)


@pytest.fixture(autouse=True)
def _leave_nothing() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.empty_cache()
