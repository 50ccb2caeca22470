"""Wrong answers to the exercises of the lesson: one for each hint."""

import torch
from torch import nn


def keeps_the_branch(x, weight):
    scores = x @ weight
    if scores.abs().max() > 10:
        scores = scores / 10
    return scores.softmax(dim=-1), scores.max()


def reads_the_number(x, weight):
    scores = x @ weight
    scores = torch.where(scores.abs().max() > 10, scores / 10, scores)
    return scores.softmax(dim=-1), scores.max().item()


def drops_the_condition(x, weight):
    scores = x @ weight / 10
    return scores.softmax(dim=-1), scores.max()


def breaks_in_a_loop(x, weight):
    for _ in range(1):
        scores = x @ weight
        if scores.abs().max() > 10:
            scores = scores / 10
    return scores.softmax(dim=-1), scores.max()


class CountsInPython(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * min(1.0, self.calls / 10)


class NeverCounts(nn.Module):
    def forward(self, x):
        return x * 0.1


class ReadsTheCounter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * min(1.0, self.calls.item() / 10)


class CountsUncompiled(CountsInPython):
    @torch.compiler.disable
    def forward(self, x):
        return super().forward(x)


WRONG = {
    "check_one_graph": {
        "item": reads_the_number,
        "branch": keeps_the_branch,
        "always": drops_the_condition,
        "not_traced": breaks_in_a_loop,
    },
    "check_counter": {
        "recompiles": CountsInPython,
        "frozen": NeverCounts,
        "breaks": ReadsTheCounter,
        "not_traced": CountsUncompiled,
    },
}
