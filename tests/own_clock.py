"""A clock that other programs do not move, for tests of what is decided from times."""

from __future__ import annotations

import time
from typing import Any

import pytest

from course_utils.measure import busy, compare, devices, rounds, sweep
from own_program.diagnosis import batches, bench, diagnose, phases, step_changes

MEASURING = (batches, bench, compare, devices, diagnose, phases, rounds, step_changes, sweep)


class OwnClock:
    """Goes on while this program computes, and when a test sleeps, which takes no time. Stands for ``time``."""

    def __init__(self) -> None:
        self._slept_s = 0.0

    def perf_counter(self) -> float:
        return time.process_time() + self._slept_s

    def time(self) -> float:
        return self.perf_counter()

    def sleep(self, seconds: float) -> None:
        self._slept_s += seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.fixture
def own_clock(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> OwnClock:
    """The clock of all that measures, and ``time`` in the module of the test; the machine counts as quiet."""
    clock = OwnClock()
    for module in (*MEASURING, request.module):
        if hasattr(module, "time"):
            monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(busy.Watch, "__exit__", lambda *_: None)
    return clock
