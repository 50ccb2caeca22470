"""Wrong answers to the exercises of the lesson: one for each hint."""

import torch


def scaled(ends, factor):
    def scale(model, blocks):
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith(ends):
                    weight.mul_(factor(blocks))

    return scale


BOTH = ("projection.weight", "mlp.2.weight")


def biases(names, gates, other=None):
    """Sets gates of the biases that begin with these names to 1, and those that begin with another to 0."""

    def open_gates(lstm):
        with torch.no_grad():
            for name, bias in lstm.named_parameters():
                for gate in gates:
                    part = bias[gate * lstm.hidden_size : (gate + 1) * lstm.hidden_size]
                    if name.startswith(names):
                        part.fill_(1)
                    elif other and name.startswith(other):
                        part.fill_(0)

    return open_gates


def counts_layers(lstm):
    for layer in range(lstm.num_layers):
        for kind, value in (("ih", 1), ("hh", 0)):
            getattr(lstm, f"bias_{kind}_l{layer}").data.chunk(4)[1].fill_(value)


WRONG = {
    "check_std": {
        "no_relu": lambda fan_in, fan_out: fan_in**-0.5,
        "fan_out": lambda fan_in, fan_out: (2 / fan_out) ** 0.5,
        "xavier": lambda fan_in, fan_out: (2 / (fan_in + fan_out)) ** 0.5,
        "variance": lambda fan_in, fan_out: 2 / fan_in,
        "bound": lambda fan_in, fan_out: (6 / fan_in) ** 0.5,
        "default": lambda fan_in, fan_out: (3 * fan_in) ** -0.5,
    },
    "check_residual": {
        "never_applied": scaled("projection", lambda blocks: (2 * blocks) ** -0.5),
        "one_of_two": scaled("projection.weight", lambda blocks: (2 * blocks) ** -0.5),
        "some_blocks": scaled(tuple(f"blocks.{at}.{end}" for at in (0, 1) for end in BOTH), lambda n: (2 * n) ** -0.5),
        "everything": scaled("weight", lambda blocks: (2 * blocks) ** -0.5),
        "no_two": scaled(BOTH, lambda blocks: blocks**-0.5),
        "no_root": scaled(BOTH, lambda blocks: 1 / (2 * blocks)),
    },
    "check_forget": {
        "two_biases": biases("bias", (1,)),
        "other_bias": biases("bias_ih", (1,)),
        "wrong_gate": biases("bias_ih", (2,), "bias_hh"),
        "first_layer": biases("bias_ih_l0", (1,), "bias_hh_l0"),
        "one_way": counts_layers,
        "gradients": lambda lstm: lstm.bias_ih_l0[8:16].fill_(1),
        "all_gates": lambda lstm: (biases((), range(4), "bias")(lstm), biases("bias_ih", (1,))(lstm)),
    },
}
