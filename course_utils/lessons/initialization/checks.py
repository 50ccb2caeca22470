"""Checks of the lesson."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from course_utils.lessons.answers import NotRight, ask, effect, exercise, number
from course_utils.materials.models import GPT

_FANS = ((100, 50), (64, 256), (9, 4), (1024, 1024))
_STDS: dict[str | None, Callable[[int, int], float]] = {
    None: lambda fan_in, fan_out: math.sqrt(2 / fan_in),
    "no_relu": lambda fan_in, fan_out: math.sqrt(1 / fan_in),
    "fan_out": lambda fan_in, fan_out: math.sqrt(2 / fan_out),
    "xavier": lambda fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out)),
    "variance": lambda fan_in, fan_out: 2 / fan_in,
    "bound": lambda fan_in, fan_out: math.sqrt(6 / fan_in),
    "default": lambda fan_in, fan_out: math.sqrt(1 / (3 * fan_in)),
}


@exercise
def check_std(answer: Any) -> str | None:
    """Compares standard deviations with He's, and with what other rules give."""
    given = [number(ask(answer, fan_in, fan_out), "A standard deviation") for fan_in, fan_out in _FANS]
    for key, rule in _STDS.items():
        if all(math.isclose(value, rule(*fans), rel_tol=1e-3) for value, fans in zip(given, _FANS, strict=True)):
            return key
    raise NotRight(
        f"For {_FANS[0][0]} inputs and {_FANS[0][1]} outputs you return {given[0]:g}; {_STDS[None](*_FANS[0]):.4g} "
        "keeps the signal. By what does the variance of a sum of so many products grow, and what does ReLU do to it?"
    )


_STD = 0.02


def _fresh_gpt(blocks: int, width: int) -> GPT:
    """A GPT all of whose matrices are drawn with one standard deviation."""
    torch.manual_seed(0)
    model = GPT(vocabulary=64, context=8, width=width, layers=blocks, heads=4)
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=_STD)
    return model


@exercise
def check_residual(answer: Any) -> str | None:
    """Looks at the spread of each matrix of models of several depths, after the learner's function."""
    for blocks, width in ((8, 32), (2, 64)):
        model = _fresh_gpt(blocks, width)
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        effect(answer, model, blocks)
        spread = {name: weight.std().item() / _STD for name, weight in model.named_parameters() if weight.ndim > 1}
        attention, mlp = (
            [spread[f"blocks.{at}.{end}"] for at in range(blocks)] for end in ("projection.weight", "mlp.2.weight")
        )
        others = [spread[name] for name in spread if not name.endswith(("projection.weight", "mlp.2.weight"))]
        if all(torch.equal(before[name], weight) for name, weight in model.named_parameters()):
            return "never_applied"
        if any(abs(each - 1) > 0.1 for each in others):
            return "everything"
        wanted = 1 / math.sqrt(2 * blocks)
        factors = {None: wanted, "no_two": 1 / math.sqrt(blocks), "no_root": 1 / (2 * blocks)}
        close = {
            key: [math.isclose(each, factor, rel_tol=0.1) for each in attention + mlp]
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


def _lstms() -> Iterator[nn.LSTM]:
    for options in ({}, {"num_layers": 2, "bidirectional": True}, {"num_layers": 2, "proj_size": 4}, {"bias": False}):
        torch.manual_seed(0)
        yield nn.LSTM(6, 8, **options)


@exercise
def check_forget(answer: Any) -> str | None:
    """Adds up both biases of each layer and direction, gate by gate."""
    for lstm in _lstms():
        before = {name: bias.detach().clone() for name, bias in lstm.named_parameters()}
        try:
            effect(answer, lstm)
        except NotRight as problem:
            if "in-place operation" in str(problem) or "modified inplace" in str(problem):
                return "gradients"
            raise
        if any(not torch.equal(before[name], weight) for name, weight in lstm.named_parameters() if "weight" in name):
            raise NotRight("You changed a weight matrix: the biases are the parameters whose names begin with `bias`.")
        ends = [name.removeprefix("bias_ih") for name, _ in lstm.named_parameters() if name.startswith("bias_ih")]
        after = dict(lstm.named_parameters())
        sums = [(after[f"bias_ih{end}"] + after[f"bias_hh{end}"]).detach().view(4, -1) for end in ends]
        was = [(before[f"bias_ih{end}"] + before[f"bias_hh{end}"]).view(4, -1) for end in ends]
        forget = [each[1] for each in sums]
        if all(_is(gate, 1) for gate in forget):
            others = [0, 2, 3]
            if any(not torch.allclose(now[others], then[others]) for now, then in zip(sums, was, strict=True)):
                return "all_gates"
            continue
        if all(_is(gate, 2) for gate in forget):
            return "two_biases"
        if _is(forget[0], 1):
            one_way = all(_is(gate, 1) for end, gate in zip(ends, forget, strict=True) if "reverse" not in end)
            return "one_way" if one_way else "first_layer"
        if any(_is(sums[0][gate], 1) for gate in (0, 2, 3)):
            return "wrong_gate"
        if any(_is(after[f"{kind}{ends[0]}"].view(4, -1)[1], 1) for kind in ("bias_ih", "bias_hh")):
            return "other_bias"
        raise NotRight(
            f"The forget gate's two biases add up to {forget[0][0].item():.3g} in the first unit of the first layer. "
            "They should add up to 1."
        )
    return None


def _is(tensor: torch.Tensor, value: float) -> bool:
    return torch.allclose(tensor, torch.full_like(tensor, value))
