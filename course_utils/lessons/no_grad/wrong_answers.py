"""Wrong answers to the exercises of the lesson: one for each hint."""

import torch
from torch import nn


def features(model, batches):
    return torch.cat([model(inputs) for inputs in batches])


def dropout(model, batches):
    with torch.no_grad():
        return features(model, batches)


def graph(model, batches):
    model.eval()
    return features(model, batches).detach()


def inference(model, batches):
    model.eval()
    with torch.inference_mode():
        return features(model, batches)


def grad_left_off(model, batches):
    torch.set_grad_enabled(False)
    model.eval()
    return features(model, batches)


def grad_left_on(model, batches):
    modes = [(module, module.training) for module in model.modules()]
    torch.set_grad_enabled(False)
    model.eval()
    try:
        return features(model, batches)
    finally:
        torch.set_grad_enabled(True)
        for module, mode in modes:
            module.training = mode


def left_in_eval(model, batches):
    model.eval()
    with torch.no_grad():
        return features(model, batches)


def frozen_woken(model, batches):
    made = left_in_eval(model, batches)
    model.train()
    return made


def after_an_error(model, batches):
    modes = [(module, module.training) for module in model.modules()]
    made = left_in_eval(model, batches)
    for module, mode in modes:
        module.training = mode
    return made


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


class Graph(Positions):
    def forward(self, x):
        with torch.inference_mode(False):
            return super().forward(x)


WRONG = {
    "check_features": {
        "dropout": dropout,
        "graph": graph,
        "inference": inference,
        "grad_left_off": grad_left_off,
        "grad_left_on": grad_left_on,
        "left_in_eval": left_in_eval,
        "frozen_woken": frozen_woken,
        "after_an_error": after_an_error,
    },
    "check_positions": {"inference": Positions, "rebuilds": Rebuilds, "too_short": TooShort, "graph": Graph},
}
