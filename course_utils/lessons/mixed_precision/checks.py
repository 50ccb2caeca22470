"""Checks of the lesson. All run on a CPU, in fp32: what they look at is the order of things, not their speed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from course_utils.lessons.answers import NothingReturned, NotRight, ask, exercise, number

# Bytes for each parameter: weights, gradients, AdamW's two moments, and further copies of all weights.
_PARTS = {
    "fp32": (4, 4, 8, 0),
    "autocast": (4, 4, 8, 2),
    "bf16 weights": (2, 2, 4, 0),
    "master weights": (2, 2, 8, 4),
}


def _bytes_each(without: str = "") -> tuple[int, ...]:
    """Bytes for each parameter by recipe, right or with a part forgotten."""
    factors = {"no_gradients": (1, 0, 1, 1), "one_moment": (1, 1, 0.5, 1), "no_copies": (1, 1, 1, 0)}
    kept = factors.get(without, (1, 1, 1, 1))
    return tuple(sum(size * factor for size, factor in zip(of, kept, strict=True)) for of in _PARTS.values())


@exercise
def check_state_bytes(answer: Any) -> str | None:
    """Compares bytes by recipe with what is right, and with what people forget."""
    counts = (1, 1000, 124_000_000)
    given = {}
    for recipe in _PARTS:
        each = [number(ask(answer, count, recipe)) / count for count in counts]
        if not all(0 < size < math.inf for size in each):
            raise NotRight(f"For {recipe!r} you return {each[0]:g}. Bytes are positive, and there is an end to them.")
        if each[0] < 0.5:
            raise NotRight(
                f"For {recipe!r} and one parameter you return {each[0]:g}. Bytes are asked for, not MiB or GiB."
            )
        if not all(math.isclose(value, each[0], rel_tol=1e-6) for value in each):
            raise NotRight(f"For {recipe!r}, twice as many parameters do not need twice the bytes in your answer.")
        given[recipe] = each[0]
    sizes = tuple(round(value, 3) for value in given.values())
    if sizes == _bytes_each():
        return None
    if sizes[1] == sizes[0] / 2 or sizes[1] == 8:
        return "halves_all"
    if sizes == tuple(8 * size for size in _bytes_each()):
        return "bits"
    fp32, autocast, bf16, master = _bytes_each()
    if sizes == (fp32, autocast - 2, bf16, master):
        return "no_cast"
    if sizes == (fp32, autocast, bf16, master - 4):
        return "no_master"
    for forgotten in ("no_copies", "one_moment", "no_gradients"):
        if sizes == _bytes_each(forgotten):
            return forgotten
    wrong = next(recipe for recipe, value, right in zip(_PARTS, sizes, _bytes_each(), strict=True) if value != right)
    much = "much" if given[wrong] > sum(_PARTS[wrong]) else "little"
    raise NotRight(
        f"For {wrong!r} you return {given[wrong]:g} bytes for each parameter, and that is too {much}. Write down "
        "weights, gradients, two moments and copies, one after the other."
    )


class _Watched(torch.amp.GradScaler):
    """A gradient scaler on the CPU that notes which of its methods were called, and came to an end."""

    def __init__(self) -> None:
        super().__init__("cpu", init_scale=1024.0, growth_interval=3)
        self.calls: list[str] = []

        for name in ("scale", "step", "update"):
            setattr(self, name, functools.partial(self._noted, name, getattr(self, name)))

    def _noted(self, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        self.calls.append(name)
        return result


class _ScaledRun:
    """The same small model, trained by somebody's step."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(3, 2)
        with torch.no_grad():
            self.model.weight.copy_(torch.tensor([[0.5, -0.25, 0.125], [0.75, 0.5, -1.0]]))
            self.model.bias.copy_(torch.tensor([0.25, -0.5]))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.125)
        self.scaler = _Watched()

    def loss(self, blow_up: float = 1.0) -> torch.Tensor:
        inputs = torch.tensor([[1.0, 2.0, -1.0], [0.5, -3.0, 2.0], [2.0, 1.0, 0.0], [-1.0, 0.5, 3.0]])
        return (self.model(inputs) * blow_up - 2).square().mean()

    def weights(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])


