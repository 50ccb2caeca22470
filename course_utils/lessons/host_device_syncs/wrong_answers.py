"""Wrong answers to the exercises of lesson 03: one for each hint."""


def asks(gradient, max_norm):
    norm = gradient.norm()
    return gradient * (max_norm / norm) if norm > max_norm else gradient


def divides_zero_by_zero(gradient, max_norm):
    norm = gradient.norm()
    return gradient / norm * norm.clamp(max=max_norm)


WRONG = {
    "check_step_s": {
        "every_step": lambda prepare_s, gpu_s, read_every: prepare_s + gpu_s,
        "never": lambda prepare_s, gpu_s, read_every: max(prepare_s, gpu_s),
        "gpu_free": lambda prepare_s, gpu_s, read_every: prepare_s + gpu_s / read_every,
        "whole_wait": lambda prepare_s, gpu_s, read_every: max(prepare_s, gpu_s) + gpu_s / read_every,
        "all_shared": lambda prepare_s, gpu_s, read_every: (prepare_s + gpu_s) / read_every,
    },
    "check_clip": {
        "asks": asks,
        "enlarges": lambda gradient, max_norm: gradient * (max_norm / gradient.norm().clamp(min=1e-6)),
        "each_number": lambda gradient, max_norm: gradient.clamp(-max_norm, max_norm),
        "never": lambda gradient, max_norm: gradient,
        "zero": divides_zero_by_zero,
    },
}
