"""Checks of the lesson: three broken benchmarks to repair.

The checks run the learner's benchmark on a scripted clock and a scripted device. There the true answer is known
exactly, so that a check is as sure on a busy laptop as on a quiet server.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_utils.lessons.answers import NotRight, ask, effect, exercise, number


class _Clock:
    """It moves only when something costs time."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def clock(self) -> float:
        return self.now_s


class _ScriptedDevice(_Clock):
    """A device that works through a queue."""

    LAUNCH_S, LEFTOVER_S = 0.01, 5.0

    def __init__(self, work_s: float) -> None:
        super().__init__()
        self.work_s = work_s
        self.busy_until_s = self.now_s + self.LEFTOVER_S
        self.waits = 0

    def launch(self) -> None:
        self.now_s += self.LAUNCH_S
        self.busy_until_s = max(self.busy_until_s, self.now_s) + self.work_s

    def synchronize(self) -> None:
        self.waits += 1
        self.now_s = max(self.now_s, self.busy_until_s)


@exercise
def check_missing_wait(answer: Any) -> str | None:
    """Examine ``time_one_call(fn, synchronize, clock)``: seconds that the device needs for one call."""
    # Two lengths of work: a number that was typed in is not measured.
    return _one_call(answer, _ScriptedDevice(work_s=1.0)) or _one_call(answer, _ScriptedDevice(work_s=3.0))


def _one_call(answer: Any, device: _ScriptedDevice) -> str | None:
    seconds = number(ask(answer, device.launch, device.synchronize, device.clock))
    truth = device.LAUNCH_S + device.work_s
    if math.isclose(seconds, truth, rel_tol=0.02):
        return None
    if math.isclose(seconds, device.LAUNCH_S, rel_tol=0.02):
        return "waits_too_early" if device.waits else "no_wait"
    if seconds > truth + device.LEFTOVER_S / 2:
        return "leftovers"
    raise NotRight(f"One call takes {truth} s on the scripted device, and your function says {seconds:g} s.")


class _ScriptedCalls(_Clock):
    """A function whose first two calls are slow, whose others vary, and which a neighbour disturbs now and then."""

    SPIKE_S = 6.0
    USUAL_S = (1.0, 0.95, 1.02, 1.0, 0.9, 1.05, 1.0)

    def __init__(self, first_s: tuple[float, float] = (40.0, 8.0)) -> None:
        super().__init__()
        self.first_s = first_s
        self.durations_s: list[float] = []

    def call(self) -> None:
        done = len(self.durations_s)
        if done < len(self.first_s):
            duration = self.first_s[done]
        elif done % 8 == 7:
            duration = self.SPIKE_S
        else:
            # No two calls take equally long, so that the result tells which calls it was made of.
            duration = self.USUAL_S[(done - 2) % len(self.USUAL_S)] + 0.01 * (done * 0.618034 % 1 - 0.5)
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
        return "outvoted" if _needs_the_first_calls(answer, calls, seconds) else None

    def says(value: float) -> bool:
        return math.isclose(seconds, value, rel_tol=1e-6)

    # The mean of one call, and the smallest of one, would be taken for each other.
    tails = [durations[skip:] for skip in range(max(1, len(durations) - 4))]
    if any(says(min(tail)) for tail in tails):
        return "fastest"
    if says(statistics.fmean(durations)):
        return "counts_first_calls"
    if says(statistics.fmean(durations[1:])):
        return "one_warm_up"
    if any(says(statistics.fmean(tail)) for tail in tails[2:]):
        return "mean"
    raise NotRight(f"A usual call takes 1 s on the scripted clock, and your function says {seconds:g} s.")


def _needs_the_first_calls(answer: Any, calls: _ScriptedCalls, seconds: float) -> bool:
    """Whether the result changes with the first two calls' times.

    One becomes fast and the other slower: a loop that ends by the clock makes as many calls as before.
    """
    total = sum(calls.first_s)
    for first_s in ((0.01, total - 0.01), (total - 0.01, 0.01)):
        others = _ScriptedCalls(first_s)
        said = number(ask(answer, others.call, others.clock))
        if len(others.durations_s) == len(calls.durations_s) and not math.isclose(said, seconds, rel_tol=1e-9):
            return True
    return False


class _ReadsValueError(Exception):
    """Somebody prints a tensor."""


class _OneNumberChanged(TorchDispatchMode):
    """It adds to one number of one matrix product, before anybody sees the product."""

    def __init__(self, product: int, place: int, by: float) -> None:
        super().__init__()
        self.product, self.place, self.by = product, place, by
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not _is_product(func):
            return result
        self.seen += 1
        if self.seen - 1 != self.product:
            return result
        changed = result.clone(memory_format=torch.contiguous_format)
        changed.view(-1)[self.place] += self.by
        return changed


def _is_product(function: Any) -> bool:
    return "mm" in str(function)


def _reads_value(*args: Any, **kwargs: Any) -> None:
    raise _ReadsValueError


@exercise
def check_dead_result(answer: Any) -> str | None:
    """Examine ``step(x, w)``: two matrix products that survive a compiler's removal of dead code."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def tensors(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        # Python numbers and shapes depend on no tensor in a graph.
        return [value for value in tree_leaves(effect(answer, x, w)) if torch.is_tensor(value)]

    try:
        # A fake tensor has no values: whoever asks for one is reading it, and so is whoever prints it.
        with mock.patch("torch._tensor_str._str", _reads_value):
            graph = make_fx(tensors, tracing_mode="fake")(torch.randn(8, 8), torch.randn(8, 8)).graph
    except NotRight as problem:
        cause = problem.__cause__
        if isinstance(cause, _ReadsValueError):
            return "reads_value"
        if any(words in repr(cause) for words in ("DataDependent", "data-dependent")):
            return "reads_value"
        raise
    if any("_local_scalar_dense" in str(node.target) for node in graph.nodes):  # what .item() is called inside
        return "reads_value"
    written = sum(_is_product(node.target) for node in graph.nodes)
    if written < 2:
        raise NotRight(f"Your function does {written} matrix products. Keep both: the task is to keep them alive.")
    graph.eliminate_dead_code()
    alive = sum(_is_product(node.target) for node in graph.nodes)
    if alive < written:
        return "half_dead" if alive else "all_dead"
    return None if _every_number_counts(tensors, written) else "part_dead"


def _every_number_counts(tensors: Callable[..., list[torch.Tensor]], products: int) -> bool:
    """Whether what leaves changes with each number of each product, up or down."""
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    before = tensors(x, w)

    def changes(product: int, place: int, by: float) -> bool:
        with _OneNumberChanged(product, place, by):
            after = tensors(x, w)
        return any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))

    places = [(product, place) for product in range(products) for place in range(x.numel())]
    return all(changes(*each, by=1e3) or changes(*each, by=-1e3) for each in places)
