"""Wrong answers to the exercise of `initialization`: one for each hint."""

import torch


def scaled(ends, factor):
    def scale(model, blocks):
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith(ends):
                    weight.mul_(factor(blocks))

    return scale


BOTH = ("projection.weight", "mlp.2.weight")

WRONG = {
    "never_applied": scaled("projection", lambda blocks: (2 * blocks) ** -0.5),
    "one_of_two": scaled("projection.weight", lambda blocks: (2 * blocks) ** -0.5),
    "some_blocks": scaled(tuple(f"blocks.{at}.{end}" for at in (0, 1) for end in BOTH), lambda n: (2 * n) ** -0.5),
    "everything": scaled("weight", lambda blocks: (2 * blocks) ** -0.5),
    "no_two": scaled(BOTH, lambda blocks: blocks**-0.5),
    "no_root": scaled(BOTH, lambda blocks: 1 / (2 * blocks)),
}
