"""Checks of the lesson."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

from course_utils.lessons.answers import UNKNOWN, NotRight, ask, exercise, listed, number, recognise

_EPOCHS = ((12, 3), (10, 4), (7, 2), (5, 1))  # samples, ranks


@exercise
def check_share(answer: Any) -> str | None:
    """Calls the answer for all ranks of several epochs, and looks at what they read together."""
    hint = None
    for size, ranks in _EPOCHS:
        epochs = []
        for epoch in range(4):
            shares = [_indices(ask(answer, size, ranks, rank, epoch), size) for rank in range(ranks)]
            together = [index for share in shares for index in share]
            if ranks > 1 and all(set(share) == set(range(size)) for share in shares):
                return "everything"
            padded = math.ceil(size / ranks) * ranks
            missing = set(range(size)) - set(together)
            if missing and len(together) >= size:
                return "own_order"
            if len(set(map(len, shares))) > 1:
                return "uneven"
            if missing:
                return "dropped"
            if len(together) > padded:
                raise NotRight(
                    f"{size} samples on {ranks} ranks: you read {len(together)} in an epoch, and {padded} are enough."
                )
            epochs.append(shares)
        if all(shares == epochs[0] for shares in epochs):
            hint = "same_order"
        elif ranks > 1 and size >= 10 and all(_sets(shares) == _sets(epochs[0]) for shares in epochs):
            hint = hint or "same_samples"
        elif size >= 7 and any(first == second for first, second in itertools.combinations(epochs, 2)):
            hint = hint or "same_order"  # by chance this happens to one right answer in a thousand
    return hint


def _sets(shares: list[list[int]]) -> list[set[int]]:
    return [set(share) for share in shares]


def _indices(given: Any, size: int) -> list[int]:
    try:
        indices = [operator.index(index) for index in listed(given)]
    except (TypeError, ValueError, RuntimeError) as error:
        raise NotRight(f"Return a list of whole numbers; in yours, {error}.") from None
    wrong = next((index for index in indices if not 0 <= index < size), None)
    if wrong is not None:
        raise NotRight(f"With {size} samples there are the indices 0 to {size - 1}; you return {wrong}.")
    return indices


# The sum of a rank's losses, how many there are, how many on all ranks, and the number of ranks.
_SHARES = ((96.0, 48, 64, 2), (8.0, 16, 64, 2), (30.0, 10, 100, 4), (21.0, 7, 7, 1))


@exercise
def check_local_loss(answer: Any) -> str | None:
    """Compares with each formula that people write, on shares where they differ."""
    given = [number(ask(answer, *share)) for share in _SHARES]
    formulas = {
        None: lambda s, own, total, ranks: s * ranks / total,
        "mean_of_means": lambda s, own, total, ranks: s / own,
        "forgets_average": lambda s, own, total, ranks: s / total,
        "sum": lambda s, own, total, ranks: s,
        "local_count": lambda s, own, total, ranks: s * ranks / own,
    }
    key = recognise(given, formulas, _SHARES)
    if key != UNKNOWN:
        return key
    share, value = _SHARES[0], given[0]
    raise NotRight(
        f"Losses that add up to {share[0]:g}, on {share[1]} of {share[2]} tokens and {share[3]} ranks: you return "
        f"{value:.4g}, and {formulas[None](*share):.4g} is right. Add up what DDP makes of all ranks' losses."
    )
