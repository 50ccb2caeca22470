"""`in_place_operations`: what the flag saves, beside which layers, and the code to paste; more is in its lesson.yml."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from course_utils.lessons.in_place_operations import cases
from course_utils.materials.step_memory import kept_bytes, worked_out
from course_utils.measure.devices import Device
from tests.lessons.pasted import pasted

NEWER = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)  # its linear layer gives no view


@pytest.mark.parametrize(("name", "tensors"), [("LeakyReLU", 4), ("SiLU", 0)])
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


@pytest.mark.parametrize(
    ("following", "saves"),
    [
        (nn.Linear(16, 16).requires_grad_(False), False),
        (nn.Conv2d(4, 4, 1).requires_grad_(False), True),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), False),
        (nn.AdaptiveAvgPool2d(1), False),
        (nn.MaxPool2d(2), True),
    ],
)
def test_leaky_relu_in_place_saves_before_what_keeps_its_input(following: nn.Module, saves: bool) -> None:
    first, x = nn.Conv2d(4, 4, 1), torch.randn(8, 4, 16, 16)
    alive = [x, *first.parameters(), *following.parameters(), *following.buffers()]
    ways = functional.leaky_relu, functional.leaky_relu_
    both = [kept_bytes(lambda each=each: following(each(first(x))), alive) for each in ways]
    assert both[0] - both[1] == x.nbytes * saves


@pytest.mark.parametrize(
    ("size", "bias", "more"), [((8, 128, 64), True, not NEWER), ((1024, 64), True, 0), ((8, 128, 64), False, 0)]
)
def test_before_2_15_a_linear_layer_with_bias_on_3d_input_has_the_gradient_copied_and_the_peak_rises(size, bias, more):
    def step(inplace: bool) -> None:
        nn.Sequential(nn.Linear(64, 256, bias), nn.LeakyReLU(inplace=inplace), nn.Linear(256, 64))(x).sum().backward()

    x = torch.randn(size)
    both = [Device().peak_memory(lambda each=each: step(each))[0] for each in (False, True)]
    assert cases.copies_of(lambda: step(True)) - cases.copies_of(lambda: step(False)) == more
    assert (both[1] > both[0]) is bool(more)


def test_kept_by_names_what_each_operation_of_the_reference_page_keeps() -> None:
    kept_by, x = pasted("in_place_operations", "def kept_by(")["kept_by"], torch.randn(4, 3)
    kinds = {
        ("its output", "its output"): [nn.ReLU],
        ("its input", "its output"): [nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU],
        ("its input", "a copy of its input"): [nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid, nn.ReLU6, nn.Hardtanh],
        ("another tensor", "another tensor"): [nn.Dropout],
    }
    for expected, layers in kinds.items():
        for layer in layers:
            assert [kept_by(layer(inplace=each), x) for each in (False, True)] == [[each] for each in expected]
    assert kept_by(lambda x: x * 2, x) == []
    with pytest.raises(RuntimeError):
        kept_by(nn.Sequential(nn.Sigmoid(), nn.LeakyReLU(inplace=True)), x)
