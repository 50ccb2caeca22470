"""Wrong answers to the exercise of `reproducible_runs`: one for each hint."""

import numpy as np
import torch

GENERATOR = np.random.default_rng(0)


def seeds_the_global_one(seed, epoch, index):
    torch.manual_seed(int(np.random.SeedSequence([seed, epoch, index]).generate_state(1)[0]))
    return torch.randn(4)


WRONG = {
    "order": lambda seed, epoch, index: GENERATOR.normal(size=4),
    "global": seeds_the_global_one,
    "hash": lambda seed, epoch, index: np.random.default_rng(abs(hash(f"{seed},{epoch},{index}"))).normal(size=4),
    "constant": lambda seed, epoch, index: [seed, epoch, index, 0],
    "same_for_all": lambda seed, epoch, index: np.random.default_rng(seed).normal(size=4),
    "each_epoch": lambda seed, epoch, index: np.random.default_rng([seed, index]).normal(size=4),
    "collides": lambda seed, epoch, index: np.random.default_rng(seed + epoch + index).normal(size=4),
}
