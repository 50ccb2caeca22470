"""Checks of lesson 18. None of them needs ranks: formulas, and stand-ins that note what is done with a model."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from course_utils.lessons.answers import NotAnswered, NotRight, ask, exercise

# (strategy, parameters, ranks).
_CASES = (
    ("ddp", 1_000_000, 4),
    ("ddp", 7_000_000_000, 64),
    ("zero1", 1_000_000, 4),
    ("zero1", 7_000_000_000, 64),
    ("fsdp", 1_000_000, 4),
    ("fsdp", 7_000_000_000, 64),
)
_STRATEGIES = ("ddp", "zero1", "fsdp")


def _formula(weights: float, gradients: float, optimizer: float, sharded: str) -> Callable[[str, int, int], float]:
    """A formula for each strategy, from the bytes of a parameter; ``sharded`` names what ZeRO-1 spreads: w, g, o."""

    def of(strategy: str, parameters: int, ranks: int) -> float:
        whole = {"w": weights, "g": gradients, "o": optimizer}
        spread = {"ddp": "", "zero1": sharded, "fsdp": "wgo"}[strategy]
        return sum(size * parameters / (ranks if part in spread else 1) for part, size in whole.items())

    return of


@exercise(
    "What stays on a rank",
    right="DDP keeps all 16 bytes of a parameter, ZeRO-1 spreads the 8 of the optimizer, and FSDP spreads everything.",
    hints={
        "no_optimizer": (
            "You count weights and gradients. AdamW keeps two numbers for each parameter: how many bytes are they?"
        ),
        "one_moment": "AdamW keeps two moving averages for each parameter, not one.",
        "no_gradients": "You leave out the gradients. From backward() to zero_grad() they are as large as the weights.",
        "zero1_shards_gradients": (
            "Your ZeRO-1 spreads the gradients as well. That is ZeRO-2. What did the measured table say of ZeRO-1?"
        ),
        "zero1_shards_all": "Your ZeRO-1 keeps as little as FSDP. It spreads one of the three parts only.",
        "per_cluster": ("With DDP you divide by the number of ranks, or with FSDP you do not. Who keeps a full copy?"),
    },
)
def check_rank_bytes(answer: Any) -> str | None:
    """Compares with each formula that people write."""
    given = []
    for case in _CASES:
        value = ask(answer, *case)
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise NotRight(f"A number of bytes is asked for, and you return {type(value).__name__}.")
        try:
            given.append(float(value))
        except OverflowError:
            raise NotRight("That is more bytes than any machine has.") from None
    formulas: dict[str | None, Callable[[str, int, int], float]] = {
        None: _formula(4, 4, 8, "o"),
        "no_optimizer": _formula(4, 4, 0, "o"),
        "one_moment": _formula(4, 4, 4, "o"),
        "no_gradients": _formula(4, 0, 8, "o"),
        "zero1_shards_gradients": _formula(4, 4, 8, "go"),
        "zero1_shards_all": _formula(4, 4, 8, "wgo"),
    }
    for key, formula in formulas.items():
        # A share may be rounded up to whole bytes.
        if all(math.isclose(value, formula(*case), rel_tol=1e-5) for value, case in zip(given, _CASES, strict=True)):
            return key
    right = [formulas[None](*case) for case in _CASES]
    by_strategy = dict(zip(_STRATEGIES, zip(given[::2], given[1::2], strict=True), strict=True))
    if not math.isclose(by_strategy["ddp"][0], right[0], rel_tol=1e-5) and math.isclose(given[0], right[0] / 4):
        return "per_cluster"
    if math.isclose(given[4], right[0]) and math.isclose(given[0], right[0]):
        return "per_cluster"
    number = next(
        n for n, (value, x) in enumerate(zip(given, right, strict=True)) if not math.isclose(value, x, rel_tol=1e-5)
    )
    strategy, parameters, ranks = _CASES[number]
    raise NotRight(
        f"For {strategy!r}, {parameters:,} parameters and {ranks} ranks you return {given[number]:.6g} bytes, and "
        f"{right[number]:.6g} is right. Write down the bytes part by part: weights, gradients, optimizer."
    )


class _Network(nn.Module):
    """A model with the shape of a GPT: what is in blocks, and what is not."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(layers))
        self.norm = nn.LayerNorm(4)


