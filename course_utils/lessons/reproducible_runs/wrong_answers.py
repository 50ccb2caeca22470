"""Wrong answers to the exercises of the lesson: one for each hint."""

import numpy as np
import torch


def without(left_out):
    def restore(training, state):
        for part in ("model", "optimizer", "scheduler"):
            if part != left_out:
                getattr(training, part).load_state_dict(state[part])
        if left_out != "position":
            training.epoch, training.batch = state["epoch"], state["batch"]
        if left_out == "generators":  # a seed in place of a state
            torch.manual_seed(0)
        else:
            torch.set_rng_state(state["torch"])
        np.random.set_state(state["numpy"])

    return restore


GENERATOR = np.random.default_rng(0)


def seeds_the_global_one(seed, epoch, index):
    torch.manual_seed(int(np.random.SeedSequence([seed, epoch, index]).generate_state(1)[0]))
    return torch.randn(4)


WRONG = {
    "check_restore": {part: without(part) for part in ("position", "optimizer", "scheduler", "generators")},
    "check_noise": {
        "order": lambda seed, epoch, index: GENERATOR.normal(size=4),
        "global": seeds_the_global_one,
        "hash": lambda seed, epoch, index: np.random.default_rng(abs(hash(f"{seed},{epoch},{index}"))).normal(size=4),
        "same_for_all": lambda seed, epoch, index: np.random.default_rng(seed).normal(size=4),
        "each_epoch": lambda seed, epoch, index: np.random.default_rng([seed, index]).normal(size=4),
        "collides": lambda seed, epoch, index: np.random.default_rng(seed + epoch + index).normal(size=4),
    },
}
