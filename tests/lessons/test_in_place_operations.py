"""`in_place_operations`: what the flag saves, beside which layers, and the code to paste; more is in its lesson.yml."""

from __future__ import annotations

import json
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from authoring.reference_pages import code_blocks, reference_pages
from course_utils.lesson_notebooks import find_lesson
from course_utils.lessons.in_place_operations import cases
from course_utils.materials.step_memory import kept_bytes, worked_out
from course_utils.measure.devices import Device


def _run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.mark.parametrize(("name", "tensors"), [("ReLU", 0), ("LeakyReLU", 4), ("SiLU", 0)])
def test_the_flag_saves_a_tensor_for_each_block_or_none_and_a_gpus_step_is_worked_out_as_it_is_measured(name, tensors):
    steps = [cases.training(cases.blocks, each, "cpu") for each in cases.both(name).values()]
    [step() for *_, step in steps]
    measured = [Device().peak_memory(step)[0] for *_, step in steps]
    worked = [
        worked_out(lambda each=each: cases.training(cases.blocks, each, "cpu")).peak_bytes
        for each in cases.both(name).values()
    ]
    one = 8 * 32 * 32 * 32 * 4
    assert measured[0] - measured[1] == worked[0] - worked[1] == tensors * one


def test_the_courses_resnet50_has_as_many_weights_as_everybodys():
    with torch.device("meta"):
        model, _ = cases.resnet50(nn.ReLU)
    assert sum(weight.numel() for weight in model.parameters()) == 25557032


def _frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


