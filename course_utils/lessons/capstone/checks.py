"""The check of the lesson's exercise: the fair share of a technique, on made-up times."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from statistics import fmean, geometric_mean
from typing import Any

from course_utils.lessons.answers import NotRight, ask, exercise

_Times = Mapping[frozenset[str], float]


def _made_up(*names: str) -> dict[frozenset[str], float]:
    """Seconds of all choices: gains that overlap, so that the order matters."""
    choices = (frozenset(each) for n in range(len(names) + 1) for each in itertools.combinations(names, n))
    return {on: 1.0 / math.prod(1 + 0.3 * (names.index(n) + 1) / len(on) ** 1.5 for n in on) for on in choices}


def _answers(seconds: _Times, name: str) -> dict[str | None, float]:
    """The right number, and those that people come to instead, by their hints."""
    names = max(seconds, key=len)
    before = [frozenset(order[: order.index(name)]) for order in itertools.permutations(names)]
    gains = [(on, seconds[on] / seconds[on | {name}]) for on in before]
    each, right = dict(gains), geometric_mean(gain for _, gain in gains)
    first, last = each[frozenset()], each[names - {name}]
    return {
        None: right,
        "first": first,
        "last": last,
        "two_ends": geometric_mean([first, last]),
        "arithmetic": fmean(gain for _, gain in gains),
        "each_choice_once": geometric_mean(each.values()),
        "upside_down": 1 / right,
    }


@exercise
def check_fair_share(answer: Any) -> str | None:
    """Examine ``fair_share(seconds, name)``: the geometric mean over all orders."""
    for names in (("a", "b", "c"), ("a", "b")):
        seconds = _made_up(*names)
        for name in names:
            given, answers = ask(answer, dict(seconds), name), _answers(seconds, name)
            if not isinstance(given, int | float):
                raise NotRight(f"Return a number, such as 1.2; you return {type(given).__name__}.")
            close = [hint for hint, value in answers.items() if math.isclose(given, value, rel_tol=1e-6)]
            if not close:
                words = f"Of {len(names)} techniques, {name!r} has {answers[None]:.4f}; you return {given:.4f}."
                raise NotRight(words)
            if close[0]:
                return close[0]
    return None