class _Sharder:
    """Stands in for ``fully_shard``: each call takes the parameters that no earlier call took."""

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, dict[str, Any], set[int]]] = []
        self.taken: set[int] = set()

    def __call__(self, module: nn.Module, **options: Any) -> nn.Module:
        if isinstance(module, nn.ModuleList):
            # torch 2.13: "fully_shard does not support containers that do not implement forward".
            raise ValueError("fully_shard does not support containers that do not implement forward: a ModuleList")
        if not isinstance(module, nn.Module):
            raise TypeError(f"fully_shard takes a module, and got {type(module).__name__}")
        own = {id(weight) for weight in module.parameters()} - self.taken
        self.taken |= own
        self.calls.append((module, options, own))
        return module


@exercise(
    "Wrap it",
    right="Each block is a group of its own, the root takes what is left, and every weight is in one group.",
    hints={
        "root_only": (
            "All weights are in one group, so all of them are gathered at once. Which modules should be gathered one "
            "after the other?"
        ),
        "root_first": (
            "The first call takes everything that no earlier call has taken, so your calls for the blocks come too "
            "late. From which side do you have to begin?"
        ),
        "blocks_only": (
            "The embedding and the last norm are in no group: each rank keeps them whole, and nobody adds up their "
            "gradients. What takes all that is left?"
        ),
        "too_fine": (
            "You wrap the layers inside of a block one by one. Each group is a collective of its own, and small ones "
            "cost more than they carry. Take a block as one group."
        ),
    },
)
def check_wrap(answer: Any) -> str | None:
    """Runs the answer with a stand-in for ``fully_shard`` on models of two sizes."""
    for layers in (3, 5):
        model, sharder = _Network(layers), _Sharder()
        try:
            result = ask(answer, model, sharder)
        except NotAnswered:
            if not sharder.calls:
                raise
            raise NotRight("`shard` changes the model in place. Return that model as well.") from None
        if not sharder.calls:
            raise NotRight("`shard` is never called. Call it as you would call `fully_shard`.")
        if result is not model:
            raise NotRight(f"Return the model that came in; you return {type(result).__name__}.")
        called = [module for module, _, _ in sharder.calls]
        own = {id(module): taken for module, _, taken in sharder.calls}
        blocks = list(model.blocks)
        if not any(module is model for module in called):
            complete = len(sharder.taken) == len(list(model.parameters()))
            return (
                "blocks_only"
                if not complete and all(any(m is block for m in called) for block in blocks)
                else _says_what_is_left(called, complete)
            )
        if len(called) == 1:
            return "root_only"
        if any(not own[id(block)] for block in blocks if id(block) in own):
            inner = [m for m in called if m is not model and not any(m is block for block in blocks)]
            return "too_fine" if inner and not _is_first(called, model) else "root_first"
        if any(id(block) not in own for block in blocks):
            inner = any(isinstance(module, nn.Linear) for module in called)
            if inner:
                return "too_fine"
            raise NotRight(f"Of {layers} blocks, {sum(id(block) in own for block in blocks)} are groups of their own.")
        if any(isinstance(module, nn.Linear) for module in called):
            return "too_fine"
        if len({id(module) for module in called}) < len(called):
            raise NotRight("You call `shard` twice on the same module. Once is enough.")
    return None


def _is_first(called: list[nn.Module], model: nn.Module) -> bool:
    return called[0] is model


def _says_what_is_left(called: list[nn.Module], complete: bool) -> str:
    if complete:
        raise NotRight(
            "Every weight is in a group, but the model itself is in none. Each group is then a root of its own, and a "
            "root stays gathered after its forward pass. What has to be wrapped last?"
        )
    names = ", ".join(type(module).__name__ for module in called)
    raise NotRight(f"You wrap {names}. What about the weights that are in none of these?")


