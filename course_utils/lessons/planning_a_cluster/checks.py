"""The check of the lesson: a formula, on clusters that the learner does not see."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from course_utils.lessons.answers import ask, effect, exercise, number, recognise

_GIB = 2**30
# Parameters, bytes that a GPU needs besides its shards until the backward pass ends, bytes of its memory, and whether
# AdamW is foreach. The third fills 8 GPUs to the byte; the fourth is the lesson's 70B.
_ROOM = tuple(
    (parameters, own * _GIB, memory * _GIB, foreach)
    for parameters, own, memory in zip(
        (100e9, 85e9, 20 * _GIB, 70.55e9, 405e9), (60, 40, 40, 14, 10), (80, 80, 80, 80, 141), strict=True
    )
    for foreach in (True, False)
)
_FULL = ((7e9, 90 * _GIB, 80 * _GIB, True), (7e9, 40 * _GIB, 40 * _GIB, False))  # nothing is left for shards


def _gpus(
    kept: float = 16,
    temporary: str = "",
    shared: bool = False,
    round_: Callable = math.ceil,
    whole: bool = True,
    card: float | None = None,
) -> Callable[..., float]:
    def of(parameters: float, own: float, memory: float, foreach: bool) -> float:
        memory = card or memory
        in_step = kept + 4 * (foreach or temporary == "always") * (temporary != "never")
        backward = (kept * parameters + own) / memory if shared else kept * parameters / (memory - own)
        step = in_step * parameters / memory
        if temporary == "at once":
            step = in_step * parameters / (memory - own)
        elif temporary == "own ignored":
            backward = step
        needed = round_(max(backward, step))
        return 8 * round_(needed / 8) if whole else needed

    return of


WAYS: dict[str | None, Callable[..., float]] = {
    None: _gpus(),
    "no_optimizer": _gpus(kept=8),
    "no_gradients": _gpus(kept=12),
    "no_temporary": _gpus(temporary="never"),
    "always_temporary": _gpus(temporary="always"),
    "at_once": _gpus(temporary="at once"),
    "shares_activations": _gpus(shared=True),
    "no_activations": _gpus(temporary="own ignored"),
    "rounds_down": _gpus(round_=math.floor),
    "part_of_a_machine": _gpus(whole=False),
    "one_card": _gpus(card=80 * _GIB),
}


@exercise
def check_least_gpus(answer: Any) -> str | None:
    given = [number(ask(answer, *case), "A number of GPUs") for case in _ROOM]
    key = recognise(given, WAYS, _ROOM, _says)
    if key is None and any(effect(answer, *case) is not None for case in _FULL):
        return "never_none"
    return key


def _says(parameters: float, own: int, memory: int, foreach: bool, said: float, right: float) -> str:
    return (
        f"For {parameters / 1e9:.0f} billion parameters, {own / _GIB:.0f} GiB of a GPU's own and "
        f"{memory / _GIB:.0f} GiB of memory, foreach={foreach}, you return {said:g}; {right} is right. "
        "How large is each shard at the end of the backward pass, and how large in the optimizer's step?"
    )
