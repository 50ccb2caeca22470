"""Wrong answers to the exercise of `flatten_parameters`: one for each hint."""

NEEDY = ("p.data =", "deepcopy")


def calls_after(*operations):
    def repair(rnns, done):
        for name, rnn in rnns.items():
            if done[name] in operations:
                rnn.flatten_parameters()

    return repair


WRONG = {
    "none": calls_after(),
    "all": lambda rnns, done: calls_after(*done.values())(rnns, done),
    "self_repairing": calls_after(*NEEDY, "load_state_dict(assign=True)", "new Parameter"),
    "tied": calls_after(*NEEDY, "tied weights"),
    "copies": calls_after("p.data ="),
}
