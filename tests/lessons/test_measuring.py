"""What `measuring` says of PyTorch's counter of operations."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

X = torch.randn(4, 8, 16)
LAYER = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, batch_first=True)


def grouped() -> torch.Tensor:
    a, b = torch.ones(16, 16, dtype=torch.bfloat16), torch.ones(2, 16, 16, dtype=torch.bfloat16)
    return nn.functional.grouped_mm(a, b, offs=torch.tensor([8, 16], dtype=torch.int32))


@torch.no_grad()
def evaluated() -> torch.Tensor:
    return LAYER.eval()(X)


UNCOUNTED = {
    "grouped_mm": grouped,
    "LSTM": lambda: nn.LSTM(16, 16)(X),
    "TransformerEncoderLayer": evaluated,
}


def counted(call) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("what", UNCOUNTED)
def test_what_the_counter_of_operations_misses(what: str):
    assert counted(UNCOUNTED[what]) == 0


def test_the_counter_counts_the_layer_in_training():
    assert counted(lambda: LAYER.train()(X)) > 0
