"""What `mixed_precision` says of torch: which operations autocast lists, what raises, and in which words."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from course_utils.lessons.mixed_precision.recipes import gpt, gradients, lost, memory_parts, trainer
from course_utils.materials.models import MLP
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook

CPU = torch.device("cpu")
LESSON = find_lesson("mixed_precision")
TEXT = "\n".join(cell["source"] for cell in read_notebook(LESSON.path)["cells"] if cell["cell_type"] == "markdown")
X, HALF = torch.randn(4, 8), torch.randn(4, 8).half()


# Errors


def scaled(make_step: Callable[[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler], Any], dtype=torch.float32):
    """Call something with a model, an optimizer and a scaler, right after a scaled backward pass."""
    model = nn.Linear(8, 1).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(X.to(dtype)).float().sum()).backward()
    make_step(model, optimizer, scaler)


def binary_cross_entropy_on_cuda() -> None:
    # What autocast registers for CUDA, called by hand: a CPU build has it, too.
    op, key = torch.ops.aten.binary_cross_entropy.default, torch._C.DispatchKey.AutocastCUDA
    op._op_dk(key, torch.rand(2), torch.rand(2))


ERRORS: list[tuple[Callable[[], Any], str]] = [
    (lambda: nn.Linear(8, 8).half()(X), "mat1 and mat2 must have the same dtype, but got Float and Half"),
    (lambda: torch.bmm(X[None], HALF[None].mT), "expected scalar type Float but found Half"),
    (
        lambda: nn.Conv2d(3, 3, 3).half()(torch.randn(1, 3, 8, 8)),
        "Input type (float) and bias type (c10::Half) should be the same",
    ),
    (lambda: X @ HALF.T, "expected m1 and m2 to have the same dtype, but got: float != c10::Half"),
    (lambda: scaled(lambda m, o, s: s.unscale_(o), torch.float16), "Attempting to unscale FP16 gradients."),
    (
        lambda: scaled(lambda m, o, s: (s.unscale_(o), s.unscale_(o))),
        "unscale_() has already been called on this optimizer since the last update().",
    ),
    (lambda: scaled(lambda m, o, s: (s.step(o), s.unscale_(o))), "unscale_() is being called after step()."),
    (
        lambda: torch.zeros(4, 8).index_put_((torch.arange(4),), torch.ones(4, 8).bfloat16()),
        "Index put requires the source and destination dtypes match, got Float for the destination and "
        "BFloat16 for the source.",
    ),
    (lambda: torch.ones(2).bfloat16().numpy(), "Got unsupported ScalarType BFloat16"),
    (
        lambda: scaled(lambda m, o, s: (o.zero_grad(), s.step(o))),
        "No inf checks were recorded for this optimizer.",
    ),
    (
        lambda: scaled(lambda m, o, s: (s.step(o), s.step(o))),
        "step() has already been called since the last update().",
    ),
    (
        binary_cross_entropy_on_cuda,
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.",
    ),
    (
        lambda: torch.amp.GradScaler("cpu").load_state_dict(torch.amp.GradScaler("cpu", enabled=False).state_dict()),
        "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler.",
    ),
    (
        lambda: HALF.masked_fill(HALF > 0, -1e9),
        "value cannot be converted to type c10::Half without overflow",
    ),
    (lambda: torch.amp.GradScaler("cpu").step(torch.optim.SGD([torch.zeros(1)])), "Attempted step but _scale is None."),
    (
        lambda: nn.LSTM(8, 8).half()(torch.randn(2, 1, 8)),
        "RNN input dtype (torch.float32) does not match weight dtype (torch.float16).",
    ),
]


@pytest.mark.parametrize(("provoke", "message"), ERRORS, ids=[message[:30] for _, message in ERRORS])
def test_a_message_in_the_table_is_torchs(provoke: Callable[[], Any], message: str) -> None:
    with pytest.raises((RuntimeError, ValueError, AssertionError, TypeError), match=re.escape(message)):
        provoke()
    assert f"`{message}`" in TEXT


@pytest.mark.parametrize(("fused", "warned"), [(False, 1), (True, 0)])
def test_a_schedule_that_steps_without_the_optimizer_warns_and_beside_a_fused_one_does_not(fused, warned) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    scaler, before = torch.amp.GradScaler("cpu"), model.weight.detach().clone()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scaler.scale(model(X).sum() * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    assert torch.equal(model.weight, before)
    assert scaler.get_scale() == 2**15
    messages = [str(each.message) for each in caught]
    assert len(messages) == warned
    assert all(message.partition(" In PyTorch")[0] in TEXT for message in messages)


@pytest.mark.parametrize(
    ("words", "of", "gradient", "named"),
    [
        ("`x.sqrt()` at 0 has the gradient inf", lambda x: x.sqrt(), float("inf"), None),
        ("`torch.where(x > 0, x.log(), 0.0)`", lambda x: torch.where(x > 0, x.log(), 0.0), float("nan"), "Log"),
        ("`(x**2).sum().sqrt()` at 0 it names the power", lambda x: (x**2).sum().sqrt(), float("nan"), "Pow"),
    ],
)
def test_detect_anomaly_raises_for_nan_alone_and_may_name_a_neighbor(words, of, gradient, named) -> None:
    x = torch.zeros(4, requires_grad=True)
    assert of(x).isfinite().all()
    (found,) = torch.autograd.grad(of(x).sum(), x)
    assert torch.equal(found.nan_to_num(-1.0, -2.0), torch.full((4,), gradient).nan_to_num(-1.0, -2.0))
    raises = pytest.raises(RuntimeError, match=f"{named}Backward0") if named else contextlib.nullcontext()
    with torch.autograd.set_detect_anomaly(True), warnings.catch_warnings(), raises:
        warnings.simplefilter("ignore")
        of(x).sum().backward()
    assert words in TEXT


def test_adams_eps_is_zero_in_fp16() -> None:
    def after_a_step(dtype: torch.dtype) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(8, 8).to(dtype)
        optimizer = torch.optim.Adam(model.parameters())
        (1e-3 * model(X.to(dtype)).float().square().mean()).backward()
        optimizer.step()
        return model.weight

    assert torch.tensor(1e-8).half() == 0
    assert not after_a_step(torch.float16).isfinite().all()
    assert after_a_step(torch.float32).isfinite().all()


# What autocast does


OPERATIONS = re.compile(r"^\| (`.+?`) \| (.+?) \| (.+?) \|$", re.MULTILINE)
SAME_OPERATION = {
    "x + y": "add",
    "cross_entropy": "nll_loss",
    "softmax": "softmax, int",
    "log_softmax": "log_softmax, int",
    "pow": "pow, Tensor_Scalar",
}
CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "matmul": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x),
    "conv2d": lambda x: F.conv2d(x[None, None], x[None, None, :3, :3]),
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(8)),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "rms_norm": lambda x: F.rms_norm(x, (8,)),
    "sum": lambda x: x.sum(),
    "exp": lambda x: x.exp(),
    "pow": lambda x: x.pow(2),
    "rsqrt": lambda x: x.rsqrt(),
    "cumsum": lambda x: x.cumsum(0),
    "x + y": lambda x: x + x,
    "gelu": F.gelu,
    "relu": F.relu,
    "embedding": lambda x: F.embedding(torch.arange(8), x),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "mean": lambda x: x.mean(),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x.sigmoid(), x.sigmoid()),
}


def listed() -> dict[str, tuple[str, str]]:
    """The lesson's table: for each operation, what a CPU's autocast does, and CUDA's."""
    rows = OPERATIONS.findall(TEXT[TEXT.index("| operation | CPU | CUDA |") :].partition("\n\n")[0])
    return {name: (cpu, cuda) for names, cpu, cuda in rows for name in re.findall("`(.+?)`", names)}


