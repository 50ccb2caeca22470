"""Clocks and meters of the device under test: how long calls take, and what they allocate.

One class for each kind of device. They hold everything that differs between a CPU and a GPU, so that the rounds
(``rounds.py``) are the same code everywhere and can be driven by a scripted device in a test.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from course_utils.measure.machine import device_kind

# torch 2.13 prints a "USDT:" line whenever a profiler starts; it is read when the profiler is first used.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")


@dataclass(frozen=True)
class Sample:
    """One timing, in seconds for one call; the last two are None on a CPU."""

    elapsed_s: float  # until the device is idle
    enqueue_s: float | None = None  # until Python has the call back
    device_s: float | None = None  # between device events


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Drop what C++ code writes to the standard error stream; torch warns there of memory that the profiler missed."""
    saved = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def profiled_peak(fn: Callable[[], Any]) -> int:
    """The most bytes that torch's CPU allocator held during one call, above what it held before.

    Source:
        torch/csrc/profiler: ``[memory]`` events hold the size of every allocation and, negative, of every release;
        ProfiledCPUMemoryReporter::Delete in c10/core/CPUAllocator.cpp leaves out blocks of unknown size (2.13.0).
    """
    # The profiler below torch.profiler: that one imports torch.compile's machinery when it starts, 1.4 s.
    from torch.autograd.profiler import profile

    with _quiet_stderr(), profile(use_cpu=True, profile_memory=True) as profiler:
        output = fn()
        del output
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


class Device:
    """A CPU, and what is common to all devices."""

    kind = "cpu"
    # How ``elapsed_s`` is read, in words.
    clock = "host clock"
    # A shorter timing gets more calls. It is a thousand times what reading the clock costs, and short enough that most
    # timings escape the scheduler's tick: noise does not average out within a timing, so more of them tell more.
    min_sample_s = 1e-4

    def synchronize(self) -> None:
        """Wait until the device is idle. A CPU always is, once the call is back."""

    def allocations(self) -> int:
        """How many blocks of memory the device's allocator has given out so far; 0 where nobody counts them."""
        return 0

    def sample(self, fn: Callable[[], Any], calls: int) -> Sample:
        """Time ``calls`` calls, one after another."""
        # A garbage collection in one case would be blamed on it though another case made the garbage.
        enabled = gc.isenabled()
        gc.disable()
        try:
            return self._warm(fn, calls)
        finally:
            if enabled:
                gc.enable()

    def _warm(self, fn: Callable[[], Any], calls: int) -> Sample:
        self.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            fn()
        self.synchronize()
        return Sample((time.perf_counter() - start) / calls)

    def prequeued_s(self, fn: Callable[[], Any], calls: int, enqueue_s: float) -> float | None:
        """Device seconds for one call when all of it was queued before the device began; None on a CPU."""
        del fn, calls, enqueue_s

    def peak_memory(self, fn: Callable[[], Any]) -> tuple[int | None, int | None]:
        """The most bytes that one call holds at once, on top of what was there: allocated, and reserved on a GPU.

        On a CPU scratch memory inside of operations is counted, memory that numpy or Python takes for themselves not.
        """
        # Two calls, of which the second counts: the profiler knows only the size of memory that was taken while it
        # watched, and so would miss that a training step first drops the gradients of the step before.
        profiled_peak(fn)
        return profiled_peak(fn), None


