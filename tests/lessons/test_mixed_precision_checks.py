"""Answers to the exercises of lesson 07: right in another form, or wrong in a way that deserves its own words."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from course_utils.lessons.mixed_precision.checks import check_largest_scale, check_scaled_step, check_state_bytes

EACH = {"fp32": 16, "autocast": 18, "bf16 weights": 8, "master weights": 16}


@pytest.mark.parametrize("kind", [int, float, Fraction, np.int64, torch.tensor])
def test_bytes_may_be_a_number_of_any_type(kind) -> None:
    assert check_state_bytes(lambda count, recipe: kind(count * EACH[recipe])).outcome == "right"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda count, recipe: count * EACH[recipe] / 2**30, "not MiB or GiB"),
        (lambda count, recipe: float("inf"), "there is an end"),
        (lambda count, recipe: 10**400, "there is an end"),
        (lambda count, recipe: 0, "Bytes are positive"),
        (lambda count, recipe: "16", "you return str"),
        (lambda count, recipe: [16], "you return list"),
        (lambda count, recipe: count * 17, "too much"),
    ],
)
def test_bytes_that_are_none(answer, words: str) -> None:
    feedback = check_state_bytes(answer)
    assert (feedback.outcome, feedback.hint) == ("not yet", None)
    assert words in feedback.words


@pytest.mark.parametrize("changed", [{"autocast": 16}, {"master weights": 12}])
def test_one_forgotten_copy_is_recognised_and_not_given_away(changed: dict[str, int]) -> None:
    each = EACH | changed
    feedback = check_state_bytes(lambda count, recipe: count * each[recipe])
    assert feedback.hint == "no_copies"
    assert "18" not in feedback.words


def step(*, backward=True, clip=nn.utils.clip_grad_norm_, by_hand=False, unscale=1, update=True, returns=True):
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


def clip_values(parameters, limit):
    parameters = list(parameters)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters])
    nn.utils.clip_grad_value_(parameters, limit / 10)
    return norm


def nan_norm(parameters, limit):
    nn.utils.clip_grad_norm_(parameters, limit)
    return float("nan")


@pytest.mark.parametrize(
    ("answer", "hint", "words"),
    [
        (step(returns=False), None, "return the norm before clipping"),
        (step(returns=False, update=False), "no_update", ""),
        (step(update=False), "no_update", ""),
        (step(backward=False), None, "nobody calls backward()"),
        (step(backward=False, unscale=0), None, "nobody calls backward()"),
        (step(unscale=2), None, "unscale_() has already been called"),
        (step(unscale=0), "clips_scaled", ""),
        (step(unscale=0, by_hand=True), None, "exactly once"),
        (step(by_hand=True), None, "exactly once"),
        (step(clip=clip_values), None, "exactly once"),
        (step(clip=nan_norm), None, "the norm that you return"),
        (lambda loss, model, optimizer, scaler: None, None, "Write your answer"),
    ],
)
def test_a_broken_step_is_told_what_is_broken(answer, hint: str | None, words: str) -> None:
    feedback = check_scaled_step(answer)
    assert feedback.outcome != "right"
    assert feedback.hint == hint
    assert words in feedback.words


def scale_from(largest):
    """A solution that takes the largest gradient for what ``largest`` makes of the list."""
    return lambda gradients: (
        2.0 ** (torch.frexp(torch.finfo(torch.float16).max / largest(gradients)).exponent.item() - 1)
    )


def everything(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients])


def test_rounding_to_fp16_before_looking_is_not_right() -> None:
    right = scale_from(lambda gradients: everything(gradients).abs().max())

    def divides(gradients):
        return 65504 / everything(gradients).half().abs().max().item()

    def rounds(gradients):
        return right(gradients) if everything(gradients).half().any() else float("inf")

    for answer in (divides, rounds):
        assert "look for the largest one in fp32" in check_largest_scale(answer).words
    assert check_largest_scale(right).outcome == "right"
