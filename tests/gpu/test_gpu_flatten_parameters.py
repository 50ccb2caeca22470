"""Lesson 08 on a real GPU: cuDNN's own check against the lesson's, and what a scattered call needs.

The lesson's functions are taken from its notebook, so that what is tested is what a learner sees.
"""

from __future__ import annotations

import ast
import copy
import gc
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from course_utils.measure.devices import CudaDevice
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import parsed_cells, read_notebook

WARNING = "single contiguous chunk of memory"
MIB = 2**20
SHAPES = [
    pytest.param(kind, options, id=f"{kind.__name__}-{'-'.join(options) or 'plain'}")
    for kind in (nn.LSTM, nn.GRU, nn.RNN)
    for options in ({}, {"num_layers": 2}, {"bidirectional": True}, {"bias": False}, {"batch_first": True})
]

if torch.version.hip is not None:
    pytest.skip("cuDNN's layout; AMD's library has another", allow_module_level=True)


@pytest.fixture(scope="module")
def lesson() -> Iterator[dict[str, Any]]:
    """Imports, functions, classes and dictionaries of operations of the lesson; nothing that measures."""
    path = find_lesson("flatten_parameters").path
    # A module of its own: torch.save needs to find the class again by its name.
    module = types.ModuleType("lesson_flatten_parameters")
    sys.modules[module.__name__] = module
    kept: list[ast.stmt] = []
    for _, tree in parsed_cells(read_notebook(path), path.name):
        for node in tree.body:
            target = getattr(node, "target", None) or next(iter(getattr(node, "targets", [])), None)
            is_data = isinstance(target, ast.Name) and target.id in ("operations", "WAYS", "device")
            defines = isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef)
            if defines or is_data:
                kept.append(node)
    exec(compile(ast.Module(kept, []), path.name, "exec"), vars(module))
    module.new = nn.LSTM(32, 64, num_layers=2)
    yield vars(module)
    del sys.modules[module.__name__]


def warns(call: Callable[[], Any]) -> bool:
    """Whether a call makes cuDNN's wrapper warn of scattered weights."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return any(WARNING in str(warning.message) for warning in caught)


@pytest.mark.parametrize(("kind", "options"), SHAPES)
def test_warning_comes_exactly_when_scattered(kind: type[nn.RNNBase], options: dict[str, Any], lesson: dict) -> None:
    rnn, x = kind(32, 64, **options).cuda(), torch.randn(4, 4, 32, device="cuda")
    assert lesson["is_flat"](rnn._flat_weights)
    assert not warns(lambda: rnn(x))
    expected = rnn(x)[0]

    scattered = copy.deepcopy(rnn)
    assert not lesson["is_flat"](scattered._flat_weights)
    assert [warns(lambda: scattered(x)) for _ in range(3)] == [True] * 3  # at every call, nothing repairs it
    torch.testing.assert_close(scattered(x)[0], expected)

    scattered.flatten_parameters()
    assert lesson["is_flat"](scattered._flat_weights)
    assert not warns(lambda: scattered(x))
    torch.testing.assert_close(scattered(x)[0], expected)


def test_each_row_of_the_table(lesson: dict) -> None:
    operations = dict(lesson["operations"])
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        del operations[".bfloat16()"]
    assert len(operations) > 15
    columns = ("flat after it", "called in forward 1", "called in forward 2", "flat in forward 2")
    for name, change in operations.items():
        on_gpu, on_cpu = (lesson["examine"](change, where) for where in ("cuda", "cpu"))
        assert {key: on_gpu[key] for key in columns} == on_cpu, name  # the stand-in keeps the rules
        if name != ".bfloat16()":  # goes to cuDNN from version 9.13 only
            assert on_gpu["cuDNN warns"] == (not on_gpu["flat in forward 2"]), name


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


def test_autocast_flattens_whatever_it_gets() -> None:
    scattered = copy.deepcopy(nn.LSTM(64, 64, device="cuda"))
    x = torch.randn(4, 4, 64, device="cuda")
    assert warns(lambda: scattered(x))
    with torch.autocast("cuda", torch.float16):
        assert not warns(lambda: scattered(x))


def test_compiled_model_still_warns(lesson: dict) -> None:
    """The compiler leaves the RNN alone, and so its check of the weights."""
    model = lesson["RNNInMethod"](width=64).cuda()
    scattered, tokens = copy.deepcopy(model), torch.randint(16, (4, 4), device="cuda")
    for given, expected in ((model, False), (scattered, True)):
        torch._dynamo.reset()
        compiled = torch.compile(given, backend="eager")
        compiled(tokens)
        assert warns(lambda compiled=compiled: compiled(tokens)) == expected


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_replicas_flatten_themselves(lesson: dict) -> None:
    rnn = nn.LSTM(64, 64, num_layers=2, device="cuda")
    for replica in nn.parallel.replicate(rnn, [0, 1]):
        x = torch.randn(4, 4, 64, device=replica.weight_ih_l0.device)
        assert not warns(lambda replica=replica, x=x: replica(x))
        assert lesson["is_flat"](replica._flat_weights)


@pytest.fixture(autouse=True)
def _leave_nothing() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.empty_cache()
