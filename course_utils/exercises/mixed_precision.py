"""Checks of lesson 07. All run on a CPU, in fp32: what they look at is the order of things, not their speed."""

from __future__ import annotations

import math
from typing import Any

import torch

from course_utils.exercises import NotAnswered, NotRight, ask, exercise

# Bytes for each parameter: weights, gradients, AdamW's two moments, and further copies of all weights.
_PARTS = {
    "fp32": (4, 4, 8, 0),
    "autocast": (4, 4, 8, 2),
    "bf16 weights": (2, 2, 4, 0),
    "master weights": (2, 2, 8, 4),
}
_RECIPES = tuple(_PARTS)


def _bytes_each(without: str = "") -> tuple[int, ...]:
    """Bytes for each parameter by recipe, right or with a part forgotten."""
    drop = {"gradients": 1, "copies": 3}.get(without)
    found = []
    for parts in _PARTS.values():
        kept = [size for index, size in enumerate(parts) if index != drop]
        if without == "one moment":
            kept[2] //= 2
        found.append(sum(kept))
    return tuple(found)


@exercise(
    "How many bytes?",
    right="Autocast adds a copy of the weights; what it saves is activations. Master weights are back at 16 bytes.",
    hints={
        "halves_all": (
            "Under autocast you count everything at half its size. Which dtype do model.parameters() have in the "
            "smallest example, and which one does AdamW take for its moments?"
        ),
        "no_copies": (
            "You leave out a copy of the weights: the one that autocast casts and the backward pass still needs, and "
            "the fp32 one that the optimizer of the last recipe keeps. How many bytes has each?"
        ),
        "one_moment": "AdamW keeps two running averages for each weight: of the gradient, and of its square.",
        "no_gradients": "You leave out the gradients. When the optimizer steps, there is one for each weight.",
    },
)
def check_state_bytes(answer: Any) -> str | None:
    """Compares bytes by recipe with what is right, and with what people forget."""
    counts = (1, 1000, 124_000_000)
    given = {}
    for recipe in _RECIPES:
        values = [ask(answer, count, recipe) for count in counts]
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
            raise NotRight(f"A number is asked for, and for {recipe!r} you return {type(values[0]).__name__}.")
        each = [value / count for value, count in zip(values, counts, strict=True)]
        if not all(math.isclose(value, each[0], rel_tol=1e-6) for value in each):
            raise NotRight(f"For {recipe!r}, twice as many parameters do not need twice the bytes in your answer.")
        given[recipe] = each[0]
    found = tuple(round(value, 3) for value in given.values())
    if found == _bytes_each():
        return None
    if found[1] == found[0] / 2 or found[1] == 8:
        return "halves_all"
    for key, forgotten in (("no_copies", "copies"), ("one_moment", "one moment"), ("no_gradients", "gradients")):
        if found == _bytes_each(forgotten):
            return key
    wrong = next(recipe for recipe, value, right in zip(_RECIPES, found, _bytes_each(), strict=True) if value != right)
    raise NotRight(
        f"For {wrong!r} you return {given[wrong]:g} bytes for each parameter, and {sum(_PARTS[wrong])} is right. Write "
        "down weights, gradients, two moments and copies, one after the other."
    )


class _Watched(torch.amp.GradScaler):
    """A gradient scaler on the CPU that notes who calls it."""

    def __init__(self) -> None:
        super().__init__("cpu", init_scale=1024.0, growth_interval=3)
        self.calls: list[str] = []

    def scale(self, outputs: Any) -> Any:
        self.calls.append("scale")
        return super().scale(outputs)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        self.calls.append("step")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        self.calls.append("update")
        super().update(new_scale)


class _Run:
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


def _right_weights(steps: int, clip: bool = True) -> tuple[torch.Tensor, list[float]]:
    """Weights after some steps, without any scaling at all, and the norms of their gradients."""
    run, norms = _Run(), []
    for _ in range(steps):
        run.loss().backward()
        norms.append(torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0 if clip else math.inf).item())
        run.optimizer.step()
        run.optimizer.zero_grad()
    return run.weights(), norms


