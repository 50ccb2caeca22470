"""Answers that neither solve an exercise as the course does nor go wrong as a hint foresaw: what the checks say."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

import pytest
import torch
from torch import nn

from course_utils.lessons.fsdp.checks import check_steps_the_model
from course_utils.lessons.measuring.checks import check_timer
from course_utils.lessons.mixed_precision.checks import check_scaled_step
from course_utils.lessons.on_device_tensors.checks import check_mix
from tests.lessons.wrong_answers.fsdp import only_as_many, only_each_layers_first, only_outer_groups, only_weights
from tests.lessons.wrong_answers.measuring import one_block, timer
from tests.lessons.wrong_answers.on_device_tensors import mixing

# `mixed_precision`


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
        (check_mix, mixing(first=lambda kept: kept[:1].fill_(1))),
        (check_mix, mixing(first=lambda kept: kept.__setitem__(slice(1), 1))),
        (check_mix, mixing(first=lambda kept: kept.__setitem__(slice(1), torch.tensor(1.0)))),
        (check_mix, mixing(weights=lambda n, share, device: torch.ones(n, device=device) * torch.tensor(share))),
        (check_mix, mixing(first=lambda kept: kept.__setitem__(torch.arange(len(kept), device=kept.device) == 0, 1))),
        (check_mix, lambda images, share: torch.cat([images[:1], (images * share + images.flip(0) * (1 - share))[1:]])),
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
        (check_mix, lambda images, share: share * images, None, "not those that"),
        (check_mix, mixing(order=lambda n, device: list(range(n))[::-1]), "index", ""),
        (check_mix, mixing(first=lambda kept: kept.__setitem__(0, torch.tensor(1.0))), "sets_element", ""),
        (check_mix, mixing(first=lambda kept: kept.__setitem__(kept[:1].long() * 0, 1.0)), "sets_element", ""),
        (check_mix, mixing(first=lambda kept: kept.__setitem__(slice(1), torch.ones(1))), "moved", ""),
        (check_mix, mixing(first=lambda kept: kept.copy_(torch.ones(len(kept)))), "moved", ""),
        (check_mix, mixing(weights=lambda n, share, device: torch.full((n,), share).pin_memory()), "moved", ""),
        (check_mix, lambda images, share: images[images > 0], None, ""),
        (check_steps_the_model, only_weights, "first_group", ""),
        (check_steps_the_model, only_each_layers_first, "first_group", ""),
        (check_steps_the_model, only_outer_groups, "first_group", ""),
        (check_steps_the_model, only_as_many, None, "one of two that are trained"),
        (check_scaled_step, step(returns=False), None, "did you forget `return`?"),
        (check_scaled_step, step(returns=False, update=False), "no_update", ""),
        (check_scaled_step, step(backward=False), None, "Nobody calls backward()"),
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


def mixed_under_a_default(images: Any, share: Any) -> Any:
    torch.set_default_device("meta")
    return mixing()(images, share)


def test_a_default_device_is_put_back_and_disturbs_no_check() -> None:
    assert "another default device" in check_mix(mixed_under_a_default).words
    assert torch.get_default_device() == torch.device("cpu")
    torch.set_default_device("meta")
    try:
        assert check_mix(mixing()).outcome == "right"
        assert torch.get_default_device() == torch.device("meta")
    finally:
        torch.set_default_device(None)
