"""The checks of lesson 02: other right answers, and mistakes that no hint was written for or that share one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributions import Normal

from course_utils.lessons.on_device_tensors.checks import check_add_noise, check_as_tensors, check_load_decoder


def built_on_meta(make_model: Any) -> Any:
    with torch.device("meta"):
        return make_model()


def assigns(make_model: Any, checkpoint: Any, device: Any) -> Any:
    model = built_on_meta(make_model)
    model.load_state_dict(checkpoint, assign=True)
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


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (check_add_noise, lambda images, scale: Normal(images, scale).sample()),
        (check_add_noise, lambda images, scale: images + torch.empty_like(images).normal_() * scale),
        (check_add_noise, lambda images, scale: images + torch.tensor(scale).item() * torch.randn_like(images)),
        (check_as_tensors, lambda features, labels: [torch.from_numpy(features), torch.from_numpy(labels.astype(int))]),
        (check_load_decoder, assigns),
    ],
)
def test_other_right_answers_are_right(check: Any, answer: Any) -> None:
    feedback = check(answer)
    assert feedback.outcome == "right", feedback


@pytest.mark.parametrize(
    ("check", "answer", "words"),
    [
        (check_add_noise, lambda images, scale: images + scale * torch.randn_like(images[:1]), "same noise in several"),
        (check_add_noise, lambda images, scale: images * float("nan"), "not scale times normal noise"),
        (check_as_tensors, lambda features, labels: (features, labels), "2 values (ndarray, ndarray)"),
        (check_load_decoder, builds_under_a_default, "another default device"),
        (
            check_load_decoder,
            lambda *args: fills_empty_memory(*args, change=lambda checkpoint: checkpoint["mixing.bias"].zero_()),
            "mixing.bias has other values",
        ),
    ],
)
def test_what_else_is_wrong_is_said(check: Any, answer: Any, words: str) -> None:
    feedback = check(answer)
    assert (feedback.outcome, feedback.hint) == ("not yet", None)
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
