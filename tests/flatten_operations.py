"""What is done to an LSTM of two layers in the table on the reference page of `flatten_parameters`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, prune, vector_to_parameters
from torch.optim.swa_utils import AveragedModel

from course_utils.lessons.flatten_parameters.stand_in import EIGHT, FlatteningLSTM


def cloned(rnn: nn.Module) -> dict[str, torch.Tensor]:
    """The weights by name, each in memory of its own."""
    return {name: weight.detach().clone() for name, weight in rnn.named_parameters()}


def _trained(rnn: nn.LSTM) -> None:
    rnn(torch.ones(3, 2, 32, device=rnn.weight_ih_l0.device))[0].sum().backward()
    torch.optim.AdamW(rnn.parameters()).step()


def _replica(rnn: nn.LSTM) -> nn.LSTM:
    """As ``DataParallel`` makes it in each forward, where gradients are on: the copies are set as plain attributes."""
    made = rnn._replicate_for_data_parallel()
    for name, weight in cloned(rnn).items():
        setattr(made, name, weight)
    return made


def _vectored(rnn: nn.LSTM, before: Sequence[torch.Tensor] = ()) -> nn.LSTM:
    weights = [*before, *rnn.parameters()]
    vector_to_parameters(parameters_to_vector(weights), weights)
    return rnn


OPERATIONS: dict[str, Callable[[FlatteningLSTM], Any]] = EIGHT | {
    "nn.LSTM(...)": lambda rnn: rnn,
    ".to(device)": lambda rnn: rnn.to(rnn.weight_ih_l0.device),
    "deepcopy, then .to(device)": lambda rnn: copy.deepcopy(rnn).to(rnn.weight_ih_l0.device),
    "AveragedModel(device=...)": lambda rnn: AveragedModel(rnn, device=rnn.weight_ih_l0.device).module,
    ".double()": lambda rnn: rnn.double(),
    "optimizer step": _trained,
    "a new nn.Parameter": lambda rnn: setattr(rnn, "weight_hh_l0", nn.Parameter(cloned(rnn)["weight_hh_l0"])),
    "functional_call, once": lambda rnn: functional_call(rnn, cloned(rnn), rnn.weight_ih_l0.new_zeros(3, 2, 32)),
    "DataParallel's replica": lambda rnn: partial(_replica, rnn),
    "prune": lambda rnn: prune.l1_unstructured(rnn, "weight_hh_l0", amount=0.5),
    "vector_to_parameters, 1 layer": lambda rnn: _vectored(FlatteningLSTM(32, 64, device=rnn.weight_ih_l0.device)),
    "vector_to_parameters, 2 layers": _vectored,
    "vector_to_parameters, a model": lambda rnn: _vectored(rnn, [rnn.weight_ih_l0.new_zeros(100)]),
    "tied weights": lambda rnn: setattr(rnn, "weight_hh_l1", rnn.weight_hh_l0),
    ".bfloat16()": lambda rnn: rnn.bfloat16(),
}
