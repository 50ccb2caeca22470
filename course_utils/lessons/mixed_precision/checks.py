"""The check of the exercise. It runs on a CPU, in fp32: it looks at the order of things, not at their speed."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from course_utils.lessons.answers import NotRight, ask, exercise, number


class _Run:
    """A tiny model, its optimizer, and a scaler that notes in which order it is called."""

    def __init__(self) -> None:
        self.model, self.calls = torch.nn.Linear(3, 2), []
        with torch.no_grad():
            self.model.weight.copy_(torch.tensor([[0.5, -0.25, 0.125], [0.75, 0.5, -1.0]]))
            self.model.bias.copy_(torch.tensor([0.25, -0.5]))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.125)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        for name in ("scale", "unscale_", "step", "update"):
            setattr(self.scaler, name, functools.partial(self._noted, name, getattr(self.scaler, name)))

    def _noted(self, name: str, method: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(name)
        return method(*args, **kwargs)

    def loss(self, blow_up: float = 1.0) -> torch.Tensor:
        inputs = torch.tensor([[1.0, 2.0, -1.0], [0.5, -3.0, 2.0], [2.0, 1.0, 0.0], [-1.0, 0.5, 3.0]])
        return (self.model(inputs) * blow_up - 2).square().mean()

    def weights(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])


def _plain(limit: float = 1.0, divisor: float = 1.0) -> tuple[torch.Tensor, list[float]]:
    """Weights after three steps without a scaler, and the norms: clipped to a limit, then divided."""
    run, norms = _Run(), []
    for _ in range(3):
        run.loss().backward()
        norms.append(torch.nn.utils.clip_grad_norm_(run.model.parameters(), limit).item())
        for parameter in run.model.parameters():
            parameter.grad /= divisor
        run.optimizer.step()
        run.optimizer.zero_grad()
    return run.weights(), norms


def _misplaced(run: _Run) -> str | None:
    """Which call of the scaler is missing, or stands in the wrong place; `step` calls `unscale_` by itself."""
    calls = run.calls
    if "scale" not in calls:
        return "no_scaling"
    if "step" not in calls:
        early = "update" in calls and torch.equal(run.weights(), _Run().weights())
        return "early_update" if early else None if calls[-2:] == ["unscale_"] * 2 else "own_step"
    if "update" not in calls:
        # Two calls of unscale_ after step: its own, and one that comes too late.
        return "late_unscale" if calls[-2:] == ["unscale_"] * 2 else "no_update"
    return "early_update" if calls.index("update") < calls.index("step") else None


@exercise
def check_scaled_step(answer: Any) -> str | None:
    run, norms = _Run(), []
    try:
        for _ in range(3):
            run.optimizer.zero_grad()
            norms.append(ask(answer, run.loss(), run.model, run.optimizer, run.scaler))
    except NotRight as problem:
        if all(parameter.grad is None for parameter in run.model.parameters()):
            raise (NotRight("Nobody calls backward() on the scaled loss.") if run.calls else problem) from None
        if not _misplaced(run):
            raise
    if key := _misplaced(run):
        return key
    expected, true = _plain()
    same = functools.partial(torch.allclose, run.weights(), rtol=1e-5, atol=1e-7)
    if same(_plain(limit=math.inf)[0]):
        return "no_clipping"
    if same(_plain(divisor=1024.0)[0]) and number(norms[0]) > 2 * true[0]:
        return "clips_scaled"
    if not same(expected):
        raise NotRight("Divide the gradients by the scale exactly once, by the scaler; then clip all together to 1.")
    if any(abs(number(norm) - right) > 1e-4 * right for norm, right in zip(norms, true, strict=True)):
        raise NotRight("The steps are right, and the norm that you return is not that of the unscaled gradients.")
    before, scale = run.weights(), run.scaler.get_scale()
    ask(answer, run.loss(blow_up=1e30), run.model, run.optimizer, run.scaler)
    if run.scaler.get_scale() != scale / 2:
        raise NotRight("After a step with gradients that are not finite, the scale should have been halved.")
    return None if torch.equal(run.weights(), before) else "own_step"
