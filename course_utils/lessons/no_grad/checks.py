"""The check of the lesson: a backbone that notes how it is called, and how it and the gradients' switch are left."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import torch
from torch import nn

from course_utils.lessons.answers import NotRight, ask, exercise


class _Backbone(nn.Sequential):
    """Notes for all its copies whether dropout was on, and whether there was a graph."""

    seen: ClassVar[list[tuple[bool, bool]]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = super().forward(x)
        self.seen.append((self[2].training, features.requires_grad))
        return features


def _switches(model: nn.Module) -> tuple[list[bool], list[bool]]:
    return [module.training for module in model.modules()], [weight.requires_grad for weight in model.parameters()]


@exercise
def check_features(answer: Any) -> str | None:
    model = _Backbone(nn.Linear(4, 8), nn.BatchNorm1d(8).eval().requires_grad_(False), nn.Dropout(), nn.Linear(8, 3))
    batches, before = list(torch.randn(22, 4).split(10)), _switches(model)
    _Backbone.seen.clear()
    with torch.enable_grad():  # it puts back what an answer leaves
        result, is_on, after = ask(answer, model, batches), torch.is_grad_enabled(), _switches(model)
    if not _Backbone.seen:
        raise NotRight("You never call the backbone.")
    if any(training for training, _ in _Backbone.seen):
        return "dropout"
    if any(graph for _, graph in _Backbone.seen):
        return "graph"
    if not isinstance(result, torch.Tensor):
        raise NotRight(f"One tensor is asked for, and you return {type(result).__name__}.")
    if result.is_inference():
        return "inference"
    expected = model.eval()(torch.cat(batches)).detach()
    if result.shape != expected.shape or not torch.allclose(result, expected, atol=1e-5):
        raise NotRight("What you return is not what the backbone gives for these batches, in their order, [22, 3].")
    if not is_on:
        return "grad_left_off"
    if after != before:
        return "weights_changed" if after[1] != before[1] else "frozen_woken" if after[0][0] else "left_in_eval"
    model.train()[1].eval()
    with torch.no_grad():
        with contextlib.suppress(NotRight):
            ask(answer, model, [*batches, torch.ones(2, 3)])  # the last one raises
        if torch.is_grad_enabled():
            return "grad_left_on"
    return "after_an_error" if _switches(model) != before else None