class Products(TorchDispatchMode):
    """Collects the dtypes of what batches of products read."""

    def __init__(self):
        super().__init__()
        self.read = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.bmm.default:
            self.read |= {each.dtype for each in args}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("dropout", "read"), [(0.0, set()), (0.1, {torch.float32})])
def test_attentions_fallback_computes_its_products_in_fp32(dropout: float, read: set[torch.dtype]) -> None:
    x = torch.randn(1, 2, 8, 16, requires_grad=True)
    with Products() as products, torch.autocast("cpu", dtype=torch.bfloat16):
        F.scaled_dot_product_attention(x, x, x, dropout_p=dropout)
    assert products.read == read
    assert nn.TransformerEncoderLayer(16, 2).self_attn.dropout > 0


def test_the_table_lists_what_is_tried_here() -> None:
    assert set(listed()) == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_on_a_cpu_an_operation_returns_what_the_table_says(name: str) -> None:
    x = torch.rand(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        returned = [CALLS[name](given).dtype for given in (x, x.bfloat16())]
    half, full = torch.bfloat16, torch.float32
    expected = {"16 bits": [half, half], "fp32": [full, full], "as it comes": [full, half]}
    assert returned == expected[listed()[name][0]]


X8, ROWS = torch.rand(8, 8), torch.zeros(8, 8, dtype=torch.int64)
TWO_DTYPES: dict[str, Callable[[], Any]] = {
    "index_put": lambda: X8.index_put((torch.arange(8),), X8.bfloat16()),
    "scatter_add": lambda: X8.scatter_add(0, ROWS, X8.bfloat16()),
    "dot": lambda: X8[0].dot(X8[0].bfloat16()),
}
IN_PLACE: dict[str, Callable[[], Any]] = {
    "x[indices] = y": lambda: X8.clone().__setitem__(torch.arange(8), X8.bfloat16()),
    "scatter_add_": lambda: X8.clone().scatter_add_(0, ROWS, X8.bfloat16()),
    "index_add_": lambda: X8.clone().index_add_(0, torch.arange(8), X8.bfloat16()),
}


@pytest.mark.parametrize("name", [*TWO_DTYPES, *IN_PLACE])
def test_on_a_cpu_two_dtypes_raise_where_the_lesson_says_so(name: str) -> None:
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises((RuntimeError, IndexError), match=r"dtype|scalar type"),
    ):
        (TWO_DTYPES | IN_PLACE)[name]()
    assert f"`{name}`" in TEXT


