"""Checks of the lesson."""

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
    (700, 650, 12, 170),  # all but the last one
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
        q = y.unflatten(-1, (2, 4)).transpose(1, 2)
        y = y + nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)
        return nn.functional.layer_norm((y @ y.mT).softmax(-1), (y.shape[1],)).sigmoid()


_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_PRODUCTS = {"mm", "addmm", "bmm", _ATTENTION}
# What one calls in Python, and what a policy never sees: autograd takes these apart before.
_TAKEN_APART = (
    torch.ops.aten.matmul.default,
    torch.ops.aten.linear.default,
    torch.ops.aten.scaled_dot_product_attention.default,
)
_SAVES = (True, CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)
_RECOMPUTES = (False, CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


@exercise
def check_policy(answer: Any) -> str | None:
    """Runs a block under a mode that asks the policy about each operation, and looks at what it would keep."""
    kept: dict[str, set[bool]] = {}

    def saves(op: Any, out: Any) -> bool:
        context = torch.utils.checkpoint.SelectiveCheckpointContext(is_recompute=False, op_output=out)
        verdict = ask(answer, context, op)
        if not any(verdict is each for each in (*_SAVES, *_RECOMPUTES)):
            raise NotRight(f"For {op} you return {verdict!r}. A policy returns one of CheckpointPolicy.")
        return any(verdict is each for each in _SAVES)

    class Asking(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            kept.setdefault(func._schema.name.removeprefix("aten::"), set()).add(saves(func, out))
            return out

    with Asking(), torch.no_grad():
        _Work()(torch.ones(2, 4, 8))
    saved = {name for name, verdicts in kept.items() if True in verdicts}
    if saved == _PRODUCTS:
        return None
    if not saved:
        return "never_arrive" if any(saves(op, torch.ones(1)) for op in _TAKEN_APART) else "nothing"
    if saved == set(kept):
        return "everything"
    if saved == set(kept) - _PRODUCTS:
        return "upside_down"
    if saved < _PRODUCTS:
        forgotten = {"addmm": "without_bias_only", "mm": "with_bias_only", "bmm": "not_batched"}
        return next((hint for name, hint in forgotten.items() if name not in saved), "without_attention")
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
    """Compares gradients with the plain block's, for inputs that need one and that need none, masks and runs."""
    before, block, head = nn.Linear(16, 16), _Counted(), nn.Linear(16, 1)

    def gradients(run: Callable[[nn.Module, torch.Tensor], torch.Tensor], trained: bool, seed: int) -> list[Any]:
        """What the block's first layer, and the one before the block, get."""
        torch.manual_seed(seed)
        for module in (before, block):
            module.zero_grad()
        block.runs = 0
        x = torch.ones(4, 16)
        with warnings.catch_warnings(action="ignore"):  # of the reentrant variant, which the hint is about
            head(run(block, before(x) if trained else x)).sum().backward()
        return [block.first.weight.grad, before.weight.grad]

    def theirs(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return ask(answer, block, x)

    for trained, seed in ((False, 0), (True, 1)):
        plain, given = gradients(lambda block, x: block(x), trained, seed), gradients(theirs, trained, seed)
        if given[0] is None:
            return "frozen"
        if trained and given[1] is None:
            return "cut_off"
        if not torch.equal(plain[0], given[0]):
            if not block.training:
                return "no_dropout"
            fixed = torch.equal(given[0], gradients(theirs, trained, seed + 1)[0])
            return "same_mask_always" if fixed else "other_dropout"
        if trained and not torch.equal(plain[1], given[1]):
            raise NotRight(
                "The block's gradient is right, and that of the layer before it is not. What do you pass on?"
            )
        if block.runs < 2:
            return "not_recomputed"
    return None