class _Adapted(nn.Module):
    """A frozen linear layer, with a trained adapter beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = _frozen(nn.Linear(16, 16)), nn.Linear(16, 2), nn.Linear(2, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(
    ("following", "saves"),
    [
        (nn.Linear(16, 16), True),
        (_frozen(nn.Linear(16, 16)), False),
        (_Adapted(), True),
        (_frozen(nn.Conv2d(4, 4, 1)), True),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), False),
        (nn.Conv2d(4, 4, 4, padding="same"), False),
        (nn.AdaptiveAvgPool2d(1), False),
        (nn.AdaptiveAvgPool2d(2), True),
        (nn.BatchNorm2d(4), True),
        (nn.MaxPool2d(2), True),
        (nn.AvgPool2d(2), True),
    ],
)
def test_leaky_relu_in_place_saves_before_what_keeps_its_input(following: nn.Module, saves: bool) -> None:
    first, x = nn.Conv2d(4, 4, 1), torch.randn(8, 4, 16, 16)
    alive = [x, *first.parameters(), *following.parameters(), *following.buffers()]
    ways = functional.leaky_relu, functional.leaky_relu_
    both = [kept_bytes(lambda each=each: following(each(first(x))), alive) for each in ways]
    assert both[0] - both[1] == x.nbytes * saves


@pytest.mark.parametrize("layer", [nn.ReLU, nn.LeakyReLU, nn.SiLU])
@pytest.mark.parametrize(
    ("size", "bias", "more"), [((8, 128, 64), True, 1), ((1024, 64), True, 0), ((8, 128, 64), False, 0)]
)
def test_after_a_linear_layer_with_bias_on_3d_input_the_gradient_is_copied_and_the_peak_rises(layer, size, bias, more):
    def step(inplace: bool) -> None:
        nn.Sequential(nn.Linear(64, 256, bias), layer(inplace=inplace), nn.Linear(256, 64))(x).sum().backward()

    x = torch.randn(size)
    both = [Device().peak_memory(lambda each=each: step(each))[0] for each in (False, True)]
    assert cases.copies_of(lambda: step(True)) - cases.copies_of(lambda: step(False)) == more + (layer is nn.SiLU)
    assert (both[1] > both[0]) is bool(more)


def test_relu_in_place_saves_where_a_name_holds_its_input() -> None:
    x, first, second = torch.randn(1024, 64), *(torch.randn(64, 64, requires_grad=True) for _ in range(2))

    def named(relu: Any) -> None:
        hidden = x @ first
        (relu(hidden) @ second).sum().backward()

    def nested(relu: Any) -> None:
        (relu(x @ first) @ second).sum().backward()

    ways = functional.relu, functional.relu_
    both = [[Device().peak_memory(partial(step, each))[0] for each in ways] for step in (named, nested)]
    assert [out - into for out, into in both] == [x.nbytes, 0]


@pytest.mark.parametrize("first", [nn.InstanceNorm2d(4), nn.Flatten()])
def test_after_a_view_in_place_copies_the_gradient_and_so_does_an_addition(first: nn.Module) -> None:
    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    for write in (functional.leaky_relu_, functional.relu_, lambda y: y.add_(1)):
        assert cases.copies_of(lambda write=write: (write(first(x * 1)) * 2).sum().backward()) == 1


@pytest.mark.parametrize(("gives", "saves"), [(torch.bfloat16, True), (torch.float32, False)])
def test_where_the_next_layer_casts_it_keeps_a_copy_of_its_own(gives: torch.dtype, saves: bool) -> None:
    first, last, x = nn.Linear(64, 64), nn.Linear(64, 64), torch.randn(128, 64)
    alive = [x, *first.parameters(), *last.parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        ways = functional.leaky_relu, functional.leaky_relu_
        both = [kept_bytes(lambda each=each: last(each(first(x).to(gives))), alive) for each in ways]
    assert (both[1] < both[0]) is saves


def test_kept_by_names_what_each_operation_of_the_reference_page_keeps() -> None:
    cells = json.loads(find_lesson("in_place_operations").path.read_text(encoding="utf-8"))["cells"]
    (pasted,) = ("".join(cell["source"]) for cell in cells if "standalone" in cell["metadata"].get("tags", []))
    kept_by, x = _run(pasted)["kept_by"], torch.randn(4, 3)
    kinds = {
        ("its output", "its output"): [nn.ReLU],
        ("its input", "its output"): [nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU],
        ("its input", "a copy of its input"): [nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid, nn.ReLU6, nn.Hardtanh],
        ("another tensor", "another tensor"): [nn.Dropout],
    }
    for expected, layers in kinds.items():
        for layer in layers:
            assert [kept_by(layer(inplace=each), x) for each in (False, True)] == [[each] for each in expected]
    assert kept_by(nn.Threshold(0, 0, inplace=True), x) == ["a copy of its input"]
    assert kept_by(lambda x: x * 2, x) == []
    for raises in (nn.LeakyReLU(-0.1, inplace=True), nn.Sequential(nn.Sigmoid(), nn.LeakyReLU(inplace=True))):
        with pytest.raises(RuntimeError):
            kept_by(raises, x)


@pytest.mark.parametrize("layer", [nn.ReLU, nn.LeakyReLU, nn.SiLU])
def test_where_all_so_far_is_frozen_every_activation_saves_in_place_and_copies_nothing(layer: type[nn.Module]) -> None:
    def step(inplace: bool) -> None:
        wide = _frozen(nn.Sequential(nn.Linear(64, 4096), layer(inplace=inplace)))
        nn.Linear(4096, 8)(wide(x)).sum().backward()

    x = torch.randn(512, 64)
    both = [Device().peak_memory(lambda each=each: step(each))[0] for each in (False, True)]
    assert both[0] - both[1] > 7 * 2**20
    assert cases.copies_of(lambda: step(True)) == 0


def test_overwriting_layers_names_them_in_every_variant() -> None:
    (page,) = (page for page in reference_pages() if page.stem == "in_place_operations")
    find = _run("\n".join(code_blocks(page)))["overwriting_layers"]
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)), torch.randn(2, 4)
    nested = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.SiLU(inplace=True), nn.Linear(4, 4)))
    assert find(nested, x) == ["1.0", "1"]
    with torch.autocast("cpu", torch.bfloat16):
        assert find(model, x) == ["1"]
    with warnings.catch_warnings(action="ignore"):
        assert find(torch.compile(model, backend="eager"), x) == ["_orig_mod.1"]
    with pytest.raises(RuntimeError):
        find(model, torch.randn(2, 5))
    assert not torch.nn.modules.module._global_forward_hooks
