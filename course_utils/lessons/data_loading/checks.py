"""The check of the lesson's exercise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from course_utils.lessons.answers import ask, exercise, number, recognise

# Load, step, price and cores: three workers, too few cores, one, none; none, two.
_LOADERS = ((30, 10, 1, 16), (90, 10, 2, 4), (6, 10, 1, 8), (0.2, 1, 1.5, 8))
_LOADERS += ((4, 30, 12, 8), (15, 10, 1, 8))


def _enough(load: float, step: float, cores: float) -> float:
    return min(math.ceil(load / step), cores)


WAYS: Mapping[str | None, Callable[..., float]] = {
    None: lambda load, step, price, cores: _enough(load, step, cores) if load > price else 0,
    "always_workers": lambda load, step, price, cores: _enough(load, step, cores),
    "rounds_down": lambda load, step, price, cores: min(max(1, load // step), cores) if load > price else 0,
    "cores_forgotten": lambda load, step, price, cores: math.ceil(load / step) if load > price else 0,
    "none_for_short_loading": lambda load, step, price, cores: (
        _enough(load, step, cores) if load > max(step, price) else 0
    ),
}


@exercise
def check_workers(answer: Any) -> str | None:
    given = [number(ask(answer, *case)) for case in _LOADERS]
    says = (
        "Load {} ms, step {} ms, price {} ms, {} cores: you start {:g} workers; {:g} is right. "
        "How long is a step with them, and how long without?"
    )
    return recognise(given, WAYS, _LOADERS, says.format)
