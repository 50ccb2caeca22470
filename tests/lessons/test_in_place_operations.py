"""What `in_place_operations` says of what autograd keeps, of messages, and of its code to paste."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.nn import functional

from course_utils.lessons.in_place_operations import cases
from course_utils.lessons.in_place_operations.checks import check_block
from course_utils.materials.models import Block
from course_utils.materials.step_memory import kept_bytes, worked_out
from course_utils.records.lessons import find_lesson

NOTEBOOK = find_lesson("in_place_operations").path
ONE = cases.ROWS * cases.WIDTH * 4


def _pasted() -> dict[str, Any]:
    """The lesson's code to paste."""
    pasted: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if "standalone" in cell["metadata"].get("tags", []):
            exec("".join(cell["source"]), pasted)
    return pasted


def _peaks(name: str) -> list[float]:
    return [cases.peak_bytes(cases.step_with(way, "cpu", pairs=4), "cpu") / ONE for way in cases.OPERATIONS[name]]


@pytest.mark.parametrize(("name", "saved"), [("ReLU", 0), ("LeakyReLU", 4), ("SiLU", 0), ("RReLU", 4), ("dropout", 0)])
def test_in_place_saves_a_tensor_for_each_pair_or_none(name: str, saved: int) -> None:
    out_of_place, in_place = _peaks(name)
    assert out_of_place - in_place == pytest.approx(saved, abs=0.01)


def test_the_formulas_are_those_of_the_installed_torch() -> None:
    import torchgen

    path = Path(torchgen.__file__).parent / "packaged/autograd/derivatives.yaml"
    entries = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    formulas = {entry["name"].partition("(")[0]: str(entry.get("self")) for entry in entries}
    for name in ("relu", "sigmoid", "tanh", "leaky_relu_", "elu_", "celu_", "rrelu_with_noise_"):
        assert "result" in formulas[name].replace("is_result", ""), name
    for name in ("leaky_relu", "elu", "silu", "mish", "hardswish", "hardtanh", "clamp", "gelu"):
        assert "self" in formulas[name], name
    assert not {"silu_", "mish_", "hardswish_", "hardtanh_", "clamp_"} & set(formulas)


def test_without_a_neighbour_that_keeps_the_output_nothing_is_saved() -> None:
    first, x = nn.Linear(32, 32), torch.randn(64, 32)
    alive = [x, *first.parameters()]
    both = [kept_bytes(lambda each=each: each(first(x)) + x, alive) for each in cases.OPERATIONS["LeakyReLU"]]
    assert both[0] == both[1] == x.nbytes


def _frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


