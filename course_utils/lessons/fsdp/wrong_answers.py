"""Wrong answers to the exercises of the lesson: one for each hint."""

import torch


def formula(weights, gradients, optimizer, zero1="o"):
    def answer(strategy, parameters, ranks):
        spread = {"ddp": "", "zero1": zero1, "fsdp": "wgo"}[strategy]
        sizes = {"w": weights, "g": gradients, "o": optimizer}
        return sum(size * parameters / (ranks if part in spread else 1) for part, size in sizes.items())

    return answer


def divides_everything(strategy, parameters, ranks):
    return 16 * parameters / ranks


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
    "check_rank_bytes": {
        "no_optimizer": formula(4, 4, 0),
        "one_moment": formula(4, 4, 4),
        "no_gradients": formula(4, 0, 8),
        "zero1_shards_gradients": formula(4, 4, 8, "go"),
        "zero1_shards_all": formula(4, 4, 8, "wgo"),
        "per_cluster": divides_everything,
    },
    "check_steps_the_model": {
        "compares_values": compares_values,
        "first_group": looks_at_the_first_group,
        "counts": lambda model, optimizer: len(list(model.parameters())) == len(given(optimizer)),
        "frozen": lambda model, optimizer: ids(model.parameters()) <= ids(given(optimizer)),
        "other_way": lambda model, optimizer: ids(given(optimizer)) <= ids(model.parameters()),
        "frozen_given": lambda model, optimizer: ids(trained(model)) == ids(given(optimizer)),
        "turned_round": lambda model, optimizer: not ids(trained(model)) <= ids(given(optimizer)),
        "gathered": lambda model, optimizer: ids(trained(model)) <= ids(given(optimizer)),
    },
}
