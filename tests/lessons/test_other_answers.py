"""Answers that neither solve an exercise as the course does nor go wrong as a hint foresaw: what the checks say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Normal

from course_utils.lessons.mixed_precision.checks import check_largest_scale, check_scaled_step, check_state_bytes
from course_utils.lessons.on_device_tensors.checks import check_add_noise, check_as_tensors, check_load_decoder
from course_utils.lessons.pinned_memory.checks import check_collect, check_upload

# Lesson 02


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


def changes_a_weight(*args: Any) -> Any:
    return fills_empty_memory(*args, change=lambda checkpoint: checkpoint["mixing.bias"].zero_())


# Lesson 04


def upload(data: Any, batch_size: int, device: Any) -> Any:
    pinned = data.pin_memory().pin_memory()
    starts = range(0, len(data), batch_size)
    return [pinned[start : start + batch_size].cuda(non_blocking=True) for start in starts]


def collect_with_an_event(outputs: Any, gpu: Any) -> Any:
    stacked = torch.stack(outputs).sum(dim=1).to(device="cpu", non_blocking=True)
    done = gpu.Event()
    done.record()
    done.synchronize()
    return stacked.tolist()


# Lesson 07


def state_bytes(kind: Any = int, **changed: int) -> Any:
    each = {"fp32": 16, "autocast": 18, "bf16 weights": 8, "master weights": 16} | changed
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


def everything(gradients: Any) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients])


def largest_scale(gradients: Any) -> float:
    largest = everything(gradients).abs().max()
    return 2.0 ** (torch.frexp(torch.finfo(torch.float16).max / largest).exponent.item() - 1)


def divides_by_fp16(gradients: Any) -> float:
    return 65504 / everything(gradients).half().abs().max().item()


def rounds_to_fp16(gradients: Any) -> float:
    return largest_scale(gradients) if everything(gradients).half().any() else float("inf")


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (check_add_noise, lambda images, scale: Normal(images, scale).sample()),
        (check_add_noise, lambda images, scale: images + torch.empty_like(images).normal_() * scale),
        (check_add_noise, lambda images, scale: images + torch.tensor(scale).item() * torch.randn_like(images)),
        (check_as_tensors, lambda features, labels: [torch.from_numpy(features), torch.from_numpy(labels.astype(int))]),
        (check_load_decoder, assigns),
        (check_upload, upload),
        (check_collect, collect_with_an_event),
        *((check_state_bytes, state_bytes(kind)) for kind in (int, float, torch.tensor)),
        (check_largest_scale, largest_scale),
    ],
)
def test_other_right_answers_are_right(check: Any, answer: Any) -> None:
    feedback = check(answer)
    assert feedback.outcome == "right", feedback


@pytest.mark.parametrize(
    ("check", "answer", "hint", "words"),
    [
        (check_add_noise, lambda images, scale: images + scale * torch.randn_like(images[:1]), None, "same noise in"),
        (check_add_noise, lambda images, scale: images * float("nan"), None, "not scale times normal noise"),
        (check_as_tensors, lambda features, labels: (features, labels), None, "2 values (ndarray, ndarray)"),
        (check_load_decoder, builds_under_a_default, None, "another default device"),
        (check_load_decoder, changes_a_weight, None, "mixing.bias has other values"),
        (check_state_bytes, state_bytes(autocast=16), "no_copies", ""),
        (check_state_bytes, state_bytes(**{"master weights": 12}), "no_copies", ""),
        (check_scaled_step, step(returns=False), None, "return the norm before clipping"),
        (check_scaled_step, step(returns=False, update=False), "no_update", ""),
        (check_scaled_step, step(backward=False), None, "nobody calls backward()"),
        (check_scaled_step, step(unscale=2), None, "unscale_() has already been called"),
        (check_scaled_step, step(unscale=0), "clips_scaled", ""),
        (check_scaled_step, step(unscale=0, by_hand=True), None, "exactly once"),
        (check_scaled_step, step(clip=clip_values), None, "exactly once"),
        (check_scaled_step, lambda *args: None, None, "did you forget `return`?"),
        (check_largest_scale, divides_by_fp16, None, "look for the largest one in fp32"),
        (check_largest_scale, rounds_to_fp16, None, "look for the largest one in fp32"),
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
