"""The check of the lesson's exercise: it counts the calls."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from course_utils.lessons.answers import NotRight, effect, exercise
from course_utils.lessons.flatten_parameters.stand_in import EIGHT, FlatteningLSTM

_NEEDY = {"an averaged one", "a copy"}
_SELF_REPAIRING = {"load_state_dict(assign=True)", "new Parameter", "weight_norm"}
_DONE = {  # names, and what was done to each; the copy is made where they are
    "an encoder": ("optimizer step", lambda rnn: torch.optim.SGD(rnn.parameters(), lr=0.1).step()),
    "a loaded one": ("load_state_dict", EIGHT["load_state_dict"]),
    "an assigned one": ("load_state_dict(assign=True)", EIGHT["load_state_dict(assign=True)"]),
    "an averaged one": ("p.data =", EIGHT["p.data = ..."]),
    "a replaced one": ("new Parameter", lambda rnn: setattr(rnn, "bias_hh_l0", nn.Parameter(torch.zeros(32)))),
    "a copy": ("deepcopy", lambda rnn: None),
    "a normed one": ("weight_norm", EIGHT["weight_norm"]),
    "a tied one": ("tied weights", lambda rnn: setattr(rnn, "weight_hh_l1", rnn.weight_hh_l0)),
    "a moved one": (".to(device)", lambda rnn: rnn.to("cpu")),
}


@exercise
def check_repair(answer: Any) -> str | None:
    rnns = {name: FlatteningLSTM(8, 8, num_layers=2) for name in _DONE}
    rnns["a copy"] = copy.deepcopy(rnns["a copy"])
    for name, (_, change) in _DONE.items():
        change(rnns[name])
    done = {name: operation for name, (operation, _) in _DONE.items()}
    before = {name: rnn.calls for name, rnn in rnns.items()}
    effect(answer, dict(rnns), dict(done))
    calls = {name: rnn.calls - before[name] for name, rnn in rnns.items()}
    called = {name for name, count in calls.items() if count}
    if not called:
        return "none"
    if called == set(rnns):
        return "all"
    if "a tied one" in called:
        return "tied"
    if any(done[name] in _SELF_REPAIRING for name in called):
        return "self_repairing"
    if _NEEDY - called == {"a copy"}:
        return "copies"
    if wrong := sorted(called ^ _NEEDY):
        verb = "needs no call" if wrong[0] in called else "needs a call"
        raise NotRight(f"{wrong[0]!r}, after {done[wrong[0]]}, {verb}. Who would notice, and when?")
    if max(calls.values()) > 1:
        raise NotRight("You call flatten_parameters() more than once on one RNN. Each call copies all its weights.")
    return None
