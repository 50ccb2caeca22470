"""Routes to attention: what runs here and is right is used, and runs the kernel that it names."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from course_utils.materials import attention
from course_utils.materials.attention import (
    assert_close,
    attention_backends,
    error_of,
    kernel_of,
    reference,
    relative_error,
)
from course_utils.measure.fresh import Switches


@pytest.fixture(autouse=True)
def _one_thread():
    """Several threads on cores that are busy wait for each other."""
    with Switches.kept():
        torch.set_num_threads(1)
        yield


def inputs(*shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return list(torch.randn(3, *shape, generator=generator).to(dtype))


# What this build of torch has on a CPU


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_cpu_has_math_and_flash_which_agree_with_float64(dtype: torch.dtype):
    before = Switches.now()
    backends = attention_backends("cpu", dtype, 24, training=True)
    assert list(backends) == ["math", "flash"]
    q, k, v = inputs(2, 3, 130, 24, dtype=dtype)
    allowed = attention.TOLERANCE_EPSILONS * torch.finfo(dtype).eps
    for name, backend in backends.items():
        with Switches.kept():
            call = backend.case(q, k, v, is_causal=True).build()
            assert relative_error(call(), reference(q, k, v, is_causal=True)) < allowed
            assert kernel_of(call) == name
        error = error_of(backend, "cpu", dtype, 24, 3)
        assert 0 < error < allowed
        assert error_of(backend, "cpu", dtype, 24, 4) == pytest.approx(error, rel=0.1)
    assert Switches.now() == before


def test_a_route_that_raises_or_is_wrong_is_not_there(monkeypatch: pytest.MonkeyPatch):
    def wrong(q, k, v, is_causal):  # as if it took heads for positions
        swapped = [x.transpose(1, 2) for x in (q, k, v)]
        return functional.scaled_dot_product_attention(*swapped, is_causal=is_causal).transpose(1, 2)

    monkeypatch.setattr(attention, "_flex", wrong)
    assert "flex" not in attention_backends("cpu", torch.float32, compiled=True)


def test_flexattention_is_right_and_compiled_once_for_both_masks(monkeypatch: pytest.MonkeyPatch):
    compiled = []

    def counting(graph, example_inputs):
        compiled.append(graph)
        return graph

    compile_it = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call, dynamic: compile_it(call, dynamic=dynamic, backend=counting))
    attention._compiled_flex.cache_clear()
    torch._dynamo.reset()
    try:
        flex = attention_backends("cpu", torch.float32, 8, heads=4, compiled=True)["flex"]
        assert len(compiled) == 1
        for is_causal, length in ((False, 512), (True, 512), (False, 1024), (True, 384)):
            q, k, v = inputs(1, 4, length, 8)
            assert relative_error(flex.attend(q, k, v, is_causal), reference(q, k, v, is_causal)) < 1e-5
        assert len(compiled) == 1
    finally:
        attention._compiled_flex.cache_clear()
        torch._dynamo.reset()


# Bad input


def test_closeness_follows_the_dtype():
    ones = torch.ones(100)
    assert_close(ones, ones + 1e-6)
    with pytest.raises(AssertionError, match=r"is allowed for torch\.float32"):
        assert_close(ones, ones + 1e-5)
    assert_close(ones.bfloat16(), ones.bfloat16() * 1.01)
    assert_close((ones, ones), (ones, ones))
    with pytest.raises(AssertionError):
        assert_close((ones, ones), (ones, -ones))
    with pytest.raises(AssertionError):
        assert_close(ones, ones * torch.nan)
    assert_close(ones, None)
