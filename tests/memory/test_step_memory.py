"""The memory of a training step: three ways to know it that agree with each other and with arithmetic."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from course_utils.materials.models import GPT
from course_utils.materials.step_memory import kept_bytes, peak_bytes, worked_out


def _small_gpt():
    model = GPT(vocabulary=256, context=64, width=64, layers=2, heads=2)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(8, 64, dtype=torch.long)

    def step():
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def test_a_step_that_is_worked_out_has_the_peak_of_one_that_is_measured():
    model, optimizer, step = _small_gpt()
    step()
    state = [value for values in optimizer.state.values() for value in values.values()]
    standing = sum(tensor.nbytes for tensor in [*model.parameters(), *state]) + 8 * 64 * 8
    assert peak_bytes(step) + standing == worked_out(_small_gpt).peak_bytes


@pytest.mark.parametrize(
    ("activation", "tensors"), [(nn.ReLU(), 1), (nn.GELU(), 1), (nn.Identity(), 0), (nn.Tanh(), 1)]
)
def test_what_an_activation_keeps(activation, tensors):
    x = torch.randn(256, 128, requires_grad=True)
    assert kept_bytes(lambda: activation(x)) == tensors * 4 * 256 * 128


def test_weights_and_inputs_do_not_count_when_they_are_named():
    model, x = nn.Linear(64, 64), torch.randn(8, 64)
    assert kept_bytes(lambda: model(x), [x, *model.parameters()]) == 0
    assert kept_bytes(lambda: model(x), model.parameters()) == x.nbytes
