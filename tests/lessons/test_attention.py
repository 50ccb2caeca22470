"""Routes to attention: what runs here and is right is used, and runs the kernel that it names."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from course_utils.materials import attention
from course_utils.materials.attention import (
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


def test_a_cpu_has_math_and_flash_which_agree_with_float64():
    before, dtype = Switches.now(), torch.bfloat16
    backends = attention_backends("cpu", dtype, 24, training=True)
    assert list(backends) == ["math", "flash"]
    q, k, v = inputs(2, 3, 130, 24, dtype=dtype)
    allowed = attention.TOLERANCE_EPSILONS * torch.finfo(dtype).eps
    for name, backend in backends.items():
        with Switches.kept():
            call = backend.case(q, k, v, is_causal=True).build()
            assert relative_error(call(), reference(q, k, v, is_causal=True)) < allowed
            assert kernel_of(call) == name
        assert 0 < error_of(backend, "cpu", dtype, 24, 3) < allowed
    assert Switches.now() == before


def test_a_route_that_is_wrong_is_not_there(monkeypatch: pytest.MonkeyPatch):
    def wrong(q, k, v, is_causal):  # as if it took heads for positions
        swapped = [x.transpose(1, 2) for x in (q, k, v)]
        return functional.scaled_dot_product_attention(*swapped, is_causal=is_causal).transpose(1, 2)

    monkeypatch.setattr(attention, "_flex", wrong)
    assert "flex" not in attention_backends("cpu", torch.float32, compiled=True)
