"""The check of the lesson. It needs no ranks: parameters are replaced as ``fully_shard`` does it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer

from course_utils.lessons.answers import NotRight, ask, exercise, truth


def _layers(frozen: str = "") -> nn.ModuleDict:
    return nn.ModuleDict({it: nn.Linear(3, 3).requires_grad_(it != frozen) for it in ("first", "second", "third")})


def _rewrap(layer: nn.Module, *keys: str) -> None:
    """Replace parameters by new ones of the same values."""
    for key in keys:
        setattr(layer, key, nn.Parameter(getattr(layer, key).detach().clone()))


def _situations() -> Iterator[tuple[str, nn.Module, Optimizer, bool]]:
    """What the optimizer is, the model, the optimizer, and whether it steps all that is to be trained."""
    model = _layers()
    yield "built after wrapping", model, SGD(model.parameters(), lr=0.1), True
    model = _layers()
    optimizer = SGD(model.parameters(), lr=0.1)
    for layer in model.values():
        _rewrap(layer, "weight", "bias")
    yield "built before wrapping", model, optimizer, False
    model = _layers()
    groups = [{"params": layer.parameters()} for layer in model.values()]
    yield "with three groups, built after wrapping", model, SGD(groups, lr=0.1), True
    model = _layers()
    optimizer = SGD([{"params": layer.parameters()} for layer in model.values()], lr=0.1)
    _rewrap(model["second"], "bias")
    yield "with one stale bias, in the second group of three", model, optimizer, False
    model = _layers(frozen="second")
    trained = [*model["first"].parameters(), *model["third"].parameters()]
    yield "of the layers that are trained, another being frozen", model, SGD(trained, lr=0.1), True
    yield "of all parameters, where one layer is frozen", model, SGD(model.parameters(), lr=0.1), True
    model = _layers()
    yield "of one layer, where all are trained", model, SGD(model["first"].parameters(), lr=0.1), False
    model = _layers(frozen="first")
    two = [*model["first"].parameters(), *model["second"].parameters()]
    yield "of a frozen layer and of one of two that are trained", model, SGD(two, lr=0.1), False


# By which of these situations, in their order, are taken for the other thing.
_MISTAKEN = {
    (4,): "frozen",
    (1, 3, 4): "counts",
    (5,): "frozen_given",
    (6, 7): "other_way",
    (0, 1, 2, 3, 4, 5, 6, 7): "turned_round",
}


@exercise
def check_steps_the_model(answer: Any) -> str | None:
    wrong, words = [], ""
    for number, (what, model, optimizer, steps) in enumerate(_situations()):
        if truth(ask(answer, model, optimizer)) != steps:
            wrong.append(number)
            words = words or f"For an optimizer {what}, {steps} is right."
    if not wrong:
        return None
    if key := _MISTAKEN.get(tuple(wrong)):
        return key
    if set(wrong) & {2, 3} and set(wrong) <= {2, 3, 6, 7}:
        return "first_group"
    if {1, 3} <= set(wrong):
        return "compares_values"
    raise NotRight(words)
