"""Answers that neither solve an exercise as the course does nor go wrong as a hint foresaw: what the checks say."""

from __future__ import annotations

import re
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from course_utils.lessons.data_loading.checks import check_workers
from course_utils.lessons.host_device_syncs.checks import check_clip
from course_utils.lessons.measuring.checks import check_timer
from course_utils.lessons.mixed_precision.checks import check_scaled_step
from course_utils.lessons.on_device_tensors.checks import check_mix
from course_utils.lessons.profiler.checks import check_gaps
from tests.lessons.wrong_answers.measuring import one_block, timer
from tests.lessons.wrong_answers.mixed_precision import step
from tests.lessons.wrong_answers.on_device_tensors import mixing


def divides_by_hand(loss: Any, model: nn.Module, optimizer: Any, scaler: Any) -> torch.Tensor:
    scaler.scale(loss).backward()
    for parameter in model.parameters():
        parameter.grad /= scaler.get_scale()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return norm


def by_trying(load: float, step: float, price: float, cores: int) -> np.int64:
    """The fewest workers that nothing beats."""
    times = {n: max(load / n, step + price) if n else load + step for n in range(cores + 1)}
    return np.int64(min(times, key=times.__getitem__))


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (check_timer, timer(median, calls=200, warm_up=2)),
        (check_timer, timer(lambda times: fmean(sorted(times)[12:-12]))),
        (check_timer, timer(median, twice=True)),
        (check_mix, mixing(first=lambda kept: kept.__setitem__(slice(1), 1))),
        (check_mix, mixing(weights=lambda n, share, device: torch.ones(n, device=device) * torch.tensor(share))),
        (check_mix, mixing(first=lambda kept: kept.__setitem__(torch.arange(len(kept), device=kept.device) == 0, 1))),
        (check_mix, lambda images, share: torch.cat([images[:1], (images * share + images.flip(0) * (1 - share))[1:]])),
        (check_clip, lambda g, most: g * torch.clamp(most / (g.norm() + 1e-6), max=1.0)),
        (check_clip, lambda g, most: torch.where(g.norm() > most, g * most / g.norm(), g)),
        (check_clip, lambda g, most: g.mul_((most / g.norm()).clamp(max=1))),
        (check_clip, lambda g, most: g * torch.minimum(most / g.norm(), torch.tensor(1.0))),  # a scalar of the CPU
        (check_workers, by_trying),
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
        (check_timer, one_block, "mean", ""),
        (check_gaps, "data", None, "One text is no list"),
        (check_gaps, ["data"], None, "There are four gaps, and you name 1"),
        (check_gaps, ["data", "data", "another stream", "Python"], None, "Gap 2 does not wait for: data"),
        (check_mix, lambda images, share: share * images, None, "not those that"),
        (check_mix, mixing(order=lambda n, device: list(range(n))[::-1]), "index", ""),
        (check_mix, mixing(first=lambda kept: kept.__setitem__(slice(1), torch.ones(1))), "moved", ""),
        (check_mix, mixing(weights=lambda n, share, device: torch.full((n,), share).pin_memory()), "moved", ""),
        (check_clip, lambda g, most: g * (most / g.norm()).clamp(max=0.5), "enlarges", ""),
        (check_clip, lambda g, most: g.norm(), None, "same shape"),
        (check_clip, lambda g, most: g * min(1.0, most / g.norm().item()), None, r"in line \d+, `.*meta.*wait there"),
        (check_clip, lambda g, most: g * torch.minimum(most / g.norm(), g.new_tensor(1.0)), "copies", ""),
        (check_scaled_step, step(unscales=1, returns=False), None, "did you forget `return`?"),
        (check_scaled_step, step(unscales=1, returns=False, updates=False), "no_update", ""),
        (check_scaled_step, step(unscales=1, backward=False), None, "Nobody calls backward()"),
        (check_scaled_step, step(unscales=2), None, "unscale_() has already been called"),
        (check_scaled_step, divides_by_hand, None, "exactly once"),
    ],
)
def test_what_else_is_wrong_gets_its_words(check: Any, answer: Any, hint: str | None, words: str) -> None:
    feedback = check(answer)
    assert feedback.outcome == "not yet"
    assert feedback.hint == hint
    assert words in feedback.words or re.search(words, feedback.words)


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
