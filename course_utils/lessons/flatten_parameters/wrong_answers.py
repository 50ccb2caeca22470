"""Wrong answers to the exercises of lesson 08: one for each hint."""

import itertools

from torch import nn


def _rnns(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.RNNBase)}


def _storages(rnn):
    return {weight.untyped_storage().data_ptr() for weight in rnn.parameters()}


def _side_by_side(places, sizes, start):
    """Whether each piece begins where the one before it ends."""
    return all(place == end for place, end in zip(places, itertools.accumulate(sizes, initial=start), strict=False))


def _flat(weights, start=None):
    start = weights[0].untyped_storage().data_ptr() if start is None else start
    return _side_by_side([w.data_ptr() for w in weights], [w.nbytes for w in weights], start)


def each_weight_contiguous(model):
    return [name for name, rnn in _rnns(model).items() if not all(w.is_contiguous() for w in rnn.parameters())]


def only_children(model):
    return [
        name
        for name, rnn in model.named_children()
        if isinstance(rnn, nn.RNNBase) and not _flat(list(rnn.parameters()))
    ]


def only_storages(model):
    return [name for name, rnn in _rnns(model).items() if len(_storages(rnn)) > 1]


def begins_anywhere(model):
    weights = {name: list(rnn.parameters()) for name, rnn in _rnns(model).items()}
    return [name for name, of in weights.items() if not _flat(of, of[0].data_ptr())]


def compares_offsets(model):
    weights = {name: list(rnn.parameters()) for name, rnn in _rnns(model).items()}
    return [
        name
        for name, of in weights.items()
        if not _side_by_side([w.storage_offset() for w in of], [w.numel() for w in of], 0)
    ]


def sorts_by_address(model):
    return [
        name for name, rnn in _rnns(model).items() if not _flat(sorted(rnn.parameters(), key=lambda w: w.data_ptr()))
    ]


def every_module(model):
    return [name for name, module in model.named_modules() if len(list(module.parameters(recurse=False))) > 1]


def _call_after(*operations):
    def repair(rnns, done):
        for name, rnn in rnns.items():
            if done[name] in operations:
                rnn.flatten_parameters()

    return repair


def calls_everywhere(rnns, done):
    for rnn in rnns.values():
        rnn.flatten_parameters()


def calls_nowhere(rnns, done):
    for rnn in rnns.values():
        rnn.eval()


def _bytes(kind, input_size, hidden_size, layers, biases=2, gates=None, stacked=True):
    gates = gates or (4 if kind == "lstm" else 3)
    total = gates * hidden_size * (input_size + hidden_size + biases)
    for _ in range(layers - 1):
        total += gates * hidden_size * ((hidden_size if stacked else input_size) + hidden_size + biases)
    return 4 * total


NEEDY = ("p.data =", "deepcopy", "vector_to_parameters")

WRONG = {
    "check_scattered_rnns": {
        "each_contiguous": each_weight_contiguous,
        "top_level": only_children,
        "storages_only": only_storages,
        "any_start": begins_anywhere,
        "offsets_only": compares_offsets,
        "any_order": sorts_by_address,
        "everything": every_module,
    },
    "check_repair": {
        "none": calls_nowhere,
        "all": calls_everywhere,
        "self_repairing": _call_after(*NEEDY, "load_state_dict(assign=True)", "new Parameter"),
        "tied": _call_after(*NEEDY, "tied weights"),
        "copies": _call_after("p.data =", "vector_to_parameters"),
    },
    "check_fallback_cost": {
        "elements": lambda *shape: (_bytes(*shape) / 4, 3 * _bytes(*shape) / 4),
        "no_bias": lambda *shape: (_bytes(*shape, biases=0), 3 * _bytes(*shape, biases=0)),
        "same_input": lambda *shape: (_bytes(*shape, stacked=False), 3 * _bytes(*shape, stacked=False)),
        "gates": lambda *shape: (_bytes(*shape, gates=4), 3 * _bytes(*shape, gates=4)),
        "copy_only": lambda *shape: (_bytes(*shape), 2 * _bytes(*shape)),
        "one_pass": lambda *shape: (_bytes(*shape), _bytes(*shape)),
    },
}
