"""Checks of the lesson. None of them needs ranks: formulas, stand-ins, and a model that is sharded over one rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_utils.lessons.answers import UNKNOWN, NotRight, ask, exercise, number, recognise, truth

# (strategy, parameters, ranks).
_CASES = tuple(
    (strategy, *size) for strategy in ("ddp", "zero1", "fsdp") for size in ((1_000_000, 4), (7_000_000_000, 64))
)


def _formula(weights: float, gradients: float, optimizer: float, sharded: str) -> Callable[[str, int, int], float]:
    """A formula for each strategy, from the bytes of a parameter; ``sharded`` names what ZeRO-1 spreads: w, g, o."""

    def of(strategy: str, parameters: int, ranks: int) -> float:
        whole = {"w": weights, "g": gradients, "o": optimizer}
        spread = {"ddp": "", "zero1": sharded, "fsdp": "wgo"}[strategy]
        return sum(size * parameters / (ranks if part in spread else 1) for part, size in whole.items())

    return of


@exercise
def check_rank_bytes(answer: Any) -> str | None:
    """Compares with each formula that people write."""
    given = [number(ask(answer, *case), "A number of bytes") for case in _CASES]
    formulas: dict[str | None, Callable[[str, int, int], float]] = {
        None: _formula(4, 4, 8, "o"),
        "no_optimizer": _formula(4, 4, 0, "o"),
        "one_moment": _formula(4, 4, 4, "o"),
        "no_gradients": _formula(4, 0, 8, "o"),
        "zero1_shards_gradients": _formula(4, 4, 8, "go"),
        "zero1_shards_all": _formula(4, 4, 8, "wgo"),
    }
    key = recognise(given, formulas, _CASES, rel_tol=1e-5)  # a share may be rounded up to whole bytes
    if key != UNKNOWN:
        return key
    right = [formulas[None](*case) for case in _CASES]
    divides_ddp = math.isclose(given[0], right[0] / _CASES[0][2])
    whole_fsdp = math.isclose(given[0], right[0]) and math.isclose(given[4], right[0])
    if divides_ddp or whole_fsdp:
        return "per_cluster"
    wrong = next(n for n, value in enumerate(given) if not math.isclose(value, right[n], rel_tol=1e-5))
    strategy, parameters, ranks = _CASES[wrong]
    raise NotRight(
        f"For {strategy!r}, {parameters:,} parameters and {ranks} ranks you return {given[wrong]:.6g} bytes, and "
        f"{right[wrong]:.6g} is right. Write down the bytes part by part: weights, gradients, optimizer."
    )


def _layers() -> nn.ModuleDict:
    return nn.ModuleDict({"first": nn.Linear(3, 3), "second": nn.Linear(3, 3)})


def _rewrap(*layers: nn.Module) -> None:
    """Replace parameters by new ones of the same values, as ``fully_shard`` does."""
    for layer in layers:
        for key, weight in list(layer.named_parameters()):
            setattr(layer, key, nn.Parameter(weight.detach().clone()))


def _situations() -> Iterator[tuple[str, nn.Module, torch.optim.Optimizer, bool]]:
    """What the optimizer is, the model, the optimizer, and whether it steps all that is to be trained."""
    model = _layers()
    yield "last", model, torch.optim.SGD(model.parameters(), lr=0.1), True
    model = _layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _rewrap(*model.values())
    yield "first", model, optimizer, False
    model = _layers()
    groups = [{"params": layer.parameters(), "lr": lr} for layer, lr in zip(model.values(), (0.1, 0.01), strict=True)]
    yield "groups", model, torch.optim.SGD(groups, lr=0.1), True
    model = _layers()
    optimizer = torch.optim.SGD([{"params": layer.parameters()} for layer in model.values()], lr=0.1)
    _rewrap(model["second"])
    yield "half", model, optimizer, False
    model = _layers()
    model["second"].requires_grad_(False)
    yield "frozen", model, torch.optim.SGD(model["first"].parameters(), lr=0.1), True
    model = _layers()
    yield "part", model, torch.optim.SGD(model["first"].parameters(), lr=0.1), False
    model = _layers()
    model["second"].requires_grad_(False)
    yield "given", model, torch.optim.SGD(model.parameters(), lr=0.1), True


@contextmanager
def _one_rank() -> Iterator[DeviceMesh]:
    if dist.is_initialized():
        words = "A process group of this notebook is still there: call torch.distributed.destroy_process_group() first."
        raise NotRight(words)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def _evaluated(answer: Any) -> bool:
    """Whether an answer holds for a model of which a forward pass without a backward pass has left the root whole."""

    def sharded() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        fully_shard(model[0], mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def evaluate(model: nn.Module) -> None:
        with torch.no_grad():
            model(torch.ones(1, 3))

    with _one_rank() as mesh:
        model = sharded()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        evaluate(model)
        built_before = truth(ask(answer, model, optimizer))
        model = sharded()
        evaluate(model)
        built_after = truth(ask(answer, model, torch.optim.SGD(model.parameters(), lr=0.1)))
    return built_before and not built_after


_DESCRIBED = {
    "last": "built after wrapping",
    "first": "built before wrapping",
    "groups": "with two groups, built after wrapping",
    "half": "with one stale group of two",
    "frozen": "of the layers that are trained, others being frozen",
    "part": "of one layer, where both are trained",
    "given": "of all parameters, where one layer is frozen",
}


@exercise
def check_steps_the_model(answer: Any) -> str | None:
    """Asks about optimizers that were built before and after, in whole and in part, and then about real shards."""
    right = {}
    for name, model, optimizer, steps in _situations():
        if truth(ask(answer, model, optimizer)) != steps:
            right[name] = steps
    wrong = list(right)
    if not wrong:
        return None if _evaluated(answer) else "gathered"
    if len(wrong) == len(_DESCRIBED):
        return "turned_round"
    misconceptions = {
        "frozen": {"frozen"},
        "counts": {"first", "half", "frozen"},
        "frozen_given": {"given"},
        "other_way": {"part"},
    }
    for key, mistaken in misconceptions.items():
        if set(wrong) == mistaken:
            return key
    if set(wrong) <= {"groups", "half", "part"}:
        return "first_group"
    if {"first", "half"} <= set(wrong):
        return "compares_values"
    raise NotRight(f"For an optimizer {_DESCRIBED[wrong[0]]}, {right[wrong[0]]} is right.")