@exercise(
    "Mend the scaled step",
    right="Scale, backward, unscale, clip, step, update: the threshold meets true gradients, and the scale can adapt.",
    hints={
        "no_scaling": (
            "The loss that you call backward() on is not scaled, so small fp16 gradients are lost before anybody looks "
            "at them. Which method of the scaler gives you the loss to start from?"
        ),
        "own_step": (
            "You call the optimizer's step yourself. It takes the gradients as they are, scaled or not finite. Who "
            "divides by the scale, and who leaves a step out?"
        ),
        "clips_scaled": (
            "When you clip, the gradients still carry the scale: the norm is too large by that factor, and clipping "
            "makes nearly nothing of them. What has to come between backward() and clipping?"
        ),
        "no_update": (
            "Nobody tells the scaler that a step is over: the scale can neither grow nor back off, and the scaler "
            "refuses to take the next step. Which call is missing at the end?"
        ),
        "no_clipping": "The steps are longer than they may be: gradients are to be clipped to a norm of 1.",
    },
)
def check_scaled_step(answer: Any) -> str | None:
    """Trains a small model with the answer, and with a step that overflows."""
    run, norms = _Run(), []
    try:
        for _ in range(3):
            run.optimizer.zero_grad()
            norms.append(ask(answer, run.loss(), run.model, run.optimizer, run.scaler))
    except (NotRight, NotAnswered):
        # The scaler itself complains about what is missing; say that in our words.
        if run.scaler.calls and (key := _order(run)):
            return key
        if not run.scaler.calls and any(parameter.grad is not None for parameter in run.model.parameters()):
            return "no_scaling"
        raise
    if key := _order(run):
        return key
    expected, right_norms = _right_weights(3)
    if not torch.allclose(run.weights(), expected, rtol=1e-4, atol=1e-6):
        unclipped, _ = _right_weights(3, clip=False)
        if torch.allclose(run.weights(), unclipped, rtol=1e-4, atol=1e-6):
            return "no_clipping"
        return "clips_scaled"
    try:
        given = [float(norm) for norm in norms]
    except (TypeError, ValueError):
        raise NotRight(
            f"Return the norm of the gradients before clipping, as a number; you return {type(norms[0]).__name__}."
        ) from None
    if not all(math.isclose(one, other, rel_tol=1e-4) for one, other in zip(given, right_norms, strict=True)):
        raise NotRight("The steps are right, and the norm that you return is not that of the unscaled gradients.")
    return _overflow(answer, run)


def _order(run: _Run) -> str | None:
    """Which call of the scaler is missing, if any."""
    if "scale" not in run.scaler.calls:
        return "no_scaling"
    if "step" not in run.scaler.calls:
        return "own_step"
    return None if "update" in run.scaler.calls else "no_update"


def _overflow(answer: Any, run: _Run) -> str | None:
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


# Gradients, and the largest power of two that keeps all of them below fp16's end.
_SCALES = (
    ([[1.0, 1e-6], [3e-8]], 2.0**15),
    ([[3e-4, -2e-7], [5e-5, 1e-9]], 2.0**27),
    ([[0.02, -7.0], [0.5]], 2.0**13),
    ([[300.0, 1e-3]], 2.0**7),
)


@exercise(
    "The largest scale",
    right="The largest gradient decides how far you can go. Whether the smallest then survives, nobody has promised.",
    hints={
        "overflows": (
            "With your scale the largest gradient becomes infinite in fp16, and the scaler would leave the step out. "
            "The largest number of fp16 is 65504, so 65536 is already too large."
        ),
        "too_small": (
            "Nothing overflows, but twice your scale would not overflow either, and would save smaller gradients. What "
            "limits the scale: the largest gradient, or the smallest?"
        ),
        "not_a_power": (
            "Your scale is no power of two. Then scaling rounds: only powers of two leave the mantissa alone. Which "
            "power is the last one below your limit?"
        ),
        "signs": (
            "One of the hidden gradients is large and negative, and it overflows. Overflow has two ends: what do you "
            "compare?"
        ),
    },
)
def check_largest_scale(answer: Any) -> str | None:
    """Tries the scale on gradients with a wide range, and with the largest one negative."""
    found = []
    for lists, right in _SCALES:
        given = ask(answer, [torch.tensor(values) for values in lists])
        try:
            scale = float(given)
        except (TypeError, ValueError):
            raise NotRight(f"A number is asked for, and you return {type(given).__name__}.") from None
        if not (math.isfinite(scale) and scale > 0):
            raise NotRight(f"A scale is a positive number, and you return {scale:g}.")
        found.append(scale / right)
    if found[2] > 1 and all(ratio == 1 for index, ratio in enumerate(found) if index != 2):
        return "signs"
    if any(math.frexp(ratio)[0] != 0.5 for ratio in found):
        return "not_a_power"
    if any(ratio > 1 for ratio in found):
        return "overflows"
    return "too_small" if any(ratio < 1 for ratio in found) else None
