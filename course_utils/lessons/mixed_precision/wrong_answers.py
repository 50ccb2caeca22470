"""Wrong answers to the exercises of lesson 07: one for each hint."""

import math

from torch import nn


def bytes_each(fp32, autocast, bf16, master):
    each = {"fp32": fp32, "autocast": autocast, "bf16 weights": bf16, "master weights": master}
    return lambda parameters, recipe: parameters * each[recipe]


def step(*, scales=True, unscales=False, scalers_step=True, updates=True, clips=True):
    """A training step with something wrong."""

    def scaled_step(loss, model, optimizer, scaler):
        (scaler.scale(loss) if scales else loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
        if clips:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
        if scalers_step:
            scaler.step(optimizer)
        else:
            optimizer.step()
        if updates:
            scaler.update()
        return norm

    return scaled_step


def power_below(limit, largest):
    """The largest power of two that keeps ``largest`` of the gradients below a limit."""
    return lambda gradients: 2.0 ** math.floor(math.log2(limit / largest(gradients)))


def largest_size(gradients):
    return max(gradient.abs().max().item() for gradient in gradients)


def lifts_the_smallest(gradients):
    smallest = min(gradient.abs().min().item() for gradient in gradients)
    return 2.0 ** min(5, math.ceil(math.log2(6e-8 / smallest)))


WRONG = {
    "check_state_bytes": {
        "halves_all": bytes_each(16, 8, 8, 16),
        "no_copies": bytes_each(16, 16, 8, 12),
        "one_moment": bytes_each(12, 14, 6, 12),
        "no_gradients": bytes_each(12, 14, 6, 14),
    },
    "check_scaled_step": {
        "no_scaling": step(scales=False, scalers_step=False, updates=False),
        "own_step": step(scalers_step=False, updates=False),
        "clips_scaled": step(),
        "no_update": step(unscales=True, updates=False),
        "no_clipping": step(unscales=True, clips=False),
    },
    "check_largest_scale": {
        "overflows": power_below(2 * 65536, largest_size),
        "too_small": lifts_the_smallest,
        "not_a_power": lambda gradients: 65504 / largest_size(gradients),
        "signs": power_below(65504, lambda gradients: max(gradient.max().item() for gradient in gradients)),
        "one_tensor": power_below(65504, lambda gradients: gradients[0].abs().max().item()),
    },
}
