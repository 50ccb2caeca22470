"""Wrong answers to the exercises of lesson 08: one for each hint."""

import itertools

from torch import nn


def _rnns(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.RNNBase)}


def _side_by_side(places, sizes, start):
    """Whether each piece begins where the one before it ends."""
    return all(place == end for place, end in zip(places, itertools.accumulate(sizes, initial=start), strict=False))


def _flat(weights, start=None):
    start = weights[0].untyped_storage().data_ptr() if start is None else start
    return _side_by_side([w.data_ptr() for w in weights], [w.nbytes for w in weights], start)


def _names(scattered, rnns=_rnns):
    """Those RNNs of a model that are scattered by a rule about their weights."""
    return lambda model: [name for name, rnn in rnns(model).items() if scattered(list(rnn.parameters()))]


def _children(model):
    return {name: module for name, module in model.named_children() if isinstance(module, nn.RNNBase)}


def _offsets_have_gaps(weights):
    return not _side_by_side([w.storage_offset() for w in weights], [w.numel() for w in weights], 0)


def every_module(model):
    return [name for name, module in model.named_modules() if len(list(module.parameters(recurse=False))) > 1]


def _call_after(*operations):
    def repair(rnns, done):
        for name, rnn in rnns.items():
            if done[name] in operations:
                rnn.flatten_parameters()

    return repair


def calls_everywhere(rnns, done):
    _call_after(*done.values())(rnns, done)


def _bytes(kind, input_size, hidden_size, layers, biases=2, gates=None, stacked=True):
    gates = gates or (4 if kind == "lstm" else 3)
    total = gates * hidden_size * (input_size + hidden_size + biases)
    for _ in range(layers - 1):
        total += gates * hidden_size * ((hidden_size if stacked else input_size) + hidden_size + biases)
    return 4 * total


def _thrice(size):
    return size, 3 * size


NEEDY = ("p.data =", "deepcopy", "vector_to_parameters")

WRONG = {
    "check_scattered_rnns": {
        "each_contiguous": _names(lambda weights: not all(w.is_contiguous() for w in weights)),
        "top_level": _names(lambda weights: not _flat(weights), _children),
        "storages_only": _names(lambda weights: len({w.untyped_storage().data_ptr() for w in weights}) > 1),
        "any_start": _names(lambda weights: not _flat(weights, weights[0].data_ptr())),
        "offsets_only": _names(_offsets_have_gaps),
        "any_order": _names(lambda weights: not _flat(sorted(weights, key=lambda w: w.data_ptr()))),
        "everything": every_module,
    },
    "check_repair": {
        "none": _call_after(),
        "all": calls_everywhere,
        "self_repairing": _call_after(*NEEDY, "load_state_dict(assign=True)", "new Parameter"),
        "tied": _call_after(*NEEDY, "tied weights"),
        "copies": _call_after("p.data =", "vector_to_parameters"),
    },
    "check_fallback_cost": {
        "elements": lambda *shape: (_bytes(*shape) / 4, 3 * _bytes(*shape) / 4),
        "no_bias": lambda *shape: _thrice(_bytes(*shape, biases=0)),
        "same_input": lambda *shape: _thrice(_bytes(*shape, stacked=False)),
        "gates": lambda *shape: _thrice(_bytes(*shape, gates=4)),
        "copy_only": lambda *shape: (_bytes(*shape), 2 * _bytes(*shape)),
        "one_pass": lambda *shape: (_bytes(*shape), _bytes(*shape)),
    },
}
