"""What the lesson times on a GPU: one RNN in four ways, and a language model's training step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from course_utils.materials.models import LSTMLanguageModel
from course_utils.materials.text import library_text, text_batches
from course_utils.measure.fresh import Fresh, fresh

WAYS = "flat", "scattered", "flattened once", "flattened in every forward"
# Who asks cuDNN how often where weights belong, by PyTorch's source: 100 for each gate's matrix and bias of a layer.
QUESTIONS = {400: nn.RNN, 1200: nn.GRU, 1600: nn.LSTM, 12_800: partial(nn.LSTM, num_layers=4, bidirectional=True)}


def agree(expected: Sequence[torch.Tensor], actual: Sequence[torch.Tensor]) -> bool:
    """Whether each tensor is within a thousandth of its norm: TF32 and sums in another order change that much."""
    return all((a - e).norm() <= 1e-3 * e.norm() for e, a in zip(expected, actual, strict=True))


def ways(hidden: int, chosen: Sequence[str] = WAYS, **settings: Any) -> dict[str, Fresh]:
    return {way: fresh(_build, way, hidden, **settings) for way in chosen}


def tiny(questions: int) -> dict[str, Fresh]:
    return ways(8, WAYS[:2], layer=QUESTIONS[questions], length=1)


def _build(
    way: str, hidden: int, layer: Any = nn.LSTM, length: int = 32, training: bool = False, step: int = 0
) -> Callable[[], list[torch.Tensor]]:
    """Calls of ``step`` time steps each, by default one for all, with or without a backward pass."""
    rnn, x = layer(hidden, hidden).cuda(), torch.randn(length, 32, hidden, device="cuda")
    rnn.requires_grad_(training).train(training)
    rnn = rnn if way == "flat" else copy.deepcopy(rnn)
    if way != "scattered":
        rnn.flatten_parameters()

    def call() -> list[torch.Tensor]:
        outputs, state = [], None
        for piece in x.split(step or length):
            if way == "flattened in every forward":
                rnn.flatten_parameters()
            output, state = rnn(piece, state)
            outputs.append(output)
        whole = torch.cat(outputs)
        return [whole.detach(), *torch.autograd.grad(whole.sum(), list(rnn.parameters()))] if training else [whole]

    return call


def language_model(way: str, width: int) -> Callable[[], list[torch.Tensor]]:
    model = LSTMLanguageModel(width=width).cuda()
    model.rnn = model.rnn if way == "flat" else copy.deepcopy(model.rnn)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens, targets = next(text_batches(library_text(2**18), batch=16, length=32, steps=1, device="cuda"))

    def step() -> list[torch.Tensor]:
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return [loss.detach(), model.rnn.weight_hh_l0.detach()[0].clone()]

    return step
