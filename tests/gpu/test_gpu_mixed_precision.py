"""What only a GPU can show of lesson 07: TF32, fp16 and bf16 arithmetic, fp8 products."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

from course_utils.lessons.mixed_precision.number_formats import FORMATS, represent
from course_utils.materials.models import GPT, MLP, LSTMLanguageModel
from course_utils.measure.fresh import Switches

needs_tensor_float = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.version.hip is not None or torch.cuda.get_device_capability() < (8, 0),
    reason="TF32 exists on NVIDIA GPUs from compute capability 8.0 on",
)
needs_fp8 = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.version.hip is not None or torch.cuda.get_device_capability() < (8, 9),
    reason="fp8 products exist on NVIDIA GPUs from compute capability 8.9 on",
)


@pytest.fixture(autouse=True)
def switches_as_before() -> Iterator[None]:
    before = Switches.now()
    yield
    before.restore()


def relative_error(found: torch.Tensor, true: torch.Tensor) -> float:
    return ((found.double() - true).norm() / true.norm()).item()


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
    assert 10 * exact < short < 2 * FORMATS["tf32"].epsilon


@needs_tensor_float
def test_cudnn_uses_tf32_by_default_and_products_do_not() -> None:
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"
    assert torch.backends.cudnn.rnn.fp32_precision == "tf32"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
def test_sixteen_bit_products_keep_their_mantissa(dtype: torch.dtype, tolerance: float) -> None:
    a, b, true = operands()
    assert 1e-5 < relative_error(a.to(dtype) @ b.to(dtype), true) < tolerance


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8 e5m2"])
def test_casts_on_the_gpu_round_like_the_explorer(name: str) -> None:
    values = torch.randn(2000, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.linspace(-9, 5, 2000)
    found = values.cuda().to(getattr(torch, FORMATS[name].dtype)).double().tolist()
    assert found == [represent(value, name).value for value in values.tolist()]


def small_gradients(scale: float, dtype: torch.dtype | None) -> torch.Tensor:
    """Gradients of a small classifier whose loss is one of 2**18 shares of a step."""
    torch.manual_seed(0)
    model = MLP((64, 64, 64, 10)).cuda()
    inputs, labels = torch.rand(64, 64, device="cuda"), torch.randint(10, (64,), device="cuda")
    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
        loss = F.cross_entropy(model(inputs), labels)
    (loss * scale / 2**18).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]) / scale


def test_fp16_gradients_underflow_and_scaling_saves_them() -> None:
    true = small_gradients(1.0, None) != 0
    lost = {
        name: ((small_gradients(scale, dtype) == 0) & true).sum().item() / true.sum().item()
        for name, scale, dtype in (
            ("fp16", 1.0, torch.float16),
            ("scaled", 65536.0, torch.float16),
            ("bf16", 1.0, torch.bfloat16),
        )
    }
    assert lost["fp16"] > 0.5
    assert lost["scaled"] < 0.05
    assert lost["bf16"] < 0.01


def test_scaler_skips_backs_off_and_grows() -> None:
    weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2)
    for factor, moves, scale in ((1.0, True, 1024.0), (1.0, True, 2048.0), (float("inf"), False, 1024.0)):
        before = weight.detach().clone()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert torch.equal(before, weight) is not moves
        assert scaler.get_scale() == scale


def test_autocast_does_softmax_and_norms_in_fp32_on_cuda() -> None:
    x = torch.randn(8, 8, device="cuda", dtype=torch.bfloat16)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        assert x.softmax(-1).dtype == F.layer_norm(x, (8,)).dtype == x.sum().dtype == torch.float32
        assert F.scaled_dot_product_attention(x[None], x[None], x[None]).dtype == torch.bfloat16


def half_dtype() -> torch.dtype:
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


@pytest.mark.parametrize("make_model", [lambda: GPT(width=64, layers=2, heads=2), lambda: LSTMLanguageModel(width=64)])
def test_models_train_under_autocast(make_model) -> None:
    torch.manual_seed(0)
    model = make_model().cuda()
    tokens = torch.randint(256, (4, 32), device="cuda")
    scaler = torch.amp.GradScaler("cuda", enabled=half_dtype() is torch.float16, init_scale=1024.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        with torch.autocast("cuda", dtype=half_dtype()):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert all(parameter.dtype is torch.float32 for parameter in model.parameters())


def to_fp8(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = tensor.abs().amax().float() / torch.finfo(torch.float8_e4m3fn).max
    return (tensor / scale).to(torch.float8_e4m3fn), scale


@needs_fp8
def test_fp8_product_is_that_of_its_operands() -> None:
    a, b_t, _ = operands()
    (a8, a_scale), (b8_t, b_scale) = to_fp8(a.bfloat16()), to_fp8(b_t.bfloat16())
    found = torch._scaled_mm(a8, b8_t.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16)
    stored = (a8.double() * a_scale.double()) @ (b8_t.double() * b_scale.double()).t()
    assert relative_error(found, stored) < 8e-3  # accumulation, and a result in bf16
    assert 1e-3 < relative_error(found, a.double() @ b_t.double().t()) < 0.1
