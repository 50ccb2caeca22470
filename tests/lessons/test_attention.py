"""Routes to attention: what is there is used, what is not says why, and adapters keep to each package's interface."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from course_utils.materials import attention
from course_utils.materials.attention import (
    Backend,
    assert_close,
    attention_backends,
    available,
    choice_of,
    errors_of,
    kernel_of,
    reference,
    relative_error,
    that_run,
)
from course_utils.measure.fresh import Switches


def inputs(*shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return list(torch.randn(3, *shape, generator=generator).to(dtype))


# What this build of torch has on a CPU


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_cpu_has_math_and_flash(dtype: torch.dtype):
    backends = attention_backends("cpu", dtype, training=True)
    assert list(backends) == [
        "math",
        "flash",
        "efficient",
        "cudnn",
        "flex",
        "xformers",
        "flash-attn",
        "transformer-engine",
    ]
    assert list(available(backends)) == ["math", "flash"]
    assert all(backend.reason for backend in backends.values() if not backend.available)
    assert backends["xformers"].reason == "the package xformers is not installed"


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", ["math", "flash"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_backends_agree_with_float64_and_run_the_kernel_they_name(name: str, is_causal: bool, dtype: torch.dtype):
    backend = attention_backends("cpu", dtype)[name]
    q, k, v = inputs(2, 3, 130, 24, dtype=dtype)
    allowed = attention.TOLERANCE_EPSILONS * torch.finfo(dtype).eps
    assert relative_error(backend.run(q, k, v, is_causal), reference(q, k, v, is_causal)) < allowed
    assert kernel_of(lambda: backend.run(q, k, v, is_causal)) == name
    errors = errors_of(backend, "cpu", dtype)
    assert 0 < errors["output"] < allowed
    assert 0 < errors["gradient"] < allowed
    assert errors["ran"] == name
    more = errors_of(backend, "cpu", dtype, heads=4)
    assert (more["output"], more["gradient"]) == pytest.approx((errors["output"], errors["gradient"]), rel=0.1)


def test_a_backend_leaves_the_switches_as_they_were():
    before = Switches.now()
    backends = attention_backends("cpu", torch.float32)
    backends["math"].run(*inputs(1, 1, 8, 8))
    choice_of(lambda: functional.scaled_dot_product_attention(*inputs(1, 8, 8)))
    errors_of(backends["math"], "cpu", torch.float32)
    assert Switches.now() == before


def test_what_does_not_run_at_one_point_is_left_out_of_the_sweep():
    def refuses_long_inputs(q, k, v, is_causal):
        if q.shape[2] > 20:
            raise RuntimeError
        return functional.scaled_dot_product_attention(q, k, v)

    backends = available(attention_backends("cpu", torch.float32))
    backends |= {"short alone": Backend("short alone", refuses_long_inputs)}

    def cases(length):
        tensors = inputs(1, 2, length, 8)
        return {name: way.case(*tensors) for name, way in backends.items()}

    before = Switches.now()
    with pytest.warns(UserWarning, match="short alone is left out, since at 32 it raises RuntimeError: no reason"):
        kept = that_run(cases, [16, 32])
    assert list(kept(16)) == list(kept(32)) == ["math", "flash"]
    assert list(that_run(cases, [16])(16)) == ["math", "flash", "short alone"]
    assert Switches.now() == before


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
        assert flex.available, flex.reason
        assert len(compiled) == 1
        for is_causal, length in ((False, 512), (True, 512), (False, 1024), (True, 384)):
            q, k, v = inputs(1, 4, length, 8)
            assert relative_error(flex.run(q, k, v, is_causal), reference(q, k, v, is_causal)) < 1e-5
        assert len(compiled) == 1
    finally:
        attention._compiled_flex.cache_clear()
        torch._dynamo.reset()


# The packages, by stand-ins that keep to their documented interfaces and compute the plain way


def _attend(q, k, v, is_causal):
    """For ``[batch, length, heads, head_size]``."""
    assert q.stride(-1) == 1, "all three packages want the last dimension contiguous"
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal).transpose(1, 2)


def _xformers() -> dict[str, types.ModuleType]:
    ops = types.ModuleType("xformers.ops")

    class LowerTriangularMask:
        pass

    def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None):
        assert attn_bias is None or isinstance(attn_bias, LowerTriangularMask)
        return _attend(query, key, value, attn_bias is not None)

    ops.LowerTriangularMask, ops.memory_efficient_attention = LowerTriangularMask, memory_efficient_attention
    return {"xformers": types.ModuleType("xformers"), "xformers.ops": ops}


def _flash_attn() -> dict[str, types.ModuleType]:
    module = types.ModuleType("flash_attn")

    def flash_attn_func(
        q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
        alibi_slopes=None, deterministic=False, return_attn_probs=False,
    ):  # fmt: skip
        return _attend(q, k, v, causal)

    module.flash_attn_func = flash_attn_func
    return {"flash_attn": module}


def _transformer_engine() -> dict[str, types.ModuleType]:
    module = types.ModuleType("transformer_engine.pytorch")

    class DotProductAttention(torch.nn.Module):
        def __init__(
            self, num_attention_heads, kv_channels, num_gqa_groups=None, attention_dropout=0.0, qkv_format="sbhd",
            attn_mask_type="causal",
        ):  # fmt: skip
            super().__init__()
            self.sizes, self.qkv_format, self.mask = (num_attention_heads, kv_channels), qkv_format, attn_mask_type

        def forward(self, query_layer, key_layer, value_layer):
            q, k, v = query_layer, key_layer, value_layer
            if self.qkv_format == "sbhd":
                q, k, v = (tensor.transpose(0, 1) for tensor in (q, k, v))
            assert tuple(q.shape[2:]) == self.sizes
            assert self.mask in ("causal", "no_mask")
            out = _attend(q, k, v, self.mask == "causal").flatten(2)
            return out.transpose(0, 1) if self.qkv_format == "sbhd" else out

    module.DotProductAttention = DotProductAttention
    return {"transformer_engine": types.ModuleType("transformer_engine"), "transformer_engine.pytorch": module}


STAND_INS = {"xformers": _xformers, "flash-attn": _flash_attn, "transformer-engine": _transformer_engine}


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator:
    def install(modules: dict[str, types.ModuleType]) -> None:
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    attention._te_module.cache_clear()
    yield install
    attention._te_module.cache_clear()


@pytest.mark.parametrize("name", STAND_INS)
def test_an_installed_package_is_used_in_its_own_layout(name: str, install):
    install(STAND_INS[name]())
    backends = attention_backends("cpu", torch.float32, training=True)
    assert backends[name].available, backends[name].reason
    q, k, v = inputs(2, 3, 40, 64)
    for is_causal in (False, True):
        assert relative_error(backends[name].run(q, k, v, is_causal), reference(q, k, v, is_causal)) < 1e-6


def test_a_package_that_computes_something_else_is_not_used(install):
    modules = _flash_attn()
    # As if the package took [batch, heads, length, head_size].
    modules["flash_attn"].flash_attn_func = lambda q, k, v, causal=False: functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal
    )
    install(modules)
    backend = attention_backends("cpu", torch.float32)["flash-attn"]
    assert not backend.available
    assert backend.reason.startswith("it ran and was wrong, by a relative error of")
    with pytest.raises(RuntimeError, match="flash-attn is not available here: it ran and was wrong"):
        backend.case(*inputs(1, 2, 8, 8))


# Which kernel runs


@pytest.mark.parametrize(
    ("call", "kernel", "words"),
    [
        (lambda q, k, v: (q, k, v, {}), "flash", ""),
        (lambda q, k, v: (q, k, v, {"dropout_p": 0.5}), "math", "dropout"),
        (lambda q, k, v: (q[0], k[0], v[0], {}), "math", "4 dimensional"),
        (lambda q, k, v: (q.mT.contiguous().mT, k, v, {}), "math", "stride 1"),
        (lambda q, k, v: (q, k, v, {"attn_mask": torch.zeros(9, 9, requires_grad=True)}), "math", "no reason"),
        (lambda q, k, v: (q, k[:, :3], v[:, :3], {}), "raises RuntimeError", "must match"),
    ],
)
def test_choice_of_gives_the_kernel_and_the_reason_against_flash(call, kernel: str, words: str):
    q, k, v, options = call(*inputs(2, 4, 9, 8))
    chosen, reason = choice_of(lambda: functional.scaled_dot_product_attention(q, k, v, **options))
    assert chosen == kernel
    assert words in reason
    assert bool(reason) == bool(words)


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