class CudaDevice(Device):
    """A CUDA GPU (or a ROCm one, which torch shows as ``cuda``); ``api`` is ``torch.cuda`` or a test's stand-in."""

    kind = "cuda"
    clock = "host clock, until the GPU is idle"
    # Waiting for the GPU costs some 10 µs of host time, once in each timing: 0.5% of this.
    min_sample_s = 2e-3

    def __init__(self, api: Any = torch.cuda) -> None:
        self._api = api
        self._sleep_cycles_per_s: float | None = None

    def synchronize(self) -> None:
        """Wait until all streams of the GPU are idle."""
        self._api.synchronize()

    def allocations(self) -> int:
        """The same, by the caching allocator; 0 before CUDA has started."""
        return self._api.memory_stats().get("allocation.all.allocated", 0)

    def _events(self, count: int) -> list[Any]:
        return [self._api.Event(enable_timing=True) for _ in range(count)]

    def _warm(self, fn: Callable[[], Any], calls: int) -> Sample:
        first, last = self._events(2)
        self.synchronize()
        start = time.perf_counter()
        first.record()
        for _ in range(calls):
            fn()
        enqueued = time.perf_counter()
        last.record()
        # The whole device, not only the last event: the code may use other streams.
        self.synchronize()
        end = time.perf_counter()
        return Sample((end - start) / calls, (enqueued - start) / calls, first.elapsed_time(last) / 1e3 / calls)

    def prequeued_s(self, fn: Callable[[], Any], calls: int, enqueue_s: float) -> float | None:
        """The same on a GPU, where a kernel that only spins keeps it busy while Python queues the calls behind it.

        Half as many calls are tried when the queue was full or the spinning ended too soon. None when nothing could be
        queued ahead: the code waits for the GPU, works on other streams, or puts no work on the current one.
        """
        if self._switches_streams(fn):
            # Work on another stream does not wait for the spinning on this one.
            return None
        while calls >= 1:
            begin, spun, first, last = self._events(4)
            self.synchronize()
            # First, so that a rate that is still unknown is not measured while Python queues.
            cycles = self._spin_cycles(2 * calls * enqueue_s + 2e-3)
            start = time.perf_counter()
            begin.record()
            self._api._sleep(cycles)
            spun.record()
            first.record()
            for _ in range(calls):
                fn()
            enqueued_s = time.perf_counter() - start
            last.record()
            self.synchronize()
            # The spinning is timed and not only asked for: it counts clock cycles, and the clock may have changed.
            if enqueued_s < 0.9 * begin.elapsed_time(spun) / 1e3:
                queued_s = first.elapsed_time(last) / 1e3
                # What two events cost with nothing between them; the 2 µs are the events' resolution with a margin.
                nothing_s = 2 * spun.elapsed_time(first) / 1e3 + 2e-6
                return queued_s / calls if queued_s > nothing_s else None
            calls //= 2
        return None

    def _switches_streams(self, fn: Callable[[], Any]) -> bool:
        """Whether a call leaves the current stream.

        Source:
            torch/cuda/__init__.py: ``stream`` and ``set_stream`` both end in ``_set_stream_by_id`` (torch 2.13.0).
        """
        switch = self._api._set_stream_by_id
        with mock.patch.object(self._api, "_set_stream_by_id", wraps=switch) as watched:
            fn()
        return watched.called

    def _spin_cycles(self, seconds: float) -> int:
        if self._sleep_cycles_per_s is None:
            cycles = 2_000_000
            self._api._sleep(cycles)  # loads the kernel
            first, last = self._events(2)
            first.record()
            self._api._sleep(cycles)
            last.record()
            self.synchronize()
            self._sleep_cycles_per_s = cycles / (first.elapsed_time(last) / 1e3)
        return int(seconds * self._sleep_cycles_per_s)

    def peak_memory(self, fn: Callable[[], Any]) -> tuple[int | None, int | None]:
        """The same by the caching allocator's statistics, in one call."""
        gc.collect()
        self.synchronize()
        # Blocks that earlier calls left in the cache would hide what this call needs.
        self._api.empty_cache()
        allocated, reserved = self._api.memory_allocated(), self._api.memory_reserved()
        self._api.reset_peak_memory_stats()
        output = fn()
        self.synchronize()
        del output
        return self._api.max_memory_allocated() - allocated, self._api.max_memory_reserved() - reserved


class MpsDevice(Device):
    """An Apple GPU: the host clock until it is idle."""

    kind = "mps"
    clock = "host clock, until the GPU is idle"
    min_sample_s = 2e-3

    def synchronize(self) -> None:
        """Wait until the GPU is idle."""
        torch.mps.synchronize()

    def peak_memory(self, fn: Callable[[], Any]) -> tuple[int | None, int | None]:
        """Nothing: Metal's allocator keeps no peak."""
        del fn
        return None, None


def device_under_test(on: str | None = None) -> Device:
    """The device that is measured on: the lessons' (see :func:`course_utils.measure.machine.device_kind`), or the CPU.

    Example:
        >>> device_under_test(on="cpu").clock
        'host clock'
    """
    if on not in (None, "cpu"):
        raise ValueError(
            f'on must be "cpu" or None: the CPU\'s clock though there may be a GPU, or the clock of what the lessons '
            f"measure on; got {on!r}"
        )
    return {"cuda": CudaDevice, "mps": MpsDevice, "cpu": Device}[on or device_kind()]()
