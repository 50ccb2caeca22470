"""Check of the lesson."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from course_utils.lessons.answers import NotRight, effect, exercise
from course_utils.materials.models import GPT

_STD = 0.02
_ENDS = ("projection.weight", "mlp.2.weight")


def _fresh_gpt(blocks: int, width: int) -> GPT:
    torch.manual_seed(0)
    model = GPT(vocabulary=64, context=8, width=width, layers=blocks, heads=4)
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=_STD)
    return model


@exercise
def check_residual(answer: Any) -> str | None:
    for blocks, width in ((8, 64), (1, 128)):
        model = _fresh_gpt(blocks, width)
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        effect(answer, model, blocks)
        spread = {name: weight.std().item() / _STD for name, weight in model.named_parameters() if weight.ndim > 1}
        attention, mlp = ([spread[f"blocks.{at}.{end}"] for at in range(blocks)] for end in _ENDS)
        changed = [name for name, weight in model.named_parameters() if not torch.equal(before[name], weight)]
        if not changed:
            return "never_applied"
        if not all(name.endswith(_ENDS) for name in changed):
            return "everything"
        if any(abs(weight.mean()) > 0.25 * weight.std() for weight in map(model.get_parameter, changed)):
            raise NotRight("What you draw has a mean that is not 0.")
        wanted = 1 / math.sqrt(2 * blocks)
        factors = {None: wanted, "no_two": 1 / math.sqrt(blocks), "no_root": 1 / (2 * blocks)}
        close = {
            key: [math.isclose(each, factor, rel_tol=0.1 if key else 0.15) for each in attention + mlp]
            for key, factor in factors.items()
        }
        if all(close[None]):
            continue
        for key, hits in close.items():
            if all(hits):
                return key
        if all(close[None][:blocks]) or all(close[None][blocks:]):
            return "one_of_two"
        if all(hit or abs(each - 1) < 0.1 for hit, each in zip(close[None], attention + mlp, strict=True)):
            return "some_blocks"
        raise NotRight(
            f"With {blocks} blocks the matrices that write into the stream have {attention[0]:.3g} (attention) and "
            f"{mlp[0]:.3g} (MLP) times their first standard deviation; {wanted:.3g} was asked for."
        )
    return None
