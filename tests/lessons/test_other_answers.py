"""Answers that neither solve an exercise as the course does nor go wrong as a hint foresaw: what the checks say."""

from __future__ import annotations

import copy
from statistics import fmean, median
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Normal

from course_utils.lessons.measuring.checks import check_dead_result, check_first_call, check_missing_wait
from course_utils.lessons.measuring.wrong_answers import durations
from course_utils.lessons.mixed_precision.checks import check_scaled_step, check_state_bytes
from course_utils.lessons.on_device_tensors.checks import check_add_noise, check_load_decoder

# `measuring`


def usual(middle: Any, warm_up: int = 20, calls: int = 50) -> Any:
    def usual_seconds(fn, clock):
        durations(fn, clock, warm_up)
        return middle(durations(fn, clock, calls))

    return usual_seconds


def trimmed(seconds: list[float]) -> float:
    return fmean(sorted(seconds)[len(seconds) // 4 : -len(seconds) // 4])


def drops_the_first_ten(seconds: list[float]) -> float:
    return median(seconds[10:])


def median_of_a_hundred_seconds(fn: Any, clock: Any) -> float:
    end, seconds = clock() + 100, []
    while clock() < end:
        seconds += durations(fn, clock, 1)
    return median(seconds)


def until_two_agree(fn: Any, clock: Any) -> float:
    before, last = 0.0, durations(fn, clock, 1)[0]
    while abs(last / (before or 1e-9) - 1) > 0.2:
        before, last = last, durations(fn, clock, 1)[0]
    return median(durations(fn, clock, 25))


def prints_a_number(x: torch.Tensor, w: torch.Tensor) -> Any:
    repr(((x @ w) @ w)[0, 0])
    return x.shape


# `on_device_tensors`


def built_on_meta(make_model: Any) -> Any:
    with torch.device("meta"):
        return make_model()


def assigns(make_model: Any, checkpoint: Any, device: Any) -> Any:
    model = built_on_meta(make_model)
    model.load_state_dict(copy.deepcopy(checkpoint), assign=True)
    model.tie_weights()
    model.reset_buffers()
    return model.to(device)


def fills_empty_memory(make_model: Any, checkpoint: Any, device: Any, change: Any = lambda checkpoint: None) -> Any:
    model = built_on_meta(make_model).to_empty(device=device)
    change(checkpoint)
    model.load_state_dict(checkpoint, strict=False)
    model.tie_weights()
    model.reset_buffers()
    return model


def builds_under_a_default(make_model: Any, checkpoint: Any, device: Any) -> Any:
    torch.set_default_device("meta")
    return fills_empty_memory(make_model, checkpoint, device)


def changes_a_weight(*args: Any) -> Any:
    return fills_empty_memory(*args, change=lambda checkpoint: checkpoint["mixing.bias"].zero_())


# `mixed_precision`


def state_bytes(kind: Any) -> Any:
    each = {"fp32": 16, "autocast": 18, "bf16 weights": 8, "master weights": 16}
    return lambda count, recipe: kind(count * each[recipe])


def step(*, backward=True, clip=nn.utils.clip_grad_norm_, by_hand=False, unscale=1, update=True, returns=True) -> Any:
    """A scaled step with something changed."""

    def scaled_step(loss, model, optimizer, scaler):
        scaled = scaler.scale(loss)
        if backward:
            scaled.backward()
        for _ in range(unscale):
            scaler.unscale_(optimizer)
        if by_hand:
            for parameter in model.parameters():
                parameter.grad /= scaler.get_scale()
        norm = clip(model.parameters(), 1.0)
        scaler.step(optimizer)
        if update:
            scaler.update()
        return norm if returns else None

    return scaled_step


def clip_values(parameters: Any, limit: float) -> torch.Tensor:
    parameters = list(parameters)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters])
    nn.utils.clip_grad_value_(parameters, limit / 10)
    return norm


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (check_first_call, usual(median)),
        (check_first_call, usual(median, warm_up=2)),
        (check_first_call, usual(trimmed)),
        (check_first_call, usual(drops_the_first_ten, warm_up=0)),
        (check_first_call, until_two_agree),
        (check_dead_result, lambda x, w: (x @ w @ w).sum()),
        (check_dead_result, lambda x, w: {"a": x @ w @ w}),
        (check_dead_result, lambda x, w: [(x @ w, [x @ (w @ w)])]),
        (check_add_noise, lambda images, scale: images + torch.tensor(scale) * torch.randn_like(images)),
        (check_add_noise, lambda images, scale: torch.normal(images, torch.full_like(images, scale))),
        (check_add_noise, lambda images, scale: images + torch.empty_like(images).normal_() * scale),
        (check_add_noise, lambda images, scale: images + torch.tensor(scale).item() * torch.randn_like(images)),
        (check_load_decoder, assigns),
        *((check_state_bytes, state_bytes(kind)) for kind in (int, float, torch.tensor)),
    ],
)
def test_other_right_answers_are_right(check: Any, answer: Any) -> None:
    feedback = check(answer)
    assert feedback.outcome == "right", feedback


