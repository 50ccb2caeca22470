"""What only a GPU can show of `mixed_precision`: TF32 and bf16 arithmetic, and what a large vocabulary needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

from course_utils import compare
from course_utils.lessons.mixed_precision import cases
from course_utils.materials.attention import relative_error
from course_utils.measure.fresh import Switches

needs_tensor_float = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.version.hip is not None or torch.cuda.get_device_capability() < (8, 0),
    reason="TF32 exists on NVIDIA GPUs from compute capability 8.0 on",
)


@pytest.fixture(autouse=True)
def switches_as_before() -> Iterator[None]:
    before = Switches.now()
    yield
    before.restore()


def operands(n: int = 1024) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two fp32 matrices on the GPU, and their product in fp64."""
    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (torch.randn(n, n, device="cuda", generator=generator) for _ in range(2))
    return a, b, a.double() @ b.double()


def product_with(precision: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    torch.backends.cuda.matmul.fp32_precision = precision
    return a @ b


@needs_tensor_float
def test_the_switch_changes_products_by_what_the_mantissa_says() -> None:
    a, b, true = operands()
    exact, short = (relative_error(product_with(precision, a, b), true) for precision in ("ieee", "tf32"))
    assert exact < 1e-5
    # Each operand is off by at most half of TF32's spacing if rounded, by all of it if cut.
    assert 10 * exact < short < 2 * 2.0**-10


@needs_tensor_float
def test_cudnn_uses_tf32_by_default_and_products_do_not() -> None:
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"
    assert torch.backends.cudnn.rnn.fp32_precision == "tf32"


def test_autocast_does_softmax_and_norms_in_fp32_on_cuda() -> None:
    x = torch.randn(8, 8, device="cuda", dtype=torch.bfloat16)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        assert x.softmax(-1).dtype == F.layer_norm(x, (8,)).dtype == x.sum().dtype == torch.float32
        assert F.scaled_dot_product_attention(x[None], x[None], x[None]).dtype == torch.bfloat16


def test_three_tensors_of_the_logits_size_stand_at_the_peak_in_each_precision() -> None:
    steps = cases.ladder(256, 2, 1, 1024, vocabulary=cases.VOCABULARY)
    compared = compare(steps, check=cases.close, budget_s=0.5)
    logits = 4 * cases.VOCABULARY * 1024
    assert all(3 <= case.measurement.peak_allocated_bytes / logits < 3.6 for case in compared), compared
