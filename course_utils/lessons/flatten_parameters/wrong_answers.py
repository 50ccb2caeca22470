"""Wrong answers to the exercises of the lesson: one for each hint."""


def _call_after(*operations):
    def repair(rnns, done):
        for name, rnn in rnns.items():
            if done[name] in operations:
                rnn.flatten_parameters()

    return repair


def calls_everywhere(rnns, done):
    _call_after(*done.values())(rnns, done)


def _first_length(fits):
    """The first length whose copy and call, in seconds, fit."""

    def shortest_length(estimate):
        length = 1
        while not fits(*estimate(length)):
            length += 1
        return length

    return shortest_length


def _below(limit):
    return lambda copy_s, call_s: copy_s / (copy_s + call_s) < limit


right = _first_length(_below(0.05))

NEEDY = ("p.data =", "deepcopy", "vector_to_parameters")

WRONG = {
    "check_repair": {
        "none": _call_after(),
        "named": lambda rnns, done: [name for name in rnns if done[name] in NEEDY],
        "all": calls_everywhere,
        "self_repairing": _call_after(*NEEDY, "load_state_dict(assign=True)", "new Parameter"),
        "tied": _call_after(*NEEDY, "tied weights"),
        "copies": _call_after("p.data =", "vector_to_parameters"),
    },
    "check_shortest_length": {
        "of_the_call": _first_length(lambda copy_s, call_s: copy_s / call_s < 0.05),
        "one_more": lambda estimate: right(estimate) + 1,
        "one_less": lambda estimate: right(estimate) - 1,
        "bound": lambda estimate: 114,
        "fraction": _first_length(_below(0.5)),
        "percent": _first_length(_below(5)),
    },
}
