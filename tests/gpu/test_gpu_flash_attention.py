"""Every route to attention on a real GPU: right forward and backward, the kernel asked for, and the fallbacks."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from course_utils.materials.attention import (
    TOLERANCE_EPSILONS,
    attention_backends,
    available,
    choice_of,
    errors_of,
    kernel_of,
    reference,
    relative_error,
)

NAMES = ("math", "flash", "efficient", "cudnn", "flex", "xformers", "flash-attn", "transformer-engine")
# In float32, kernels may multiply in TF32, whose epsilon is 2**-10.
TF32_TOLERANCE = 2 * 2.0**-10


def _capability() -> tuple[int, int]:
    return torch.cuda.get_device_capability()


def _inputs(*shape: int, dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return list(torch.randn(3, *shape, generator=generator).to("cuda", dtype))


def _needs_flash() -> None:
    if torch.version.hip or _capability() < (8, 0):
        pytest.skip("SDPA has a flash kernel for NVIDIA GPUs of compute capability 8.0 or newer")


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


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn"])
def test_fused_kernels_of_the_long_sequences_are_close_to_float64(name: str) -> None:
    """The lesson's sizes, 16 heads of size 128 in bfloat16: other kernels than those for size 64."""
    backend = attention_backends("cuda", torch.bfloat16, 128, heads=16)[name]
    if not backend.available:
        pytest.skip(f"{name}: {backend.reason}")
    q, k, v = _inputs(1, 16, 4096, 128, dtype=torch.bfloat16)
    # Each head for itself, so two of them say what all would, and float64 on a CPU is slow.
    found = backend.run(q, k, v)[:, ::15]
    allowed = TOLERANCE_EPSILONS * torch.finfo(torch.bfloat16).eps
    assert relative_error(found, reference(q[:, ::15], k[:, ::15], v[:, ::15])) < allowed


def test_what_every_supported_nvidia_gpu_has(backends: dict) -> None:
    if torch.version.hip:
        pytest.skip("what an AMD GPU has depends on how torch was built")
    assert {"math", "efficient"} <= set(available(backends[torch.float16]))
    assert {"math", "efficient"} <= set(available(backends[torch.float32]))
    assert not backends[torch.float32]["flash"].available
    assert backends[torch.float32]["flash"].reason


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


def test_what_flash_leaves_to_other_kernels() -> None:
    _needs_flash()
    q, k, v = _inputs(2, 4, 128, 64)
    wide = _inputs(2, 4, 128, 320)
    mask = torch.ones(128, 128, dtype=torch.bool, device="cuda")
    for chosen, reason in (_choice(q, k, v, attn_mask=mask), _choice(*wide), _choice(q.float(), k.float(), v.float())):
        assert chosen != "flash"
        assert reason
    assert _choice(q, k, v)[1] == ""
    assert _choice(q, k, v, dropout_p=0.1)[0] != "math"


def test_flexattention_is_compiled_for_gradients_and_without_alone() -> None:
    import torch._dynamo
    from torch._dynamo.utils import counters

    counters.clear()
    flex = attention_backends("cuda", torch.float16, 64, heads=5, training=True, compiled=True)["flex"]
    if not flex.available:
        pytest.skip(f"flex: {flex.reason}")
    errors_of(flex, "cuda", torch.float16, 64, heads=5)
    for is_causal in (False, True):
        for length in (256, 1024):
            flex.run(*_inputs(1, 5, length, 64), is_causal)
    assert counters["stats"]["unique_graphs"] <= 2


def test_flash_stores_no_matrix_of_scores(backends: dict) -> None:
    found = [name for name in ("flash", "efficient") if backends[torch.float16][name].available]
    q, k, v = _inputs(1, 4, 4096, 64)
    matrix_bytes = 4 * 4096 * 4096 * 2
    for name in found:
        backends[torch.float16][name].run(q, k, v)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        backends[torch.float16][name].run(q, k, v)
        assert torch.cuda.max_memory_allocated() - before < matrix_bytes / 4
    assert found
