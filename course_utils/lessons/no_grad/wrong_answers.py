"""Wrong answers to the exercises of lesson 15: one for each hint."""

import torch
from torch import nn
from torch.nn import functional


def mean_loss(model, batches):
    losses = [functional.cross_entropy(model(x), y, reduction="none") for x, y in batches]
    return torch.cat(losses).mean()


def evaluated(model, batches, mean=mean_loss):
    """Right, if ``mean`` is: the modes of all layers are put back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        mean = mean(model, batches).item()
    for module, mode in modes:
        module.training = mode
    return mean


def dropout(model, batches):
    with torch.no_grad():
        return mean_loss(model, batches).item()


def graph(model, batches):
    model.eval()
    return mean_loss(model, batches).item()


def tensor(model, batches):
    model.eval()
    with torch.no_grad():
        return mean_loss(model, batches)


def grad_left_off(model, batches):
    torch.set_grad_enabled(False)
    model.eval()
    return mean_loss(model, batches).item()


def left_in_eval(model, batches):
    model.eval()
    with torch.inference_mode():
        return mean_loss(model, batches).item()


def frozen_woken(model, batches):
    mean = left_in_eval(model, batches)
    model.train()
    return mean


def mean_of_means(model, batches):
    return evaluated(
        model, batches, lambda model, batches: sum(mean_loss(model, [each]) for each in batches) / len(batches)
    )


class Positions(nn.Module):
    """The cache of the exercise: a table that is made when it is first needed."""

    def __init__(self):
        super().__init__()
        self.table = None

    def make(self, length):
        with torch.no_grad():
            return torch.arange(length, dtype=torch.float32).cos()[:, None].detach()

    def is_too_short(self, length):
        return self.table is None or len(self.table) < length

    def forward(self, x):
        length = x.shape[1]
        if self.is_too_short(length):
            self.table = self.make(length)
        return x * self.table[:length]


class Normal(Positions):
    def make(self, length):
        with torch.inference_mode(False):
            return super().make(length)


class Rebuilds(Normal):
    def is_too_short(self, length):
        return True


class TooShort(Normal):
    def is_too_short(self, length):
        return self.table is None


WRONG = {
    "check_evaluate": {
        "dropout": dropout,
        "graph": graph,
        "tensor": tensor,
        "grad_left_off": grad_left_off,
        "left_in_eval": left_in_eval,
        "frozen_woken": frozen_woken,
        "mean_of_means": mean_of_means,
    },
    "check_positions": {"inference": Positions, "rebuilds": Rebuilds, "too_short": TooShort},
}