def lists_of_cuda() -> dict[str, str]:
    """Each operation in the lists that CUDA's autocast takes, from the header that this torch brings along."""
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text(encoding="utf-8")
    words = {"LOWER_PRECISION_FP": "16 bits", "FP32": "fp32", "FP32_SET_OPT_DTYPE": "fp32"}
    words["PROMOTE"] = "the widest of its inputs"
    found = {}
    for kind, what in words.items():
        lines = re.search(rf"#define AT_FORALL_{kind}\(_\)((?:.*\\\n)+.*)", header)
        found |= dict.fromkeys(re.findall(r"_\(([\w, ]+)\)", lines[1]), what)
    return found


@pytest.mark.parametrize("name", CALLS)
def test_on_cuda_an_operation_is_on_the_list_that_the_table_says(name: str) -> None:
    expected = {"binary_cross_entropy": "an error"}.get(name)
    expected = expected or lists_of_cuda().get(SAME_OPERATION.get(name, name), "as it comes")
    assert listed()[name][1] == expected


def test_on_cuda_two_dtypes_are_promoted_where_the_lesson_says_so() -> None:
    (sentence,) = re.findall(r"(.+) of two dtypes raise on a CPU; on CUDA, autocast converts to the widest", TEXT)
    assert set(re.findall("`(.+?)`", sentence)) == set(TWO_DTYPES)
    assert {lists_of_cuda()[name] for name in TWO_DTYPES} == {"the widest of its inputs"}


