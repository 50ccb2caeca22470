"""An LSTM on a CPU that keeps its weights as one on a GPU does, and eight things that people do to one."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.optim.swa_utils import AveragedModel

WARNING = "single contiguous chunk of memory"


def lay_flat(weights: Sequence[torch.Tensor]) -> None:
    """Make weights views of one new block, matrices before biases: cuDNN's order, by its warnings on the H200."""
    ordered = sorted(weights, key=lambda weight: -weight.dim())
    block = torch.cat([weight.detach().flatten() for weight in ordered])
    for weight, piece in zip(ordered, block.split([weight.numel() for weight in ordered]), strict=True):
        weight.data = piece.view_as(weight)


def is_flat(weights: Sequence[torch.Tensor]) -> bool:
    starts = [weight.data_ptr() for weight in sorted(weights, key=lambda weight: -weight.dim())]
    in_one = all(weight.untyped_storage().data_ptr() == starts[0] for weight in weights)
    return in_one and starts == sorted(set(starts))


class FlatteningLSTM(nn.LSTM):
    """It lays its weights into one block on a CPU, too, on the conditions that nn.LSTM has on a GPU; and counts."""

    calls = 0

    def flatten_parameters(self) -> None:
        self.calls += 1
        weights = self._flat_weights
        apart = len({weight.data_ptr() for weight in weights}) == len(weights)
        if weights[0].device.type == "cuda":
            super().flatten_parameters()
        elif apart and {weight.dtype for weight in weights} <= torch.backends.cudnn.CUDNN_TENSOR_DTYPES:
            lay_flat(weights)


def examine(change: Callable[[FlatteningLSTM], Any], where: str = "cpu") -> dict[str, bool]:
    """What the second forward after an operation finds. The operation may return another LSTM, or a maker of one."""
    made = FlatteningLSTM(32, 64, num_layers=2, device=where)
    changed = change(made)
    for _ in range(2):
        rnn = changed if isinstance(changed, nn.Module) else changed() if callable(changed) else made
        before = rnn.calls
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rnn(torch.zeros(3, 2, 32, dtype=rnn.weight_ih_l0.dtype, device=where))
    row = {"scattered in forward 2": not is_flat(rnn._flat_weights), "called in forward 2": rnn.calls > before}
    return row | ({"cuDNN warns": any(WARNING in str(each.message) for each in caught)} if where == "cuda" else {})


def _saved_and_loaded(rnn: nn.Module) -> nn.Module:
    torch.save(rnn, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=False)


EIGHT: dict[str, Callable[[FlatteningLSTM], Any]] = {
    "copy.deepcopy": copy.deepcopy,
    "AveragedModel": lambda rnn: AveragedModel(rnn).module,
    "p.data = ...": lambda rnn: setattr(rnn.weight_hh_l0, "data", rnn.weight_hh_l0.data.clone()),
    "p.data.copy_(...)": lambda rnn: rnn.weight_hh_l0.data.copy_(rnn.weight_hh_l0.data.clone()),
    "load_state_dict": lambda rnn: rnn.load_state_dict(copy.deepcopy(rnn).state_dict()),
    "load_state_dict(assign=True)": lambda rnn: rnn.load_state_dict(copy.deepcopy(rnn).state_dict(), assign=True),
    "torch.save, torch.load": _saved_and_loaded,
    "weight_norm": lambda rnn: weight_norm(rnn, "weight_hh_l0"),
}