@pytest.mark.parametrize(
    ("check", "answer", "hint", "words"),
    [
        (check_missing_wait, lambda fn, synchronize, clock: 1.0, None, "One call takes 3.01 s"),
        (check_first_call, usual(median, warm_up=0), "outvoted", ""),
        (check_first_call, usual(median, warm_up=1), "outvoted", ""),
        (check_first_call, usual(trimmed, warm_up=0), "outvoted", ""),
        (check_first_call, median_of_a_hundred_seconds, "outvoted", ""),
        (check_first_call, usual(min), "fastest", ""),
        (check_first_call, usual(min, warm_up=0), "fastest", ""),
        (check_first_call, usual(fmean), "mean", ""),
        (check_dead_result, lambda x, w: (x @ w @ w)[0], "part_dead", ""),
        (check_dead_result, lambda x, w: (x @ w @ w) * 0, "part_dead", ""),
        (check_dead_result, lambda x, w: {"a": (x @ w @ w).shape}, "all_dead", ""),
        (check_dead_result, prints_a_number, "reads_value", ""),
        (check_add_noise, lambda images, scale: images + scale * torch.randn_like(images[:1]), None, "same noise in"),
        (check_add_noise, lambda images, scale: images * float("nan"), None, "not scale times normal noise"),
        (check_add_noise, lambda images, scale: Normal(images, scale).sample(), "copies_number", ""),
        (check_load_decoder, builds_under_a_default, None, "another default device"),
        (check_load_decoder, changes_a_weight, None, "mixing.bias has other values"),
        (check_scaled_step, step(returns=False), None, "return the norm before clipping"),
        (check_scaled_step, step(returns=False, update=False), "no_update", ""),
        (check_scaled_step, step(backward=False), None, "nobody calls backward()"),
        (check_scaled_step, step(unscale=2), None, "unscale_() has already been called"),
        (check_scaled_step, step(unscale=0), "clips_scaled", ""),
        (check_scaled_step, step(unscale=0, by_hand=True), None, "exactly once"),
        (check_scaled_step, step(clip=clip_values), None, "exactly once"),
        (check_scaled_step, lambda *args: None, None, "did you forget `return`?"),
    ],
)
def test_what_else_is_wrong_gets_its_words(check: Any, answer: Any, hint: str | None, words: str) -> None:
    feedback = check(answer)
    assert feedback.outcome != "right"
    assert feedback.hint == hint
    assert words in feedback.words


def test_a_default_device_is_put_back_and_disturbs_no_check() -> None:
    assert check_load_decoder(builds_under_a_default).outcome == "not yet"
    assert torch.get_default_device() == torch.device("cpu")
    torch.set_default_device("meta")
    try:
        assert check_load_decoder(assigns).outcome == "right"
        assert torch.get_default_device() == torch.device("meta")
    finally:
        torch.set_default_device(None)