class _Rewrapped(nn.Module):
    """Replaces some or all parameters by new ones of the same values, as ``fully_shard`` does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def replace(self, *names: str) -> None:
        for name in names:
            layer = getattr(self, name)
            for key, weight in list(layer.named_parameters()):
                setattr(layer, key, nn.Parameter(weight.detach().clone()))


def _situations() -> list[tuple[str, nn.Module, torch.optim.Optimizer, bool]]:
    """What was done, the model, the optimizer, and whether it steps all of the model's parameters."""
    found = []
    torch.manual_seed(0)
    model = _Rewrapped()
    found.append(("last", model, torch.optim.SGD(model.parameters(), lr=0.1), True))
    model = _Rewrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.replace("first", "second")
    found.append(("first", model, optimizer, False))
    model = _Rewrapped()
    groups = [{"params": model.first.parameters()}, {"params": model.second.parameters(), "lr": 0.01}]
    found.append(("groups", model, torch.optim.SGD(groups, lr=0.1), True))
    model = _Rewrapped()
    optimizer = torch.optim.SGD([{"params": model.first.parameters()}, {"params": model.second.parameters()}], lr=0.1)
    model.replace("second")
    found.append(("half", model, optimizer, False))
    model = _Rewrapped()
    model.second.requires_grad_(False)
    found.append(("frozen", model, torch.optim.SGD(model.first.parameters(), lr=0.1), True))
    model = _Rewrapped()
    found.append(("part", model, torch.optim.SGD(model.first.parameters(), lr=0.1), False))
    model = _Rewrapped()
    model.second.requires_grad_(False)
    found.append(("given", model, torch.optim.SGD(model.parameters(), lr=0.1), True))
    return found


@exercise(
    "Catch the silent mistake",
    right="Parameters are compared as objects, in all groups of the optimizer, and frozen ones need no optimizer.",
    hints={
        "compares_values": (
            "You compare values or shapes. A wrapped parameter has the values of the old one, and still is another "
            "object. How do you ask Python whether two names mean the same object?"
        ),
        "first_group": (
            "You look at some of the optimizer's parameters only. There may be several groups, and one stale group is "
            "enough to lose a part of the model."
        ),
        "counts": "You compare numbers of parameters. After wrapping there are as many as before, and they are others.",
        "frozen": (
            "You call a model with frozen parameters a mistake. What does not require a gradient needs no optimizer."
        ),
        "other_way": (
            "You ask whether the model has all that the optimizer steps. An optimizer that was given half of the model "
            "passes. Which of the two lists must be in the other one?"
        ),
        "frozen_given": (
            "You call it a mistake to give frozen parameters to the optimizer. They get no gradient, so it passes over "
            "them. What must not be missing?"
        ),
        "turned_round": "You answer the opposite: True means that the optimizer steps every parameter that is trained.",
    },
)
def check_steps_the_model(answer: Any) -> str | None:
    """Asks about optimizers that were built before and after, in whole and in part."""
    said: dict[str, bool] = {}
    right: dict[str, bool] = {}
    for name, model, optimizer, expected in _situations():
        value = ask(answer, model, optimizer)
        if isinstance(value, np.bool_) or (isinstance(value, torch.Tensor) and value.numel() == 1):
            value = bool(value)
        if not isinstance(value, bool):
            raise NotRight(f"True or False is asked for, and you return {type(value).__name__}.")
        said[name], right[name] = value, expected
    if said == right:
        return None
    if all(said[name] is not right[name] for name in said):
        return "turned_round"
    wrong = {name for name in said if said[name] != right[name]}
    if wrong == {"frozen"}:
        return "frozen"
    if wrong == {"first", "half", "frozen"}:
        return "counts"
    if wrong == {"given"}:
        return "frozen_given"
    if wrong == {"part"}:
        return "other_way"
    if wrong <= {"groups", "half", "part"}:
        return "first_group"
    if {"first", "half"} <= wrong:
        return "compares_values"
    described = {
        "last": "built after wrapping",
        "first": "built before wrapping",
        "groups": "with two groups, built after wrapping",
        "half": "with one stale group of two",
        "frozen": "of the layers that are trained, others being frozen",
        "part": "of one layer, where both are trained",
        "given": "of all parameters, where one layer is frozen",
    }
    name = min(wrong, key=list(described).index)
    raise NotRight(f"For an optimizer {described[name]}, {right[name]} is right.")
