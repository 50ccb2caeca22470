"""Checks of lesson 16."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy

from course_utils.lessons.answers import NotRight, ask, exercise, number

# A peak with everything kept, with one block recomputed, the number of blocks, and a limit, in MiB.
_MODELS = (
    (1_000, 940, 12, 700),  # the last block fits to the byte
    (5_200, 4_900, 16, 4_825),  # a quarter of a block more than one
    (810, 790, 24, 655),
    (300, 291, 32, 320),  # it fits as it is
    (700, 650, 12, 120),  # all but nothing is left
)


def _exactly(peak: float, with_one: float, layers: int, limit: float) -> float:
    return (peak - limit) / (peak - with_one)


@exercise
def check_count(answer: Any) -> str | None:
    """Compares counts with the line's, and with what comes out of common slips."""
    given = [number(ask(answer, *model), "A number of blocks") for model in _MODELS]
    ways: dict[str | None, Callable[..., float]] = {
        None: lambda *model: max(0, math.ceil(_exactly(*model))),
        "negative": lambda *model: math.ceil(_exactly(*model)),
        "rounds_down": lambda *model: max(0, math.floor(_exactly(*model))),
        "rounds": lambda *model: max(0, round(_exactly(*model))),
        "not_whole": lambda *model: max(0.0, _exactly(*model)),
        "all": lambda peak, with_one, layers, limit: layers,
        "all_or_nothing": lambda peak, with_one, layers, limit: 0 if peak <= limit else layers,
        "one_more": lambda *model: max(0, math.floor(_exactly(*model)) + 1),
        "in_proportion": lambda peak, with_one, layers, limit: max(0, math.ceil((peak - limit) / (peak / layers))),
    }
    for key, way in ways.items():
        if all(math.isclose(value, way(*model), abs_tol=1e-9) for value, model in zip(given, _MODELS, strict=True)):
            return key
    value, model = next((v, m) for v, m in zip(given, _MODELS, strict=True) if v != ways[None](*m))
    raise NotRight(
        f"For a peak of {model[0]:,}, {model[1]:,} with one recomputed, {model[2]} blocks and a limit of "
        f"{model[3]:,} you return {value:g}; {ways[None](*model):g} are enough. "
        "By how much does a block lower the peak?"
    )


class _Work(nn.Module):
    """Something of everything: layers with and without a bias, a batched product, attention, and cheap operations."""

    def __init__(self) -> None:
        super().__init__()
        self.with_bias, self.without = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.gelu(self.with_bias(x)) + self.without(x)
        return nn.functional.layer_norm(y @ y.mT, (y.shape[1],)).sigmoid()


_PRODUCTS = {"mm", "addmm", "bmm"}
_SAVES = (True, CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)
_RECOMPUTES = (False, CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


@exercise
def check_policy(answer: Any) -> str | None:
    """Runs a block under a mode that asks the policy about each operation, and looks at what it would keep."""
    kept: dict[str, set[bool]] = {}

    class Asking(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            verdict = ask(
                answer, torch.utils.checkpoint.SelectiveCheckpointContext(is_recompute=False, op_output=out), func
            )
            if not any(verdict is each for each in (*_SAVES, *_RECOMPUTES)):
                raise NotRight(f"For {func} you return {verdict!r}. A policy returns one of CheckpointPolicy.")
            kept.setdefault(func._schema.name.removeprefix("aten::"), set()).add(
                any(verdict is each for each in _SAVES)
            )
            return out

    with Asking(), torch.no_grad():
        _Work()(torch.ones(2, 4, 8))
    saved = {name for name, verdicts in kept.items() if True in verdicts}
    if saved == _PRODUCTS:
        return None
    if not saved:
        return "nothing"
    if saved == set(kept):
        return "everything"
    if saved == set(kept) - _PRODUCTS:
        return "upside_down"
    if saved < _PRODUCTS:
        return (
            "without_bias_only" if "addmm" not in saved else "not_batched" if "bmm" not in saved else "with_bias_only"
        )
    others = ", ".join(sorted(saved - _PRODUCTS))
    raise NotRight(f"You also keep what these give: {others}. Which of all operations are matrix products?")


class _Counted(nn.Module):
    """A block with dropout that counts how often its last layer but one runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.runs = nn.Linear(16, 16), nn.Linear(16, 16), 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.runs += 1
        hidden = nn.functional.dropout(self.first(x), 0.5, self.training)
        return self.last(nn.functional.gelu(hidden)) * scale


@exercise
def check_repair(answer: Any) -> str | None:
    """Compares gradients with the plain block's, with an input that needs none, with dropout, and counts the runs."""
    block, head, x = _Counted(), nn.Linear(16, 1), torch.ones(4, 16)

    def gradient(run: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> torch.Tensor | None:
        torch.manual_seed(0)
        block.zero_grad()
        block.runs = 0
        with warnings.catch_warnings(action="ignore"):  # of the reentrant variant, which the hint is about
            head(run(block, x)).sum().backward()
        return block.first.weight.grad

    plain = gradient(lambda block, x: block(x))
    given = gradient(lambda block, x: ask(answer, block, x))
    if given is None:
        return "frozen"
    if not torch.equal(plain, given):
        return "other_dropout" if block.training else "no_dropout"
    if block.runs < 2:
        return "not_recomputed"
    return None
