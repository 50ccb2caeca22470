"""The check of the lesson's exercise, on histories that are made by hand."""

from __future__ import annotations

from typing import Any

from course_utils.lessons.answers import NotRight, ask, exercise

MIB = 2**20
_LEAKS = {"train.py:29 evaluate": 2 * MIB, "metrics.py:44 update": MIB // 4}  # bytes a step


def _history(leak: str, steps: int) -> list[dict[str, Any]]:
    """Steps of training: weights, Adam's state, activations, spikes, an address used twice; and a leak."""
    trace = [{"action": "alloc", "addr": 1, "size": 30 * MIB, "line": "train.py:5 build"}]
    for at in range(1000, 1000 * steps + 1, 1000):
        freed = [(at + n, 8 * MIB, "model.py:17 forward") for n in range(3)] + [(at + 5, 90 * MIB, "train.py:18 step")]
        freed += [(99, at * 128, "log.py:40 log")]
        asked = [*freed, (at + 9, _LEAKS[leak], leak)]
        asked += [(10 + n, 30 * MIB, "train.py:21 step") for n in range(2) if at == 1000]
        for action, blocks in (("alloc", asked), ("free_requested", freed), ("free_completed", freed)):
            trace += [{"action": action, "addr": addr, "size": size, "line": line} for addr, size, line in blocks]
    return trace


@exercise
def check_leak(answer: Any) -> str | None:
    given = [ask(answer, _history(leak, 2), _history(leak, 5)) for leak in _LEAKS]
    if given == [*_LEAKS]:
        return None
    ways = {"spike": "train.py:18 step", "largest_left": "train.py:21 step", "asked_most": "model.py:17 forward"}
    for key, line in ways.items():
        if given == 2 * [line]:
            return key
    raise NotRight(f"For one program you say {given[0]!r}. Which line holds more at the end of the second history?")
