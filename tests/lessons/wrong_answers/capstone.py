"""Wrong answers to the exercise of `capstone`: one for each hint."""

from itertools import permutations
from statistics import fmean, geometric_mean


def _gains(seconds, name):
    orders = permutations(max(seconds, key=len))
    befores = [frozenset(order[: order.index(name)]) for order in orders]
    return {(at, before): seconds[before] / seconds[before | {name}] for at, before in enumerate(befores)}


def _ends(seconds, name):
    whole = max(seconds, key=len)
    first = seconds[frozenset()] / seconds[frozenset({name})]
    return first, seconds[whole - {name}] / seconds[whole]


def once(seconds, name):
    return geometric_mean({before: gain for (_, before), gain in _gains(seconds, name).items()}.values())


WRONG = {
    "first": lambda seconds, name: _ends(seconds, name)[0],
    "last": lambda seconds, name: _ends(seconds, name)[1],
    "two_ends": lambda seconds, name: geometric_mean(_ends(seconds, name)),
    "arithmetic": lambda seconds, name: fmean(_gains(seconds, name).values()),
    "each_choice_once": once,
    "upside_down": lambda seconds, name: 1 / geometric_mean(_gains(seconds, name).values()),
}
