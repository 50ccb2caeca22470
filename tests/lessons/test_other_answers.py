"""Answers that neither solve an exercise as the course does nor go wrong as a hint foresaw: what the checks say."""

from __future__ import annotations

import copy
from statistics import fmean, median
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Normal

from course_utils.lessons.measuring.checks import check_timer
from course_utils.lessons.mixed_precision.checks import check_scaled_step, check_state_bytes
from course_utils.lessons.on_device_tensors.checks import check_add_noise, check_load_decoder
from tests.lessons.wrong_answers.measuring import one_block, timer

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
        (check_timer, timer(median, calls=200, warm_up=2)),
        (check_timer, timer(lambda times: median(times[10:]), warm_up=0)),
        (check_timer, timer(lambda times: fmean(sorted(times)[12:-12]))),
        (check_timer, timer(median, twice=True)),
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
        (check_timer, lambda fn, synchronize, clock: 1.01, None, "A usual call takes 3.01 s"),
        (check_timer, timer(min), None, "your function says 0.91 s"),
        (check_timer, timer(median, before=False, after=False), "no_wait", ""),
        (check_timer, timer(median, calls=1, warm_up=5, before=False), "leftovers", ""),
        (check_timer, one_block, "mean", ""),
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