def _plain_weights(limit: float = 1.0, divisor: float = 1.0) -> tuple[torch.Tensor, list[float]]:
    """Weights after three steps without a scaler, and the norms of their gradients.

    Gradients are clipped to ``limit``, then divided by ``divisor``: 1024 is what clipping before unscaling does.
    """
    run, norms = _ScaledRun(), []
    for _ in range(3):
        run.loss().backward()
        norms.append(torch.nn.utils.clip_grad_norm_(run.model.parameters(), limit).item())
        for parameter in run.model.parameters():
            parameter.grad /= divisor
        run.optimizer.step()
        run.optimizer.zero_grad()
    return run.weights(), norms


@exercise
def check_scaled_step(answer: Any) -> str | None:
    """Trains a small model with the answer, and with a step that overflows."""
    run, norms = _ScaledRun(), []
    try:
        for _ in range(3):
            run.optimizer.zero_grad()
            norms.append(ask(answer, run.loss(), run.model, run.optimizer, run.scaler))
    except NotRight as problem:
        return _broken_off(run, problem)
    if key := _order(run):
        return key
    given = [number(norm, "The norm of the gradients before clipping, as a number,") for norm in norms]
    expected, true = _plain_weights()
    norm_is_true = all(math.isclose(norm, right, rel_tol=1e-4) for norm, right in zip(given, true, strict=True))
    if not _same(run, expected):
        if _same(run, _plain_weights(limit=math.inf)[0]):
            return "no_clipping"
        first_is_true = math.isclose(given[0], true[0], rel_tol=1e-4)
        if _same(run, _plain_weights(divisor=1024.0)[0]) and not first_is_true:
            return "clips_scaled"
        raise NotRight(
            "The weights after three steps are not those of the true gradients. The gradients are to be divided by the "
            "scale exactly once, by the scaler, and then all together clipped to a norm of 1."
        )
    if not norm_is_true:
        raise NotRight("The steps are right, and the norm that you return is not that of the unscaled gradients.")
    return _overflow(answer, run)


def _same(run: _ScaledRun, weights: torch.Tensor) -> bool:
    return torch.allclose(run.weights(), weights, rtol=1e-5, atol=1e-7)


def _broken_off(run: _ScaledRun, problem: NotRight) -> str:
    """What is wrong if the learner's step raises or returns nothing; raises what it raised if that is not known."""
    calls, has_gradients = run.scaler.calls, any(parameter.grad is not None for parameter in run.model.parameters())
    if not calls:
        if has_gradients:
            return "no_scaling"
        raise problem
    if not has_gradients and "step" not in calls:
        raise NotRight("No parameter has a gradient: nobody calls backward() on the scaled loss.") from problem
    if isinstance(problem, NothingReturned):
        if key := _order(run):
            return key
        raise NotRight("The step is taken, and you return nothing: return the norm before clipping.") from problem
    # The scaler complains about the call that it meets, which is not always the one that stands in the wrong place.
    if "step" not in calls and "prior to update" in str(problem):
        return "early_update" if torch.equal(run.weights(), _ScaledRun().weights()) else "own_step"
    if "update" in calls and "step" in calls[calls.index("update") :]:
        return "early_update"
    if calls[-1] == "step" and "unscale_() is being called after step()" in str(problem):
        return "late_unscale"
    if "scale" in calls[1:] and "update" not in calls:
        return "no_update"  # the second step raises
    raise problem


def _order(run: _ScaledRun) -> str | None:
    """Which call of the scaler is missing, if any."""
    if "scale" not in run.scaler.calls:
        return "no_scaling"
    if "step" not in run.scaler.calls:
        return "own_step"
    return None if "update" in run.scaler.calls else "no_update"


def _overflow(answer: Any, run: _ScaledRun) -> str | None:
    """One more step, whose gradients are not finite: nothing may move, and the scale must fall."""
    before, scale = run.weights(), run.scaler.get_scale()
    if scale != 2048.0:
        raise NotRight(f"After three good steps the scale should have grown from 1024 to 2048; it is {scale:g}.")
    run.optimizer.zero_grad()
    ask(answer, run.loss(blow_up=1e30), run.model, run.optimizer, run.scaler)
    if not torch.equal(run.weights(), before):
        return "own_step"
    if run.scaler.get_scale() != scale / 2:
        raise NotRight("After a step with gradients that are not finite, the scale should have been halved.")
    return None
