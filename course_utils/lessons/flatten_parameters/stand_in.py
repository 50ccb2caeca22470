"""An LSTM on a CPU that keeps its weights as one on a GPU does: PyTorch's rules, and a buffer that is laid by hand."""

from __future__ import annotations

import copy
import io
import itertools
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, parametrize, prune, vector_to_parameters
from torch.optim.swa_utils import AveragedModel

WARNING = "single contiguous chunk of memory"


def _in_order(weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Matrices before biases, otherwise as they come: the order that the lesson assumes of cuDNN."""
    return sorted(weights, key=lambda weight: -weight.dim())


def lay_flat(weights: Sequence[torch.Tensor]) -> None:
    """Make weights views of one new buffer, side by side."""
    ordered = _in_order(weights)
    buffer = torch.cat([weight.detach().flatten() for weight in ordered])
    for weight, piece in zip(ordered, buffer.split([weight.numel() for weight in ordered]), strict=True):
        weight.data = piece.view_as(weight)


def is_flat(weights: Sequence[torch.Tensor]) -> bool:
    ordered = _in_order(weights)
    start = ordered[0].untyped_storage().data_ptr()
    in_one = all(weight.untyped_storage().data_ptr() == start for weight in ordered)
    side_by_side = all(a.data_ptr() + a.nbytes <= b.data_ptr() for a, b in itertools.pairwise(ordered))
    return in_one and ordered[0].data_ptr() == start and side_by_side


class CountingLSTM(nn.LSTM):
    calls = 0
    forwards = 0

    def flatten_parameters(self) -> None:
        """Lay the weights into one buffer, on the conditions that nn.LSTM has on a GPU."""
        self.calls += 1
        weights = self._flat_weights
        apart = len({weight.data_ptr() for weight in weights}) == len(weights)
        if weights[0].device.type == "cuda":
            super().flatten_parameters()
        elif apart and {weight.dtype for weight in weights} <= torch.backends.cudnn.CUDNN_TENSOR_DTYPES:
            lay_flat(weights)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.forwards += 1
        return super().forward(*args, **kwargs)


def examine(change: Callable[[CountingLSTM], Any], where: str = "cpu") -> dict[str, Any]:
    """What an operation does to an LSTM whose weights lie in one buffer: a row of the lesson's table.

    Args:
        change: the operation. It changes its argument, or returns another LSTM, or a function that makes one for each
            forward.
        where: a device. On a GPU, the row also says whether cuDNN's wrapper warned.
    """
    made = CountingLSTM(32, 64, num_layers=2, device=where)
    changed = change(made)
    anew = callable(changed) and not isinstance(changed, nn.Module)
    rnn = changed() if anew else changed if isinstance(changed, nn.Module) else made
    scattered = not is_flat([getattr(rnn, name) for name in rnn._flat_weights_names])
    x = torch.zeros(3, 2, 32, dtype=rnn.weight_ih_l0.dtype, device=where)
    called = []
    for forward in range(2):
        rnn = changed() if anew and forward else rnn
        before = rnn.calls
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rnn(x)
        called.append(rnn.calls > before)
    still = not is_flat(rnn._flat_weights)
    row = {
        "scattered after it": scattered,
        "scattered in forward 2": still,
        "on CUDA, by the stand-in": _on_cuda(still, *called),
        "called in forward 1": called[0],
        "called in forward 2": called[1],
    }
    warned = any(WARNING in str(warning.message) for warning in caught)
    return row | ({"cuDNN warns": warned} if where == "cuda" else {})


def _on_cuda(scattered: bool, called_first: bool, called_again: bool) -> str:
    if scattered:
        return "copies all, at each call"
    if called_again:
        return "flattens in each forward"
    return "flattens once, then in place" if called_first else "in place"


def cloned(rnn: nn.Module) -> dict[str, torch.Tensor]:
    """The weights by name, each in memory of its own."""
    return {name: weight.detach().clone() for name, weight in rnn.named_parameters()}


def saved_and_loaded(rnn: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(rnn, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _trained(rnn: nn.LSTM) -> None:
    rnn(torch.ones(3, 2, 32, device=rnn.weight_ih_l0.device))[0].sum().backward()
    torch.optim.AdamW(rnn.parameters()).step()


def _replica(rnn: nn.LSTM) -> nn.LSTM:
    """As ``DataParallel`` makes it in each forward, where gradients are on: the copies are set as plain attributes."""
    made = rnn._replicate_for_data_parallel()
    for name, weight in rnn.named_parameters():
        setattr(made, name, weight.clone())
    return made


def _vectored(rnn: nn.LSTM, before: Sequence[torch.Tensor] = ()) -> nn.LSTM:
    weights = [*before, *rnn.parameters()]
    vector_to_parameters(parameters_to_vector(weights), weights)
    return rnn


MORE_OPERATIONS: dict[str, Callable[[CountingLSTM], Any]] = {
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
    "vector_to_parameters, 1 layer": lambda rnn: _vectored(CountingLSTM(32, 64, device=rnn.weight_ih_l0.device)),
    "vector_to_parameters, 2 layers": _vectored,
    "vector_to_parameters, a model": lambda rnn: _vectored(rnn, [rnn.weight_ih_l0.new_zeros(100)]),
    "tied weights": lambda rnn: setattr(rnn, "weight_hh_l1", rnn.weight_hh_l0),
    ".bfloat16()": lambda rnn: rnn.bfloat16(),
}
"""What is done to an LSTM of two layers, besides the operations that the lesson asks about."""


def counted(run: Callable[[nn.Module, torch.Tensor], Any], rnn: CountingLSTM) -> dict[str, int]:
    computed: list[None] = []
    x = torch.zeros(1, 1, rnn.input_size)
    if parametrize.is_parametrized(rnn):
        rnn.parametrizations.weight_hh_l0.register_forward_hook(lambda *_: computed.append(None))
    rnn(x)
    computed.clear()
    before = rnn.calls
    run(rnn, x)
    return {"computed": len(computed), "flattened": rnn.calls - before}
