"""The memory of a training step: three ways to know it that agree with each other and with arithmetic."""

import torch
from torch import nn
from torch.nn import functional

from course_utils.materials.models import GPT
from course_utils.materials.step_memory import kept_bytes, peak_bytes, worked_out


def _small_gpt():
    model = GPT(vocabulary=256, context=32, width=32, layers=1, heads=2)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(8, 32, dtype=torch.long)

    def step():
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def test_a_step_that_is_worked_out_has_the_peak_of_one_that_is_measured():
    model, optimizer, step = _small_gpt()
    step()
    state = [value for values in optimizer.state.values() for value in values.values()]
    standing = sum(tensor.nbytes for tensor in [*model.parameters(), *state]) + 8 * 32 * 8
    assert peak_bytes(step) + standing == worked_out(_small_gpt).peak_bytes


def test_what_a_layer_keeps_but_for_what_is_named():
    model, x = nn.Linear(64, 64), torch.randn(8, 64)
    assert kept_bytes(lambda: model(x).relu(), [x, *model.parameters()]) == x.nbytes
    assert kept_bytes(lambda: model(x), [x, *model.parameters()]) == 0
    assert kept_bytes(lambda: model(x), model.parameters()) == x.nbytes
