"""Wrong answers to the exercise of `host_device_syncs`: one for each hint."""

import torch


def copies(gradient, max_norm):
    return gradient * torch.minimum(max_norm / gradient.norm(), torch.tensor([1.0], device=gradient.device))


def mixes(gradient, max_norm):
    return gradient * torch.minimum(max_norm / gradient.norm(), torch.ones(1))


def divides_zero_by_zero(gradient, max_norm):
    norm = gradient.norm()
    return gradient / norm * norm.clamp(max=max_norm)


WRONG = {
    "copies": copies,
    "mixes": mixes,
    "enlarges": lambda gradient, max_norm: gradient * (max_norm / gradient.norm().clamp(min=1e-6)),
    "each_number": lambda gradient, max_norm: gradient.clamp(-max_norm, max_norm),
    "never": lambda gradient, max_norm: gradient,
    "zero": divides_zero_by_zero,
}
