"""Checks of lesson 08. Where a GPU would flatten, a stand-in lays the weights into one buffer and counts the call."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.nn.utils.parametrizations import weight_norm

from course_utils.lessons.answers import NotRight, ask, effect, exercise, listed, number


@exercise
def check_scattered_rnns(answer: Any) -> str | None:
    """Runs the answer on a model that has an RNN of each kind."""
    model, scattered = _model_to_search()
    given = ask(answer, model)
    if isinstance(given, str):
        raise NotRight("Return the names of the scattered RNNs as a list, even if it is only one; you return a text.")
    given = listed(given)
    if not all(isinstance(name, str) for name in given):
        raise NotRight("Return names, as `model.named_modules()` gives them: texts, and nothing else.")
    names = set(given)
    if names == scattered:
        return None
    if not names:
        return "each_contiguous"
    if names - scattered:
        return "everything"
    missing = scattered - names
    for key, overlooked in {
        "top_level": {name for name in scattered if "." in name},
        "storages_only": {"shifted", "shuffled"},
        "any_start": {"shifted"},
        "offsets_only": {"borrower"},
        "any_order": {"shuffled"},
    }.items():
        if missing == overlooked:
            return key
    raise NotRight(f"You overlook {', '.join(sorted(missing))}. Print where its weights lie: storage and data_ptr().")


@exercise
def check_repair(answer: Any) -> str | None:
    """Runs the answer on stand-ins that count, then runs each forward twice."""
    rnns, done, needy = _rnns_to_repair()
    before = {name: rnn.calls for name, rnn in rnns.items()}
    effect(answer, dict(rnns), dict(done))
    if any(rnn.forwards for rnn in rnns.values()):
        raise NotRight("You run a forward, which may flatten by itself. Decide by `done`, before any forward runs.")
    calls = {name: rnn.calls - before[name] for name, rnn in rnns.items()}
    called = {name for name, count in calls.items() if count}
    if not called:
        return "none"
    if called == set(rnns):
        return "all"
    if "a tied one" in called:
        return "tied"
    idle = {name for name in called if done[name] in ("load_state_dict(assign=True)", "new Parameter", "weight_norm")}
    if idle:
        return "self_repairing"
    if needy - called == {"a copy"}:
        return "copies"
    if called != needy:
        wrong = sorted(called ^ needy)[0]
        verb = "needs no call" if wrong in called else "needs a call"
        raise NotRight(f"{wrong!r}, after {done[wrong]}, {verb}. Look at its row in the table.")
    if any(count > 1 for count in calls.values()):
        raise NotRight("You call flatten_parameters() more than once on one RNN. Each call copies all its weights.")
    for name in needy:
        effect(rnns[name], torch.zeros(1, 1, 8))
        if not _in_one_buffer(rnns[name]._flat_weights):
            raise NotRight(f"{name!r} is not flat after your call. Call flatten_parameters() of the RNN itself.")
    return None


@exercise
def check_fallback_cost(answer: Any) -> str | None:
    """Compares with the formulas that people write, on RNNs where they differ."""
    shapes = (("lstm", 32, 64, 1), ("lstm", 48, 64, 3), ("gru", 32, 64, 2))
    given = []
    for shape in shapes:
        pair = ask(answer, *shape)
        values = [number(value, "Two numbers of bytes") for value in listed(pair)] if isinstance(pair, Iterable) else []
        if len(values) != 2:
            raise NotRight("Return two numbers: bytes of extra memory, and bytes that are read or written.")
        given.append(tuple(values))
    formulas: dict[str | None, dict[str, Any]] = {
        None: {},
        "elements": {"width": 1},
        "no_bias": {"biases": 0},
        "same_input": {"stacked": False},
        "gates": {"lstm_only": True},
        "copy_only": {"passes": 2},
        "one_pass": {"passes": 1},
    }
    for key, variant in formulas.items():
        if given == [_fallback_cost(*shape, **variant) for shape in shapes]:
            return key
    expected = _fallback_cost(*shapes[0])
    if given[0] == expected:
        raise NotRight(
            "One layer of an LSTM comes out right. Try two layers, and a GRU, and compare with nn.LSTM, nn.GRU."
        )
    raise NotRight(
        f"For {shapes[0]} you return {given[0][0]:.0f} and {given[0][1]:.0f} bytes; {expected[0]:.0f} and "
        f"{expected[1]:.0f} are right. Add up w.nbytes over nn.LSTM(32, 64).parameters()."
    )


class StandInLSTM(nn.LSTM):
    """An LSTM on a CPU that flattens as one on a GPU does, and counts how often it was asked to, and ran."""

    calls = 0
    forwards = 0

    def flatten_parameters(self) -> None:
        """Lay the weights into one buffer, unless two of them share their memory."""
        self.calls += 1
        weights = self._flat_weights
        if len({weight.data_ptr() for weight in weights}) == len(weights):
            _lay(sorted(weights, key=lambda weight: -weight.dim()))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run as any LSTM, and count it."""
        self.forwards += 1
        return super().forward(*args, **kwargs)


