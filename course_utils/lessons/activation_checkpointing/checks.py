"""The check of the lesson."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from course_utils.lessons.answers import ask, exercise, number, recognise

# A peak with everything kept, with one block recomputed, with all, the number of blocks, and a limit, in MiB.
_MODELS = (
    (1_000, 940, 300, 12, 700),  # the last block fits to the byte
    (5_200, 4_900, 900, 16, 4_825),  # a quarter of a block more than one
    (300, 291, 100, 32, 320),  # it fits as it is
    (700, 650, 160, 12, 170),  # all but the last one
    (3_205, 2_964, 898, 12, 700),  # the line says 11, and gradients are more than that
    (3_205, 2_964, 898, 12, 898),  # to the byte what is left with all
)
_IMPOSSIBLE = -1.0
_COUNTS: dict[str | None, Callable[..., float]] = {  # of what is missing, in blocks
    None: lambda blocks, layers: max(0, math.ceil(blocks)),
    "negative": lambda blocks, layers: math.ceil(blocks),
    "rounds_down": lambda blocks, layers: max(0, math.floor(blocks)),
    "not_whole": lambda blocks, layers: max(0.0, blocks),
    "all": lambda blocks, layers: layers if blocks > 0 else 0,
    "one_more": lambda blocks, layers: max(0, math.floor(blocks) + 1),
}


def _by(key: str | None, peak: float, with_one: float, with_all: float, layers: int, limit: float) -> float:
    blocks = (peak - limit) / (peak / layers if key == "in_proportion" else peak - with_one)
    fits = limit >= with_all or key == "no_floor"
    return _COUNTS.get(key, _COUNTS[None])(blocks, layers) if fits else _IMPOSSIBLE


WAYS = {key: partial(_by, key) for key in (*_COUNTS, "in_proportion", "no_floor")}


@exercise
def check_count(answer: Any) -> str | None:
    given = [number(ask(answer, *model), "A number of blocks") for model in _MODELS]
    says = (
        "For a peak of {:,}, {:,} with one recomputed, {:,} with all {}, and a limit of {:,} you return {:g}; right is "
        "{:g}. How much does a block spare, and down to where?"
    )
    return recognise(given, WAYS, _MODELS, says.format)
