"""Wrong answers to the exercises of lesson 18: one for each hint."""

import torch


def formula(weights, gradients, optimizer, zero1="o"):
    def answer(strategy, parameters, ranks):
        spread = {"ddp": "", "zero1": zero1, "fsdp": "wgo"}[strategy]
        sizes = {"w": weights, "g": gradients, "o": optimizer}
        return sum(size * parameters / (ranks if part in spread else 1) for part, size in sizes.items())

    return answer


def divides_everything(strategy, parameters, ranks):
    return 16 * parameters / ranks


def wraps_the_root(model, shard):
    return shard(model)


def wraps_the_root_first(model, shard):
    shard(model)
    for block in model.blocks:
        shard(block)
    return model


def wraps_blocks(model, shard):
    for block in model.blocks:
        shard(block)
    return model


def wraps_layers(model, shard):
    for block in model.blocks:
        for layer in block:
            if list(layer.parameters()):
                shard(layer)
    return shard(model)


def given(optimizer):
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def compares_values(model, optimizer):
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    stepped = given(optimizer)
    return len(trained) == len(stepped) and all(
        torch.equal(a.detach(), b.detach()) for a, b in zip(trained, stepped, strict=True)
    )


def looks_at_the_first_group(model, optimizer):
    stepped = {id(weight) for weight in optimizer.param_groups[0]["params"]}
    return any(id(weight) in stepped for weight in model.parameters())


def counts(model, optimizer):
    return len(list(model.parameters())) == len(given(optimizer))


def wants_frozen_ones(model, optimizer):
    stepped = {id(weight) for weight in given(optimizer)}
    return all(id(weight) in stepped for weight in model.parameters())


def asks_the_other_way(model, optimizer):
    own = {id(weight) for weight in model.parameters()}
    return all(id(weight) in own for weight in given(optimizer))


def wants_none_but_trained_ones(model, optimizer):
    return {id(w) for w in model.parameters() if w.requires_grad} == {id(w) for w in given(optimizer)}


def turned_round(model, optimizer):
    stepped = {id(weight) for weight in given(optimizer)}
    return not all(id(weight) in stepped for weight in model.parameters() if weight.requires_grad)


WRONG = {
    "check_rank_bytes": {
        "no_optimizer": formula(4, 4, 0),
        "one_moment": formula(4, 4, 4),
        "no_gradients": formula(4, 0, 8),
        "zero1_shards_gradients": formula(4, 4, 8, "go"),
        "zero1_shards_all": formula(4, 4, 8, "wgo"),
        "per_cluster": divides_everything,
    },
    "check_wrap": {
        "root_only": wraps_the_root,
        "root_first": wraps_the_root_first,
        "blocks_only": wraps_blocks,
        "too_fine": wraps_layers,
    },
    "check_steps_the_model": {
        "compares_values": compares_values,
        "first_group": looks_at_the_first_group,
        "counts": counts,
        "frozen": wants_frozen_ones,
        "other_way": asks_the_other_way,
        "frozen_given": wants_none_but_trained_ones,
        "turned_round": turned_round,
    },
}
