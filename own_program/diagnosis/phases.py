"""Where the time of a training step goes, and what it does on the way: seen from hooks that are there for a few calls.

A call is cut at its landmarks: the first module that runs, the backward pass, the optimizer, the loader. Whatever
passes between two of them belongs to the one before.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from course_utils.measure.devices import Device
from own_program.diagnosis.state import Found

LOADING, BEFORE, FORWARD, BACKWARD, BETWEEN, OPTIMIZER, AFTER = PHASES = (
    "waiting for data",
    "before the forward pass",
    "forward pass and loss",
    "backward pass",
    "after the backward pass",
    "optimizer",
    "after the optimizer",
)
# Methods that hand a value of the GPU to Python, and so wait until it is done.
_WAITING = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__")
_NOT_THE_LEARNERS = {"torch", "course_utils", "own_program"}


def is_compiled(found: Found) -> bool:
    """Whether a part of a step is compiled already."""
    return found.has_compiled or any(
        module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule" for module in found.modules
    )


@dataclass
class Seen:
    """What one call did."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))  # together they are the call
    counts: collections.Counter[str] = field(default_factory=collections.Counter)  # how often it did what
    # Place in the code (``train.py:31``) to seconds in which Python waited there for the GPU.
    waits: collections.Counter[str] = field(default_factory=collections.Counter)
    anomaly: bool = False


class PhaseWatch:
    """Watches calls of a step."""

    def __init__(self, found: Found, device: Device) -> None:
        self._found, self._device = found, device
        self._phase, self._since, self._seen, self._waits_between = AFTER, 0.0, Seen(), True

    def __enter__(self) -> PhaseWatch:
        with contextlib.ExitStack() as stack:
            for optimizer in self._found.optimizers.values():
                stack.enter_context(optimizer.register_step_pre_hook(lambda *_: self._to(OPTIMIZER, "optimizer steps")))
                stack.enter_context(optimizer.register_step_post_hook(lambda *_: self._to(AFTER)))
            for owner in (*self._found.optimizers.values(), *self._found.models.values()):
                stack.enter_context(wrapped(owner, "zero_grad", functools.partial(self._through, OPTIMIZER)))
            # A hook would make a compiled model compile again: there all before the backward pass is one.
            if not is_compiled(self._found):
                for module in self._found.modules:
                    stack.enter_context(module.register_forward_pre_hook(self._module_begins))
            stack.enter_context(wrapped(torch.autograd, "backward", self._backward))
            stack.enter_context(wrapped(_BaseDataLoaderIter, "__next__", functools.partial(self._through, LOADING)))
            if self._device.kind != "cpu":
                for name in _WAITING:
                    stack.enter_context(wrapped(torch.Tensor, name, self._wait))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def call(self, step: Callable[[], Any], waits_between: bool = True) -> Seen:
        """Call the step once and say what was seen.

        Between two phases it waits for the GPU, so that each phase has its own work. Where the step's own waits are
        asked for, it must not: they would find nothing to wait for.
        """
        self._seen = seen = Seen()
        self._device.synchronize()
        self._waits_between = waits_between
        self._phase, self._since = BEFORE, time.perf_counter()
        step()
        self._device.synchronize()
        self._to(AFTER)
        if not seen.counts["forward passes"]:  # compiled, or written without modules: where it begins is not seen
            seen.seconds[FORWARD] += seen.seconds[BEFORE]
            seen.seconds[BEFORE] = 0.0
        return seen

    def _to(self, phase: str, counted: str = "") -> None:
        if self._waits_between:
            self._device.synchronize()
        now = time.perf_counter()
        self._seen.seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now
        if counted:
            self._seen.counts[counted] += 1

    def _through(self, phase: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A call that is a phase of its own, in the middle of another."""
        before = self._phase
        self._to(phase)
        try:
            return call(*args, **kwargs)
        finally:
            self._to(before)

    def _module_begins(self, *_: Any) -> None:
        # Recomputed in the backward pass, a module belongs to that.
        if self._phase not in (FORWARD, BACKWARD):
            self._to(FORWARD, "forward passes")

    def _backward(self, backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        seen = self._seen
        seen.anomaly |= torch.is_anomaly_enabled()
        if self._phase == BACKWARD:
            return backward(*args, **kwargs)
        seen.counts["backward passes"] += 1
        if self._phase == BETWEEN:  # a second backward pass, and no module ran since the first: its loss was computed
            self._phase = FORWARD
        self._to(BACKWARD)
        try:
            return backward(*args, **kwargs)
        finally:
            self._to(BETWEEN)

    def _wait(self, method: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(tensor, *args, **kwargs)
        finally:
            if tensor.is_cuda:
                self._seen.waits[_place()] += time.perf_counter() - start


def wrapped(owner: Any, name: str, wrapper: Callable[..., Any]) -> AbstractContextManager[Any]:
    """Let calls of a method, or function, go through a wrapper, which gets it as the first argument."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def through(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    return mock.patch.object(owner, name, through)


def _place() -> str:
    """The line of the learner's program that is being run."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_LEARNERS:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
