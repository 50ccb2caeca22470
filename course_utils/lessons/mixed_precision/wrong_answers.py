"""Wrong answers to the exercises of lesson 07: one for each hint."""

import math

import torch
from torch import nn


def halves_all(parameters, recipe):
    return parameters * {"fp32": 16, "autocast": 8, "bf16 weights": 8, "master weights": 16}[recipe]


def no_copies(parameters, recipe):
    return parameters * {"fp32": 16, "autocast": 16, "bf16 weights": 8, "master weights": 12}[recipe]


def one_moment(parameters, recipe):
    return parameters * {"fp32": 12, "autocast": 14, "bf16 weights": 6, "master weights": 12}[recipe]


def no_gradients(parameters, recipe):
    return parameters * {"fp32": 12, "autocast": 14, "bf16 weights": 6, "master weights": 14}[recipe]


def no_scaling(loss, model, optimizer, scaler):
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return norm


def own_step(loss, model, optimizer, scaler):
    scaler.scale(loss).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return norm


def clips_scaled(loss, model, optimizer, scaler):
    scaler.scale(loss).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return norm


def no_update(loss, model, optimizer, scaler):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    return norm


def no_clipping(loss, model, optimizer, scaler):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    scaler.step(optimizer)
    scaler.update()
    return norm


def fits_65536(gradients):
    largest = max(gradient.abs().max().item() for gradient in gradients)
    return 2.0 ** (math.floor(math.log2(65536 / largest)) + 1)


def lifts_the_smallest(gradients):
    smallest = min(gradient.abs().min().item() for gradient in gradients)
    return 2.0 ** min(5, math.ceil(math.log2(6e-8 / smallest)))


def any_number(gradients):
    return 65504 / max(gradient.abs().max().item() for gradient in gradients)


def forgets_the_sign(gradients):
    largest = max(gradient.max().item() for gradient in gradients)
    return 2.0 ** math.floor(math.log2(torch.finfo(torch.float16).max / largest))


def looks_at_one_tensor(gradients):
    return 2.0 ** math.floor(math.log2(torch.finfo(torch.float16).max / gradients[0].abs().max().item()))


WRONG = {
    "check_state_bytes": {
        "halves_all": halves_all,
        "no_copies": no_copies,
        "one_moment": one_moment,
        "no_gradients": no_gradients,
    },
    "check_scaled_step": {
        "no_scaling": no_scaling,
        "own_step": own_step,
        "clips_scaled": clips_scaled,
        "no_update": no_update,
        "no_clipping": no_clipping,
    },
    "check_largest_scale": {
        "overflows": fits_65536,
        "too_small": lifts_the_smallest,
        "not_a_power": any_number,
        "signs": forgets_the_sign,
        "one_tensor": looks_at_one_tensor,
    },
}
