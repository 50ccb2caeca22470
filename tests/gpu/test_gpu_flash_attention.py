"""Every route to attention on a real GPU: right forward and backward, by the kernel asked for."""

from __future__ import annotations

import pytest
import torch

from course_utils.materials.attention import (
    TOLERANCE_EPSILONS,
    attention_backends,
    error_of,
    kernel_of,
    reference,
    relative_error,
)
from course_utils.measure.fresh import Switches

NAMES = ("math", "flash", "efficient", "cudnn", "flex")
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
    backend = backends[dtype].get(name) or pytest.skip(f"{name} does not run here in {dtype}")
    allowed = TF32_TOLERANCE if dtype is torch.float32 else TOLERANCE_EPSILONS * torch.finfo(dtype).eps
    assert error_of(backend, "cuda", dtype, 64, 3) < allowed
    # A batch of one, and gradients: FlexAttention need not be compiled anew for these.
    q, k, v = (tensor.requires_grad_() for tensor in _inputs(1, 3, 200, 64, dtype=dtype))
    with Switches.kept():
        backend.select()
        output = backend.attend(q, k, v, False)
        gradients = torch.autograd.grad(output, (q, k, v), q.detach())
    exact = reference(q, k, v)
    assert relative_error(output, exact) < allowed
    for ours, theirs in zip(gradients, torch.autograd.grad(exact, (q, k, v), q.detach().cpu().double()), strict=True):
        assert relative_error(ours, theirs) < allowed


@pytest.mark.parametrize("name", ["math", "flash", "efficient", "cudnn"])
def test_a_forced_backend_really_runs(backends: dict, name: str) -> None:
    backend = backends[torch.float16].get(name) or pytest.skip(f"{name} does not run here")
    with Switches.kept():
        assert kernel_of(backend.case(*_inputs(1, 4, 256, 64), True, backward=True).build()) == name
