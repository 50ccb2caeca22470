"""Wrong answers to the exercise of the lesson on torch.compile: one for each hint."""

import torch


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


WRONG = {
    "item": reads_the_number,
    "branch": keeps_the_branch,
    "always": drops_the_condition,
    "not_traced": breaks_in_a_loop,
}
