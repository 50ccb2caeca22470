"""Checks of the lesson."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.nn.utils.parametrizations import weight_norm

from course_utils.lessons.answers import NotRight, ask, effect, exercise, number
from course_utils.lessons.flatten_parameters.stand_in import CountingLSTM, is_flat

# The first length at which 6/(7+L) is below 5%, the share where memory alone decides.
_UPPER_BOUND = 114


@exercise
def check_repair(answer: Any) -> str | None:
    """Runs the answer on stand-ins that count, then runs each forward twice."""
    rnns, done, needy = _rnns_to_repair()
    before = {name: rnn.calls for name, rnn in rnns.items()}
    returned = effect(answer, dict(rnns), dict(done))
    if any(rnn.forwards for rnn in rnns.values()):
        raise NotRight("You run a forward, which may flatten by itself. Decide by `done`, before any forward runs.")
    calls = {name: rnn.calls - before[name] for name, rnn in rnns.items()}
    called = {name for name, count in calls.items() if count}
    if not called:
        return "none" if returned is None else "named"
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
        if not is_flat(rnns[name]._flat_weights):
            raise NotRight(f"{name!r} is not flat after your call. Call flatten_parameters() of the RNN itself.")
    return None


@exercise
def check_shortest_length(answer: Any) -> str | None:
    """Compares with the answers of people who count otherwise, on GPUs and sizes where they differ."""
    # Bound by memory, by products, and by products at another batch.
    shapes = ((2048, 32, 2.0e12, 150e12), (1024, 512, 3.0e12, 400e12), (512, 8, 1.0e12, 4e12))
    estimates = [functools.partial(_estimate, *shape) for shape in shapes]
    given = [number(ask(answer, estimate), "A length") for estimate in estimates]
    if given == [_UPPER_BOUND] * len(estimates):
        return "bound"
    ways: dict[str | None, dict[str, Any]] = {
        None: {},
        "of_the_call": {"whole": False},
        "one_more": {"shift": 1},
        "one_less": {"shift": -1},
        "fraction": {"share": 0.5},
        "percent": {"share": 5.0},
    }
    for key, way in ways.items():
        if given == [_shortest_length(estimate, **way) for estimate in estimates]:
            return key
    raise NotRight(
        f"For one GPU you return {given[0]:g}; {_shortest_length(estimates[0])} is right. Try length 1, 2, 3, ... in "
        "estimate(length)."
    )


def _rnns_to_repair() -> tuple[dict[str, CountingLSTM], dict[str, str], set[str]]:
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
    rnns = {name: CountingLSTM(8, 8, num_layers=2) for name in steps}
    rnns["a copy"] = copy.deepcopy(rnns["a copy"])
    for name, (_, change) in steps.items():
        change(rnns[name])
    return (
        rnns,
        {name: operation for name, (operation, _) in steps.items()},
        {"an averaged one", "a copy", "an evolved one"},
    )


def _estimate(hidden: int, batch: int, bandwidth: float, flops: float, length: int) -> tuple[float, float]:
    """The lesson's estimate of copy and call, in seconds, for an LSTM as wide as its input."""
    elements = 4 * hidden**2  # of weight_ih, and of weight_hh
    read, multiplied = 4 * elements / bandwidth, 2 * elements * batch / flops
    call = max(read, multiplied * length) + length * max(read, multiplied)
    return 3 * 4 * (2 * elements + 8 * hidden) / bandwidth, call


def _shortest_length(
    estimate: Callable[[int], tuple[float, float]], share: float = 0.05, whole: bool = True, shift: int = 0
) -> int:
    """The first length at which the copy's share is below; the settings are what people do otherwise."""
    for length in itertools.count(1):
        copy_s, call_s = estimate(length)
        if copy_s / (copy_s * whole + call_s) < share:
            break
    return length + shift