class Casts(TorchDispatchMode):
    """Counts casts of a weight to bf16."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        cast = func in (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype)
        self.count += cast and result.dtype == torch.bfloat16 and result.shape == (8, 8)
        return result


@pytest.mark.parametrize(
    ("frozen", "mode", "casts"),
    [
        (False, torch.enable_grad, 1),
        (False, torch.no_grad, 1),
        (True, torch.no_grad, 3),
        (False, torch.inference_mode, 3),
    ],
)
def test_a_weights_cast_is_kept_in_the_block_unless_it_is_frozen_or_under_inference_mode(frozen, mode, casts) -> None:
    model = nn.Linear(8, 8, bias=False).requires_grad_(not frozen)
    with Casts() as seen, mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            model(X)
    assert seen.count == casts


def test_what_a_checkpoint_computes_again_runs_under_the_same_autocast() -> None:
    model, seen = nn.Linear(8, 8), []

    def part(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        return model(x).relu()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = checkpoint(part, X.clone().requires_grad_(), use_reentrant=False)
    y.float().sum().backward()
    assert seen == [True, True]


def part_in_fp32(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """A loss of which one product stays in fp32."""
    y = layer(x)
    with torch.autocast("cpu", enabled=False):
        y = y.float() @ layer.weight
    return y.square().mean()


def all_under_autocast(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return part_in_fp32(layer, x)


@pytest.mark.parametrize(
    ("backward_autocast", "inside", "same"),
    [("same_as_forward", False, False), ("off", False, True), ("same_as_forward", True, True)],
    ids=["around, by default", "around, off", "inside"],
)
def test_a_compiled_part_in_fp32_keeps_its_gradient_where_the_lesson_says_so(backward_autocast, inside, same) -> None:
    assert torch._functorch.config.backward_pass_autocast == "same_as_forward"

    def gradient(compiled: bool) -> torch.Tensor:
        torch.manual_seed(0)
        layer, x = nn.Linear(64, 64), torch.randn(32, 64)
        loss = all_under_autocast if inside else part_in_fp32
        loss = torch.compile(loss, backend="aot_eager") if compiled else loss
        outer = contextlib.nullcontext() if inside else torch.autocast("cpu", dtype=torch.bfloat16)
        with outer:
            value = loss(layer, x)
        value.backward()
        return layer.weight.grad

    torch._dynamo.reset()
    with torch._functorch.config.patch(backward_pass_autocast=backward_autocast):
        assert torch.equal(gradient(True), gradient(False)) == same
    assert '`torch._functorch.config.backward_pass_autocast = "off"`' in TEXT


def test_a_custom_function_can_ask_for_fp32() -> None:
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            seen.append((x.dtype, torch.is_autocast_enabled("cpu")))
            return 2 * x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, gradient):
            return 2 * gradient

    with torch.autocast("cpu", dtype=torch.bfloat16):
        Double.apply(X.bfloat16())
    assert seen == [(torch.float32, False)]


def test_one_scaler_serves_two_optimizers_and_leaves_out_the_step_of_one() -> None:
    models = [nn.Linear(8, 1), nn.Linear(8, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    before = [model.weight.detach().clone() for model in models]
    scaler = torch.amp.GradScaler("cpu")
    for model, factor in zip(models, (1.0, float("inf")), strict=True):
        scaler.scale(model(X).sum() * factor).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    moved = [not torch.equal(old, model.weight) for old, model in zip(before, models, strict=True)]
    assert moved == [True, False]


# TF32's two names


def printed(code: str) -> str:
    """What a fresh interpreter prints, or the error that it ends with."""
    done = subprocess.run([sys.executable, "-c", f"import torch\n{code}"], capture_output=True, text=True, timeout=120)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


NEW, OLD = "torch.backends.cuda.matmul.fp32_precision", "torch.set_float32_matmul_precision"
BOTH = "torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (f"{OLD}('high'); print({NEW}, torch.backends.cuda.matmul.allow_tf32)", "tf32 True"),
        (f"{NEW} = 'tf32'; print(torch.backends.cuda.matmul.allow_tf32)", "RuntimeError"),
        (f"{NEW} = 'tf32'; print(torch.get_float32_matmul_precision())", "RuntimeError"),
        (f"{OLD}('high'); {NEW} = 'ieee'; print({NEW}, torch.get_float32_matmul_precision())", "ieee high"),
        (f"{NEW} = 'tf32'; {OLD}('highest'); print({NEW}, torch.get_float32_matmul_precision())", "ieee highest"),
        (f"print({NEW}, torch.backends.cudnn.conv.fp32_precision)", "none tf32"),
        (f"{OLD}('highest'); print(torch.backends.cudnn.conv.fp32_precision)", "tf32"),
        (f"{BOTH} = False; print({NEW}, torch.backends.cudnn.conv.fp32_precision)", "ieee none"),
        (f"{BOTH} = False; {BOTH} = True; print({NEW}, torch.backends.cudnn.conv.fp32_precision)", "tf32 tf32"),
    ],
)
def test_the_two_names_of_tf32(code: str, expected: str) -> None:
    assert printed(code).startswith(expected)
    if expected == "RuntimeError":
        assert "mix of the legacy and new APIs" in printed(code)


# The lesson's own steps


def test_the_share_of_a_step_changes_nothing_in_fp32() -> None:
    batch = torch.randn(16, 8), torch.arange(16) % 4
    trained = []
    for share in (1.0, 2.0**-13):
        model, _, step = trainer("fp32", lambda: MLP((8, 16, 4)), CPU, share)
        for _ in range(5):
            step(*batch)
        trained.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*trained)


def test_gradients_are_those_of_the_loss_times_the_factor() -> None:
    model, batch = MLP((8, 16, 4)), (torch.randn(16, 8), torch.arange(16) % 4)
    once, at_output = gradients(model, batch, None)
    scaled_up, _ = gradients(model, batch, None, 1024.0)
    assert torch.equal(1024 * once, scaled_up)
    logits = model(batch[0])
    expected = (logits.softmax(-1) - F.one_hot(batch[1], 4)) / 16
    torch.testing.assert_close(at_output, expected)


def test_fp16_loses_a_large_vocabulary_at_4096_tokens_and_a_scale_brings_it_back() -> None:
    torch.manual_seed(0)
    batch = torch.randint(256, (2, 16)), torch.randint(256, (2, 16))
    few, many = (lost(gpt(32, 1, 16, vocabulary)(), batch, 2**12) for vocabulary in (256, 50_257))
    assert few["zeros, fp16"] < 0.5 < 0.99 < many["zeros, fp16"]
    assert all(each["error, fp16, scaled"] < each["error, bf16"] for each in (few, many))


def test_parts_of_the_memory_are_what_the_dtypes_say() -> None:
    rows = {
        row["recipe"]: row for name in ("fp32", "bf16", "bf16 weights") for row in memory_parts(name, [1], 32, 1, 16)
    }
    fp32, bf16, all_bf16 = (rows[f"{name}, batch 1"] for name in ("fp32", "bf16", "bf16 weights"))
    for part in ("weights", "gradients"):
        assert fp32[part] == bf16[part] == 2 * all_bf16[part]
    assert fp32["casts"] == all_bf16["casts"] == 0
    # The matrices of attention, MLP and output layer. A bias's cast is not kept for the backward pass.
    assert bf16["casts"] == 2 * (12 * 32 * 32 + 256 * 32)


# Code to paste, on other people's programs

TAGGER = """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(1000, 32), nn.LSTM(32, 32, batch_first=True)
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(32, 1000)
        self.embed.weight.requires_grad_(False)

    def forward(self, x):
        return self.out(self.drop(self.lstm(self.embed(x))[0]))

