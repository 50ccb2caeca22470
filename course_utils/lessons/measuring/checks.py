"""Checks for lesson 00, measuring: four broken benchmarks to repair.

The checks run the learner's benchmark on a scripted clock and a scripted device. There the true answer is known
exactly, so that a check is as sure on a busy laptop as on a quiet server.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch

from course_utils.lessons.answers import NotRight, ask, effect, exercise, number


class _Clock:
    """It moves only when something costs time."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def clock(self) -> float:
        return self.now_s


class _ScriptedDevice(_Clock):
    """A device that works through a queue."""

    LAUNCH_S, WORK_S, LEFTOVER_S = 0.01, 1.0, 5.0

    def __init__(self) -> None:
        super().__init__()
        self.busy_until_s = self.now_s + self.LEFTOVER_S
        self.waits = 0

    def launch(self) -> None:
        self.now_s += self.LAUNCH_S
        self.busy_until_s = max(self.busy_until_s, self.now_s) + self.WORK_S

    def synchronize(self) -> None:
        self.waits += 1
        self.now_s = max(self.now_s, self.busy_until_s)


@exercise
def check_missing_wait(answer: Any) -> str | None:
    """Examine ``time_one_call(fn, synchronize, clock)``: seconds that the device needs for one call."""
    device = _ScriptedDevice()
    seconds = number(ask(answer, device.launch, device.synchronize, device.clock))
    truth = device.LAUNCH_S + device.WORK_S
    if math.isclose(seconds, truth, rel_tol=0.02):
        return None
    if math.isclose(seconds, device.LAUNCH_S, rel_tol=0.02):
        return "waits_too_early" if device.waits else "no_wait"
    if seconds > truth + device.LEFTOVER_S / 2:
        return "leftovers"
    raise NotRight(f"One call takes {truth} s on the scripted device, and your function says {seconds:g} s.")


class _ScriptedCalls(_Clock):
    """A function whose first two calls are slow, whose others vary, and which a neighbour disturbs now and then."""

    FIRST_S, SPIKE_S = (40.0, 8.0), 6.0
    USUAL_S = (1.0, 0.95, 1.02, 1.0, 0.9, 1.05, 1.0)

    def __init__(self) -> None:
        super().__init__()
        self.durations_s: list[float] = []

    def call(self) -> None:
        done = len(self.durations_s)
        if done < len(self.FIRST_S):
            duration = self.FIRST_S[done]
        elif done % 8 == 7:
            duration = self.SPIKE_S
        else:
            duration = self.USUAL_S[(done - 2) % len(self.USUAL_S)]
        self.now_s += duration
        self.durations_s.append(duration)


@exercise
def check_first_call(answer: Any) -> str | None:
    """Examine ``usual_seconds(fn, clock)``: seconds of a usual call in the steady state."""
    calls = _ScriptedCalls()
    seconds = number(ask(answer, calls.call, calls.clock))
    durations = calls.durations_s
    if len(durations) < 3:
        raise NotRight(f"You called the function {len(durations)} times. Even a steady state has to be reached first.")
    if math.isclose(seconds, 1.0, rel_tol=0.03):
        return None

    def says(value: float) -> bool:
        return math.isclose(seconds, value, rel_tol=1e-6)

    if says(statistics.fmean(durations)):
        return "counts_first_calls"
    if says(statistics.fmean(durations[1:])):
        return "one_warm_up"
    if any(says(statistics.fmean(durations[skip:])) for skip in range(2, len(durations))):
        return "mean"
    if says(min(durations)):
        return "fastest"
    raise NotRight(f"A usual call takes 1 s on the scripted clock, and your function says {seconds:g} s.")


class _ScriptedMemory(_Clock):
    """Memory whose pages cost time at the first touch, as the pages that an operating system hands out do."""

    ALLOCATE_S, FIRST_TOUCH_S, A_S, B_S = 0.5, 5.0, 1.0, 2.0

    def allocate(self) -> dict[str, bool]:
        self.now_s += self.ALLOCATE_S
        return {"touched": False}

    def writer(self, seconds: float) -> Callable[[dict[str, bool]], None]:
        def write(buffer: dict[str, bool]) -> None:
            self.now_s += seconds + (0 if buffer["touched"] else self.FIRST_TOUCH_S)
            buffer["touched"] = True

        return write


@exercise
def check_first_touch(answer: Any) -> str | None:
    """Examine ``relative_cost(allocate, write_a, write_b, clock)``: how many times as long B takes to write as A."""
    memory = _ScriptedMemory()
    writers = (memory.writer(memory.A_S), memory.writer(memory.B_S))
    ratio = number(ask(answer, memory.allocate, *writers, memory.clock))
    truth = memory.B_S / memory.A_S
    touch, allocate = memory.FIRST_TOUCH_S, memory.ALLOCATE_S
    expected = {
        "first_pays": memory.B_S / (memory.A_S + touch),
        "both_pay": (memory.B_S + touch) / (memory.A_S + touch),
        "allocates_inside": (memory.B_S + touch + allocate) / (memory.A_S + touch + allocate),
        "upside_down": 1 / truth,
    }
    if math.isclose(ratio, truth, rel_tol=0.02):
        return None
    for hint, value in expected.items():
        if math.isclose(ratio, value, rel_tol=1e-6):
            return hint
    raise NotRight(f"B takes {truth:g} times as long as A to write, and your function says {ratio:g}.")


@exercise
def check_dead_result(answer: Any) -> str | None:
    """Examine ``step(x, w)``: two matrix products that survive a compiler's removal of dead code."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def traced(x: torch.Tensor, w: torch.Tensor) -> Any:
        result = effect(answer, x, w)
        # Python numbers and shapes depend on no tensor in a graph.
        return [value for value in (result if isinstance(result, tuple | list) else [result]) if torch.is_tensor(value)]

    try:
        graph = make_fx(traced, tracing_mode="fake")(torch.randn(8, 8), torch.randn(8, 8)).graph
    except NotRight as problem:
        # A fake tensor has no values: whoever asks for one is reading it.
        if any(words in repr(problem.__cause__) for words in ("DataDependent", "data-dependent")):
            return "reads_value"
        raise
    if any("_local_scalar_dense" in str(node.target) for node in graph.nodes):  # what .item() is called inside
        return "reads_value"
    written = sum("mm" in str(node.target) for node in graph.nodes)
    if written < 2:
        raise NotRight(f"Your function does {written} matrix products. Keep both: the task is to keep them alive.")
    graph.eliminate_dead_code()
    alive = sum("mm" in str(node.target) for node in graph.nodes)
    return {0: "all_dead", 1: "half_dead"}.get(alive)