class _Adapted(nn.Module):
    """A frozen linear layer, with a trained adapter beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = _frozen(nn.Linear(16, 16)), nn.Linear(16, 2), nn.Linear(2, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize(
    ("following", "saves"),
    [
        (nn.Linear(16, 16), True),
        (_frozen(nn.Linear(16, 16)), False),
        (_Adapted(), True),
        (_frozen(nn.Conv2d(4, 4, 1)), True),
        (nn.AdaptiveAvgPool2d(1), False),
        (nn.AdaptiveAvgPool2d(2), True),
    ],
)
def test_a_frozen_linear_layer_and_a_whole_average_do_not_keep_what_in_place_would_share(
    following: nn.Module, saves: bool
) -> None:
    first, x = nn.Conv2d(4, 4, 1), torch.randn(8, 4, 16, 16)
    alive = [x, *first.parameters(), *following.parameters()]
    both = [kept_bytes(lambda each=each: following(each(first(x))), alive) for each in cases.OPERATIONS["LeakyReLU"]]
    assert both[0] - both[1] == x.nbytes * saves


@pytest.mark.parametrize("kind", [nn.ReLU, nn.LeakyReLU, nn.SiLU])
def test_what_a_block_of_resnet_saves_is_worked_out_as_it_is_measured(kind: type[nn.Module]) -> None:
    def build_with(inplace: bool) -> Callable[[], tuple[nn.Module, None, Callable[[], Any]]]:
        def build() -> tuple[nn.Module, None, Callable[[], Any]]:
            block, x = cases.Bottleneck(64, 16, 1, lambda: kind(inplace=inplace)), torch.ones(8, 64, 32, 32)

            def step() -> None:
                block.zero_grad()
                block(x).sum().backward()

            return block, None, step

        return build

    measured = [cases.peak_bytes(build_with(inplace)()[2], "cpu") for inplace in (False, True)]
    expected = [worked_out(build_with(inplace)).peak_bytes for inplace in (False, True)]
    assert measured[0] - measured[1] == pytest.approx(expected[0] - expected[1], abs=0.02 * expected[0])


def test_residuals_in_place_compute_the_same() -> None:
    torch.manual_seed(0)
    block, x = Block(16, 2), torch.randn(2, 8, 16)
    in_place = cases.ResidualsInPlace(16, 2)
    in_place.load_state_dict(block.state_dict())
    results = []
    for each in (block, in_place):
        result = each(x)
        result.square().sum().backward()
        results.append([result.detach(), *(weight.grad for weight in each.parameters())])
    assert cases.difference(*results) == 0


@pytest.mark.parametrize(("gives", "saves"), [(torch.bfloat16, True), (torch.float32, False)])
def test_where_the_next_layer_casts_it_keeps_a_copy_of_its_own(gives: torch.dtype, saves: bool) -> None:
    first, last, x = nn.Linear(64, 64), nn.Linear(64, 64), torch.randn(128, 64)

    def kept(activation: Callable[[torch.Tensor], torch.Tensor]) -> int:
        alive = [x, *first.parameters(), *last.parameters()]
        with torch.autocast("cpu", torch.bfloat16):
            return kept_bytes(lambda: last(activation(first(x).to(gives))), alive)

    out_of_place, in_place = map(kept, cases.OPERATIONS["LeakyReLU"])
    assert (in_place < out_of_place) is saves


@pytest.mark.parametrize("following", [nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Conv2d(4, 4, 1)])
def test_in_place_saves_before_whatever_keeps_its_input(following: nn.Module) -> None:
    first, x = nn.Conv2d(4, 4, 1), torch.randn(8, 4, 16, 16)
    alive = [x, *first.parameters(), *following.parameters(), *following.buffers()]
    both = [kept_bytes(lambda each=each: following(each(first(x))), alive) for each in cases.OPERATIONS["LeakyReLU"]]
    assert both[0] - both[1] == x.nbytes


def test_a_mlp_as_in_llama_keeps_four_tensors_either_way() -> None:
    gate, up, down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)
    x = torch.randn(128, 32)
    alive = [x, *(weight for layer in (gate, up, down) for weight in layer.parameters())]
    for inplace in (False, True):
        kept = kept_bytes(lambda way=inplace: down(functional.silu(gate(x), inplace=way) * up(x)), alive)
        assert kept == 4 * 128 * 64 * 4


def test_a_first_relu_in_place_changes_the_shortcut() -> None:
    def block(x: torch.Tensor, inplace: bool) -> torch.Tensor:
        return x + functional.relu(x, inplace=inplace) * 2

    x = torch.tensor([-1.0, 1.0])
    assert block(x.clone(), False).tolist() == [-1, 3]
    assert block(x.clone(), True).tolist() == [0, 3]


def _with_a_full_hook() -> None:
    layer = nn.Linear(4, 4)
    layer.register_full_backward_hook(lambda *_: None)
    functional.relu_(layer(torch.randn(2, 4)))


def _over_channels() -> None:
    for channel in torch.ones(3, 4, requires_grad=True) * 1:
        channel.mul_(2)


def _made_under_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
    x.add_(1)


WEIGHT = torch.ones(2, 2, requires_grad=True)
MESSAGES = {
    "a leaf Variable that requires grad is being used in an in-place operation": lambda: WEIGHT.add_(1),
    "a view of a leaf Variable that requires grad": lambda: WEIGHT[0].fill_(0),
    "Output 0 of Unbind is a view and is being modified inplace. This view is the output of a function that returns "
    "multiple views": _over_channels,
    "Output 0 of BackwardHookFunction is a view": _with_a_full_hook,
    "more than one element of the written-to tensor refers to a single memory location": lambda: (
        torch.zeros(1, 3).expand(2, 3).add_(1)
    ),
    "result type Float can't be cast to the desired output type Long": lambda: torch.tensor([1]).div_(2),
    "output with shape [3] doesn't match the broadcast shape [2, 3]": lambda: torch.ones(3).add_(torch.ones(2, 3)),
    "Inplace update to inference tensor outside InferenceMode is not allowed": _made_under_inference_mode,
    "In-place elu backward calculation is triggered with a negative slope": lambda: (
        functional.elu_(WEIGHT * 1, -0.1).sum().backward()
    ),
    "In-place leakyReLu backward calculation is triggered with a negative slope": lambda: (
        functional.leaky_relu_(WEIGHT * 1, -0.1).sum().backward()
    ),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_are_torchs(message: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        MESSAGES[message]()
    # Versions differ in whether an operation's name ends in Backward0.
    assert message.replace("Backward0", "") in str(caught.value).replace("Backward0", "").replace("Backward is", " is")


def test_what_bypasses_autograd_is_not_noticed() -> None:
    def by_dlpack(s: torch.Tensor) -> None:
        torch.from_dlpack(s.detach()).mul_(2)

    rows = [cases.doubled(write) for write in (lambda s: s.data.mul_(2), cases.doubled_by_numpy, by_dlpack)]
    assert all(row["backward()"] == "no error" and row["gradient differs by"] > 0.5 for row in rows)
    assert cases.doubled(lambda s: s.detach().mul_(2))["backward()"] == "raises: output 0 of Sigmoid"
    assert cases.stepped(fused=False)["backward()"] == "raises: a leaf"
    fused = cases.stepped(fused=True)
    assert fused["backward()"] == "no error"
    assert fused["gradient differs by"] > 0.05
    weight = torch.ones(2)
    torch._foreach_add_([weight], 1)  # returns nothing either, and is counted
    assert weight._version == 1


# What wrote over h = x @ w or its sigmoid, after what kept it.
NAMED = {
    "Sigmoid": lambda h, w: [s := h.sigmoid(), s.mul_(2)][0],
    "Mul": lambda h, w: [h @ w, h.mul_(2)][0],
    "Relu": lambda h, w: [functional.silu(h), h.relu_()][0],
    "Add": lambda h, w: [s := h.sigmoid(), s @ w, s.add_(1)][1],
    "torch::autograd::CopySlices": lambda h, w: [h @ w, h.__setitem__(0, 0)][0],
    "Mm": lambda h, w: [h @ w, h.detach().mul_(2)][0],
}


@pytest.mark.parametrize("named", NAMED)
def test_the_message_names_the_maker_that_kept_it_or_the_last_recorded_write(named: str) -> None:
    row = cases.tried(lambda h, x, w: h * 1, lambda h, x, w: NAMED[named](h, w), "cpu")
    assert row["backward()"].removesuffix("Backward0") == f"raises: output 0 of {named}"


def test_a_function_of_ones_own_is_checked_only_for_what_it_saved() -> None:
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.y = x.exp()
            return ctx.y

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * ctx.y

    x = torch.zeros(2, requires_grad=True)
    Exp.apply(x).mul_(3).sum().backward()
    assert x.grad.tolist() == [9, 9]  # 3 would be right


def test_the_way_around_gives_right_gradients() -> None:
    results = []
    for write in (lambda s: s * 2, lambda s: s.mul_(2)):
        x = torch.ones(4, requires_grad=True)
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            write(x.sigmoid()).sum().backward()
        results.append(x.grad)
    assert torch.equal(*results)


def test_anomaly_mode_names_the_line_that_kept_it() -> None:
    w = torch.ones(2, 2, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught, torch.autograd.set_detect_anomaly(True, check_nan=False):
        warnings.simplefilter("always")
        kept = (w * 1).relu()
        kept.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            kept.sum().backward()
    assert any("kept = (w * 1).relu()" in str(each.message) for each in caught)


def test_kept_by_names_what_is_kept() -> None:
    kept_by, x = _pasted()["kept_by"], torch.randn(4, 3)
    expected = {
        "ReLU": ["its output", "its output"],
        "LeakyReLU": ["its input", "its output"],
        "SiLU": ["its input", "a copy of its input"],
        "times 2": ["nothing", "nothing"],
        "dropout": ["another tensor", "another tensor"],
    }
    assert {name: [kept_by(way, x) for way in cases.OPERATIONS[name]] for name in expected} == expected
    assert kept_by(lambda x: x.T.relu(), x.bfloat16()) == "its output"
    assert kept_by(lambda x: functional.silu(x.chunk(2)[1]), x) == "its input"
    assert kept_by(lambda x: x.max(1), x) == "its output"  # the indices


def test_overwriting_layers_names_them_in_every_variant() -> None:
    find = _pasted()["overwriting_layers"]
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)), torch.randn(2, 4)
    nested = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.SiLU(inplace=True), nn.Linear(4, 4)))
    assert find(model, x) == ["1"]
    assert find(nested, x) == ["1.0", "1"]
    with torch.autocast("cpu", torch.bfloat16):
        assert find(model, x) == ["1"]
    with warnings.catch_warnings(action="ignore"):
        assert find(torch.compile(model, backend="eager"), x) == ["_orig_mod.1"]
    assert find(nn.Sequential(nn.Embedding(4, 4), nn.LSTM(4, 4)), torch.ones(2, 3, dtype=torch.int64)) == []
    with pytest.raises(RuntimeError):
        find(model, torch.randn(2, 5))
    assert not torch.nn.modules.module._global_forward_hooks


def test_overwriting_layers_sees_lists_and_calls_of_itself_and_leaves_statistics_alone() -> None:
    class First(nn.ReLU):
        def forward(self, tensors: list[torch.Tensor]) -> torch.Tensor:
            return super().forward(tensors[0])

    class Again(nn.Linear):
        def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
            return self(super().forward(x), times - 1) if times else functional.relu_(x)

    find, norm = _pasted()["overwriting_layers"], nn.BatchNorm1d(4)
    assert find(nn.Sequential(First(inplace=True)), [torch.randn(2)]) == ["0", ""]
    assert find(Again(4, 4), torch.randn(2, 4)) == [""]
    assert find(nn.Sequential(norm, nn.ReLU(inplace=True)), torch.randn(2, 4)) == ["1"]
    assert norm.num_batches_tracked == 0
    assert not norm.running_mean.any()


def test_overwriting_layers_leaves_the_callers_batch_and_names_a_shared_layer_once() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: torch.Tensor, *, bias: torch.Tensor, scale: dict[str, Any]) -> torch.Tensor:
            return self.relu(self.relu(x) - bias.mul_(2)) * scale["by"].add_(1)

    find, x, bias, scale = _pasted()["overwriting_layers"], -torch.ones(2, 4), torch.ones(4), {"by": torch.ones(1)}
    assert find(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)), x) == ["0", ""]
    assert find(Named(), x, bias=bias, scale=scale) == ["relu", ""]
    assert x.eq(-1).all()
    assert bias.eq(1).all()
    assert scale["by"].item() == 1
    weight = x.clone().requires_grad_()  # a leaf, as an optimized image is
    assert find(nn.ReLU(inplace=True), weight) == [""]
    assert weight.eq(-1).all()
    with torch.inference_mode():
        made = x.clone()
    assert find(nn.ReLU(inplace=True), made) == [""]


def test_the_hint_to_the_block_quotes_the_message_that_was_raised() -> None:
    def block(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        hidden = functional.leaky_relu_(x @ first)
        hidden *= torch.sigmoid(hidden @ second)
        hidden += x
        return hidden

    feedback = check_block(block)
    assert feedback.outcome == "not yet"
    assert "output 0 of Add" in feedback.words
    assert "Sigmoid" not in feedback.words