model, x = Tagger().to(device), torch.randint(1000, (8, 64), device=device)
"""


@pytest.mark.parametrize(
    ("words", "line", "change", "expected"),
    [
        (
            "class Products",
            "model, x = ",
            ("", ""),
            r"(?s)(rnn_layer|addmm) \[torch.bfloat16.*mm \[torch.bfloat16.*aten::mm \[torch.bfloat16",
        ),
        ("def gradients", "model = ", ("", ""), r"output: [1-9][\d,]* of 512,000 became zero; all finite: True"),
        ("def gradients", "model = ", ("float16, 1.0", "float16, 65536.0"), "output: 0 of 512,000 became zero"),
    ],
    ids=["dtypes", "fp16", "fp16, scaled"],
)
def test_code_to_paste_works_on_a_frozen_embedding_dropout_and_an_lstm(words, line, change, expected, capsys) -> None:
    sources = [cell["source"] for cell in read_notebook(LESSON.path)["cells"] if cell["cell_type"] == "code"]
    source = next(source for source in sources if words in source).replace(*change)
    given = next(each for each in source.splitlines() if each.startswith(line))
    torch.manual_seed(0)
    try:
        with torch.backends.mkldnn.flags(enabled=torch.backends.mkldnn.enabled):
            exec(source.replace(given, TAGGER), {})
    except RuntimeError as error:
        if "could not create a primitive descriptor for the LSTM" not in str(error):
            raise
        pytest.skip("this CPU has no LSTM in bfloat16")
    assert re.search(expected, capsys.readouterr().out)


def losses(outer: Any, model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, steps: int) -> list[float]:
    """The loss in each step; ``outer`` is a block around the loop."""
    found = []
    with outer:
        for _ in range(steps):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), torch.arange(len(x)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
    return found


def test_a_block_around_the_loop_freezes_the_loss_and_one_for_each_forward_pass_does_not() -> None:
    def of_one_layer(outer: Any) -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        return losses(outer, model, torch.optim.SGD(model.parameters(), lr=0.5), X, steps=3)

    for outer in (torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False)):
        assert len(set(of_one_layer(outer))) == 1
    first, *_, last = of_one_layer(contextlib.nullcontext())
    assert last < 0.9 * first


@pytest.mark.parametrize("frozen", [False, True])
def test_in_a_block_around_the_loop_a_model_with_an_embedding_learns_a_little(frozen: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64))
    outer = torch.autocast("cpu", enabled=False) if frozen else contextlib.nullcontext()
    first, *_, last = losses(outer, model, torch.optim.AdamW(model.parameters(), lr=0.01), torch.randperm(64), steps=60)
    assert last < 0.8 * first
    assert (last < 0.1 * first) is not frozen