def _lay(weights: Sequence[torch.Tensor], start: int = 0) -> None:
    """Put weights into one new buffer in this order, the first ``start`` elements after its beginning."""
    buffer = torch.cat([torch.zeros(start), *(weight.detach().flatten() for weight in weights)])
    for weight, piece in zip(weights, buffer[start:].split([weight.numel() for weight in weights]), strict=True):
        weight.data = piece.view_as(weight)


def _in_one_buffer(weights: Sequence[torch.Tensor]) -> bool:
    ordered = sorted(weights, key=lambda weight: -weight.dim())
    start = ordered[0].untyped_storage().data_ptr()
    places = itertools.accumulate((weight.nbytes for weight in ordered[:-1]), initial=start)
    return all(
        weight.untyped_storage().data_ptr() == start and weight.data_ptr() == place
        for weight, place in zip(ordered, places, strict=True)
    )


def _model_to_search() -> tuple[nn.Module, set[str]]:
    """A model with flat and scattered RNNs, and the names of the scattered ones."""
    flat = StandInLSTM(8, 16)
    shuffled = nn.LSTM(8, 16)
    _lay([shuffled.weight_ih_l0, shuffled.bias_ih_l0, shuffled.weight_hh_l0, shuffled.bias_hh_l0])
    shifted = nn.LSTM(8, 16)
    _lay(list(shifted.parameters()), start=64)
    one_elsewhere = StandInLSTM(8, 16)
    one_elsewhere.weight_hh_l0.data = one_elsewhere.weight_hh_l0.data.clone()
    flat_gru = nn.GRU(8, 16)
    _lay(list(flat_gru.parameters()))
    lender, borrower = StandInLSTM(8, 16), StandInLSTM(8, 16)
    for rnn in (lender, borrower):
        rnn.flatten_parameters()
    borrower.weight_hh_l0.data = lender.weight_hh_l0.data
    model = nn.ModuleDict(
        {
            "flat": flat,
            "lender": lender,
            "borrower": borrower,
            "copied": copy.deepcopy(flat),
            "shuffled": shuffled,
            "shifted": shifted,
            "head": nn.Linear(8, 8),
            "decoder": nn.ModuleDict({"flat_gru": flat_gru, "one_elsewhere": one_elsewhere, "gru": nn.GRU(8, 16)}),
        }
    )
    return model, {"borrower", "copied", "shuffled", "shifted", "decoder.one_elsewhere", "decoder.gru"}


def _rnns_to_repair() -> tuple[dict[str, StandInLSTM], dict[str, str], set[str]]:
    """RNNs by name, what was done to each, and the names of those that need a call."""

    def assign(rnn: nn.LSTM) -> None:
        rnn.load_state_dict({key: value.clone() for key, value in rnn.state_dict().items()}, assign=True)

    def new_data(rnn: nn.LSTM) -> None:
        rnn.weight_hh_l0.data = rnn.weight_hh_l0.data.clone()

    def new_parameter(rnn: nn.LSTM) -> None:
        rnn.weight_hh_l0 = nn.Parameter(rnn.weight_hh_l0.detach().clone())

    def from_vector(rnn: nn.LSTM) -> None:
        # Part of a model: something else comes first in the vector.
        parameters = [*nn.Linear(4, 4).parameters(), *rnn.parameters()]
        vector_to_parameters(parameters_to_vector(parameters), parameters)

    def tie(rnn: nn.LSTM) -> None:
        rnn.weight_hh_l1 = rnn.weight_hh_l0

    steps = {
        "an encoder": ("optimizer step", lambda rnn: torch.optim.SGD(rnn.parameters(), lr=0.1).step()),
        "a loaded one": ("load_state_dict", lambda rnn: rnn.load_state_dict(rnn.state_dict())),
        "an assigned one": ("load_state_dict(assign=True)", assign),
        "an averaged one": ("p.data =", new_data),
        "a replaced one": ("new Parameter", new_parameter),
        "a copy": ("deepcopy", lambda rnn: None),
        "an evolved one": ("vector_to_parameters", from_vector),
        "a normed one": ("weight_norm", lambda rnn: weight_norm(rnn, "weight_hh_l0")),
        "a tied one": ("tied weights", tie),
        "a moved one": (".to(device)", lambda rnn: rnn.to("cpu")),
    }
    rnns = {name: StandInLSTM(8, 8, num_layers=2) for name in steps}
    rnns["a copy"] = copy.deepcopy(rnns["a copy"])
    for name, (_, change) in steps.items():
        change(rnns[name])
    return (
        rnns,
        {name: operation for name, (operation, _) in steps.items()},
        {"an averaged one", "a copy", "an evolved one"},
    )


def _fallback_cost(
    kind: str,
    input_size: int,
    hidden_size: int,
    layers: int,
    *,
    width: int = 4,
    biases: int = 2,
    stacked: bool = True,
    lstm_only: bool = False,
    passes: int = 3,
) -> tuple[float, float]:
    gates = 4 if kind == "lstm" or lstm_only else 3
    inputs = [input_size] + [hidden_size if stacked else input_size] * (layers - 1)
    weights = sum(gates * hidden_size * (inputs_of + hidden_size + biases) for inputs_of in inputs)
    return float(weights * width), float(passes * weights * width)
