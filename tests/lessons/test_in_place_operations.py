"""`in_place_operations`: what autograd keeps, and its code to paste; facts about torch are in its lesson.yml."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
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
        (nn.BatchNorm2d(4), True),
        (nn.MaxPool2d(2), True),
        (nn.AvgPool2d(2), True),
    ],
)
def test_in_place_saves_before_what_keeps_its_input_and_not_before_a_frozen_linear_layer_or_a_whole_average(
    following: nn.Module, saves: bool
) -> None:
    first, x = nn.Conv2d(4, 4, 1), torch.randn(8, 4, 16, 16)
    alive = [x, *first.parameters(), *following.parameters(), *following.buffers()]
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


# What wrote over h = x @ w or its sigmoid, after what kept it.


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
