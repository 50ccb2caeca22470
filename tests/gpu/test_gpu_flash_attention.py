"""Every route to attention on a real GPU: right forward and backward, the kernel asked for, and the fallbacks."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from course_utils.materials.attention import (
    TOLERANCE_EPSILONS,
    attention_backends,
    choice_of,
    errors_of,
    kernel_of,
    reference,
    relative_error,
)

NAMES = ("math", "flash", "efficient", "cudnn", "flex", "xformers", "flash-attn", "transformer-engine")
# In float32, kernels may multiply in TF32, whose epsilon is 2**-10.
TF32_TOLERANCE = 2 * 2.0**-10


def _inputs(*shape: int, dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return list(torch.randn(3, *shape, generator=generator).to("cuda", dtype))


@pytest.fixture(scope="module")
def backends() -> dict:
    return {
        dtype: attention_backends("cuda", dtype, training=True, compiled=True)
        for dtype in (torch.float16, torch.bfloat16, torch.float32)
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_an_available_backend_is_close_to_float64(backends: dict, name: str, dtype: torch.dtype) -> None:
    backend = backends[dtype][name]
    if not backend.available:
        assert backend.reason
        pytest.skip(f"{name}: {backend.reason}")
    allowed = TF32_TOLERANCE if dtype is torch.float32 else TOLERANCE_EPSILONS * torch.finfo(dtype).eps
    errors = errors_of(backend, "cuda", dtype)
    assert errors["output"] < allowed
    assert errors["gradient"] < allowed
    # A batch of one, and gradients: FlexAttention need not be compiled anew for these.
    q, k, v = (tensor.requires_grad_() for tensor in _inputs(1, 3, 200, 64, dtype=dtype))
    assert relative_error(backend.run(q, k, v), reference(q, k, v)) < allowed


@pytest.mark.parametrize("name", ["math", "flash", "efficient", "cudnn"])
def test_a_forced_backend_really_runs(backends: dict, name: str) -> None:
    backend = backends[torch.float16][name]
    if not backend.available:
        pytest.skip(f"{name}: {backend.reason}")
    q, k, v = _inputs(1, 4, 256, 64)
    assert kernel_of(lambda: backend.run(q, k, v, is_causal=True)) == name
    built = backend.case(q, k, v, True, backward=True).build()
    try:
        assert kernel_of(built) == name
    finally:
        for enable in ("flash", "mem_efficient", "math", "cudnn"):
            getattr(torch.backends.cuda, f"enable_{enable}_sdp")(True)


def _choice(*tensors: torch.Tensor, **options: object) -> tuple[str, str]:
    return choice_of(lambda: functional.scaled_dot_product_attention(*tensors, **options))


def test_what_falls_back_to_math() -> None:
    q, k, v = _inputs(2, 4, 128, 64)
    assert _choice(q[0], k[0], v[0])[0] == "math"
    assert _choice(*(x.double() for x in (q, k, v)))[0] == "math"
    assert _choice(*(x.mT.contiguous().mT for x in (q, k, v)))[0] == "math"
    assert _choice(q, k[:1], v[:1])[0] == "math"
