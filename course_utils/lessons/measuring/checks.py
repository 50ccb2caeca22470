"""The check of the lesson: a timer, tried on scripted GPUs whose true answer is known to the digit."""

from __future__ import annotations

import math
from typing import Any

from course_utils.lessons.answers import NotRight, ask, exercise, number


class _Gpu:
    """A GPU behind a queue. Its clock moves only when something costs time."""

    LAUNCH_S = 0.01
    USUAL_S = (1.0, 1.02, 0.9, 1.0, 0.95, 1.05, 1.0)  # no two calls in a row take equally long

    def __init__(
        self, work: float = 1.0, leftover_s: float = 0.0, first_s: float = 0.0, spike_s: float = 0.0, spiked: int = 7
    ) -> None:
        self.work, self.leftover_s, self.first_s, self.spike_s, self.spiked = work, leftover_s, first_s, spike_s, spiked
        self.now_s, self.calls, self.seen = 100.0, 0, math.inf
        self.busy_until_s = self.now_s + leftover_s

    def clock(self) -> float:
        if self.busy_until_s <= self.now_s:
            if self.seen < self.calls:  # a call was timed: now others queue work, before the next one
                self.busy_until_s = self.now_s + self.leftover_s
            self.seen = self.calls
        return self.now_s

    def call(self) -> None:
        seconds = self.work * self.USUAL_S[self.calls % 7]
        seconds += self.first_s if self.calls < 2 else self.spike_s if self.calls % 8 == self.spiked else 0.0
        self.calls += 1
        self.now_s += self.LAUNCH_S
        self.busy_until_s = max(self.busy_until_s, self.now_s) + seconds

    def synchronize(self) -> None:
        self.now_s = max(self.now_s, self.busy_until_s)


# What each mistake cannot bear: others on the GPU between calls, calls that compile, a neighbour now and then.
_TROUBLES = (
    ("leftovers", {"leftover_s": 50.0}),
    ("first_calls", {"first_s": 40.0}),
    *(("mean", {"spike_s": 6.0, "spiked": spiked}) for spiked in range(8)),
)


@exercise
def check_timer(answer: Any) -> str | None:
    """Examine ``usual_seconds(fn, synchronize, clock)``: seconds of a usual call on the device."""
    quiet = _said(answer)
    if math.isclose(quiet, _Gpu.LAUNCH_S, rel_tol=0.1):
        return "no_wait"
    for hint, trouble in _TROUBLES:
        if not math.isclose(_said(answer, **trouble), quiet, rel_tol=0.05):
            return hint
    # Two lengths of work: a number that was typed in is not measured.
    for work in (1.0, 3.0):
        said, usual = _said(answer, work=work), work + _Gpu.LAUNCH_S
        if not math.isclose(said, usual, rel_tol=0.03):
            raise NotRight(f"A usual call takes {usual} s on the scripted device, and your function says {said:g} s.")
    return None


def _said(answer: Any, **kind: float) -> float:
    gpu = _Gpu(**kind)
    return number(ask(answer, gpu.call, gpu.synchronize, gpu.clock))
