"""Wrong answers to the exercise of the lesson: one for each hint."""

import torch


def given(optimizer):
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def trained(model):
    return [weight for weight in model.parameters() if weight.requires_grad]


def ids(weights):
    return {id(weight) for weight in weights}


def compares_values(model, optimizer):
    stepped = given(optimizer)
    return len(trained(model)) == len(stepped) and all(
        torch.equal(a.detach(), b.detach()) for a, b in zip(trained(model), stepped, strict=True)
    )


def looks_at_the_first_group(model, optimizer):
    return not ids(model.parameters()).isdisjoint(ids(optimizer.param_groups[0]["params"]))


WRONG = {
    "compares_values": compares_values,
    "first_group": looks_at_the_first_group,
    "counts": lambda model, optimizer: len(list(model.parameters())) == len(given(optimizer)),
    "frozen": lambda model, optimizer: ids(model.parameters()) <= ids(given(optimizer)),
    "other_way": lambda model, optimizer: ids(given(optimizer)) <= ids(model.parameters()),
    "frozen_given": lambda model, optimizer: ids(trained(model)) == ids(given(optimizer)),
    "turned_round": lambda model, optimizer: not ids(trained(model)) <= ids(given(optimizer)),
}
