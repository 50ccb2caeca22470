"""`flatten_parameters` on a real GPU: cuDNN's own check against the lesson's, and what a scattered call needs."""

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
from course_utils.measure.devices import CudaDevice
from tests.flatten_operations import OPERATIONS

MIB = 2**20
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


def _weights_bytes(rnn: nn.Module) -> int:
    return sum(weight.nbytes for weight in rnn.parameters())


def test_a_scattered_call_needs_a_buffer_as_large_as_the_weights(device: CudaDevice) -> None:
    flat = nn.LSTM(1024, 1024, device="cuda").eval().requires_grad_(False)
    scattered, x = copy.deepcopy(flat), torch.randn(2, 2, 1024, device="cuda")
    peaks = [device.peak_memory(lambda rnn=rnn: rnn(x))[0] for rnn in (flat, scattered)]
    size = _weights_bytes(flat)
    assert size > 30 * MIB
    assert size <= peaks[1] - peaks[0] < 1.2 * size


def test_autograd_keeps_the_buffer_of_each_call(device: CudaDevice) -> None:
    flat = nn.LSTM(512, 512, device="cuda")
    scattered, steps = copy.deepcopy(flat), 8
    x = torch.randn(steps, 2, 512, device="cuda")

    def backward_through(rnn: nn.LSTM, flattens: bool = False) -> None:
        outputs, state = [], None
        for step in x.split(1):
            if flattens:
                rnn.flatten_parameters()
            output, state = rnn(step, state)
            outputs.append(output)
        torch.autograd.grad(torch.cat(outputs).sum(), list(rnn.parameters()))

    peaks = [device.peak_memory(lambda rnn=rnn: backward_through(rnn))[0] for rnn in (flat, scattered)]
    least = (steps - 4) * _weights_bytes(flat)  # the backward pass itself needs up to three
    assert peaks[1] - peaks[0] > least
    # The habit of flattening first keeps the growth: each call's buffer is another one, and autograd holds it.
    assert device.peak_memory(lambda: backward_through(flat, flattens=True))[0] - peaks[0] > least


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
