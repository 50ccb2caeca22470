"""What the lesson times: one RNN in four ways, and a language model's training step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from course_utils.lessons.flatten_parameters.stand_in import lay_flat
from course_utils.materials.models import LSTMLanguageModel
from course_utils.materials.text import library_text, text_batches
from course_utils.measure.fresh import Fresh, fresh
from course_utils.records.kinds.sweep import Sweep

WAYS = ("flat", "scattered", "flattened once", "flattened in every forward")


def agree(expected: Sequence[torch.Tensor], actual: Sequence[torch.Tensor]) -> bool:
    """Whether each tensor is within a thousandth of its norm: TF32 and sums in another order change that much."""
    return all((a - e).norm() <= 1e-3 * e.norm() for e, a in zip(expected, actual, strict=True))


def ways(
    layer: type[nn.RNNBase], hidden: int, where: str, chosen: Sequence[str] = WAYS, **settings: Any
) -> dict[str, Fresh]:
    """One RNN in these ways, as cases of a comparison; settings are those of :func:`_build`."""
    return {way: fresh(_build, way, layer, hidden, where, **settings) for way in chosen}


def ways_by_length(hidden: int, where: str, length: int) -> dict[str, Fresh]:
    """One call of an LSTM over so many steps, in all ways."""
    return ways(nn.LSTM, hidden, where, length=length)


def copy_shares(by_length: Sweep, estimate: Callable[[int], tuple[float, float]]) -> list[dict[str, Any]]:
    """The copy's share of a scattered call by length: as timed, and as ``estimate(length)`` has copy and call."""
    rows = []
    for point in by_length:
        copy_s, call_s = estimate(point.value)
        share = 1 - 1 / point.comparison["scattered"].ratio
        rows.append({"length": point.value, "share, measured": share, "share, estimated": copy_s / (copy_s + call_s)})
    return rows


SHARE_UNITS = {"share, measured": "percent", "share, estimated": "percent"}


def _build(
    way: str,
    layer: type[nn.RNNBase],
    hidden: int,
    where: str,
    length: int = 32,
    training: bool = False,
    stepwise: bool = False,
) -> Callable[[], list[torch.Tensor]]:
    """One call, or ``length`` calls of one time step each, with or without a backward pass."""
    rnn, x = layer(hidden, hidden).to(where), torch.randn(length, 32, hidden, device=where)
    rnn.requires_grad_(training).train(training)
    rnn = rnn if way == "flat" else copy.deepcopy(rnn)
    if way != "scattered":
        rnn.flatten_parameters()
        if where == "cpu":  # where the call does nothing
            lay_flat(list(rnn.parameters()))

    def call() -> list[torch.Tensor]:
        outputs, state = [], None
        for piece in x.split(1 if stepwise else length):
            if way == "flattened in every forward":
                rnn.flatten_parameters()
            output, state = rnn(piece, state)
            outputs.append(output)
        whole = torch.cat(outputs)
        return [whole.detach(), *torch.autograd.grad(whole.sum(), list(rnn.parameters()))] if training else [whole]

    return call


def language_model_step(way: str, width: int, where: str) -> Callable[[], list[torch.Tensor]]:
    """A training step with AdamW on real text; it returns the loss and a row of the weights after the update."""
    model = LSTMLanguageModel(width=width).to(where)
    model.rnn = model.rnn if way == "flat" else copy.deepcopy(model.rnn)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens, targets = next(iter(text_batches(library_text(2**18), batch=16, length=32, steps=1, device=where)))

    def step() -> list[torch.Tensor]:
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return [loss.detach(), model.rnn.weight_hh_l0.detach()[0].clone()]

    return step
