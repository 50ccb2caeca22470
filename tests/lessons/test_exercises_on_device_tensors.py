"""The checks of lesson 02: other right answers, and mistakes that no hint was written for or that share one."""

from __future__ import annotations

from typing import Any

import numpy as np
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


def assigns_and_moves_too_early(make_model: Any, checkpoint: Any, device: Any) -> Any:
    model = built_on_meta(make_model)
    model.load_state_dict(checkpoint, assign=True)
    model.to(device)
    model.tie_weights()
    model.reset_buffers()
    return model


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


def halves(make_model: Any, checkpoint: Any, device: Any) -> Any:
    return fills_empty_memory(make_model, checkpoint, device).half()


def random_array(images: torch.Tensor) -> np.ndarray:
    return np.random.default_rng().normal(size=tuple(images.shape))


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
    ("check", "answer", "hint"),
    [
        (
            check_add_noise,
            lambda images, scale: images + scale * torch.from_numpy(random_array(images)).to(images),
            "moved",
        ),
        (check_add_noise, lambda images, scale: (images + scale * torch.randn_like(images)).half(), "other_dtype"),
        (check_add_noise, lambda images, scale: images / images.max().item() * scale, "fetches"),
        (check_as_tensors, lambda features, labels: (torch.from_numpy(features), zeroed(labels)), "in_place"),
        (check_load_decoder, assigns_and_moves_too_early, "moves_meta"),
        (check_load_decoder, lambda *args: fills_empty_memory(*args, change=dict.clear), "never_loaded"),
    ],
)
def test_further_wrong_turns_get_the_hint_too(check: Any, answer: Any, hint: str) -> None:
    assert check(answer).hint == hint


def zeroed(labels: np.ndarray) -> torch.Tensor:
    labels[:] = 0
    return torch.from_numpy(labels).long()


def reseeded(images: torch.Tensor, scale: float) -> torch.Tensor:
    torch.manual_seed(0)
    return images + scale * torch.randn_like(images)


def sparse_on_the_cpu(images: torch.Tensor, scale: float) -> torch.Tensor:
    noisy = images + scale * torch.randn_like(images)
    return noisy if noisy.is_meta else noisy.to_sparse()


@pytest.mark.parametrize(
    ("check", "answer", "words"),
    [
        (check_add_noise, lambda images, scale: images + scale * torch.randn_like(images[:1]), "same noise in several"),
        (check_add_noise, lambda images, scale: images * float("nan"), "not scale times normal noise"),
        (check_add_noise, reseeded, "Two calls return the same"),
        (
            check_add_noise,
            lambda images, scale: images > scale if images.dtype == torch.float64 else images.clone(),
            "you return torch.bool",
        ),
        (check_add_noise, sparse_on_the_cpu, "Return the noisy images"),
        (check_as_tensors, lambda features, labels: (features, labels), "2 values (ndarray, ndarray)"),
        (check_load_decoder, builds_under_a_default, "another default device"),
        (check_load_decoder, halves, "embedding.weight is torch.float16"),
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
