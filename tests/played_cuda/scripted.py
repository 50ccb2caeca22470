"""A GPU made of arithmetic: the clocks, the queue and the allocator of a stand-in for a real one.

It has a host clock that moves only when something costs time, a stream that works through a queue of kernels, events, a
launch queue of limited depth, and a caching allocator with torch's rounding. Nothing in it is random: a test states
what a kernel costs and reads back exactly what the device code made of it. ``torch_on_it`` puts it under torch.
"""

from __future__ import annotations

import heapq
import types
from dataclasses import dataclass
from typing import Any

import pytest
import torch

MIB = 2**20


class ScriptedEvent:
    """``torch.cuda.Event``: stamped when its stream gets to it, not when Python records it."""

    def __init__(self, gpu: ScriptedCuda, enable_timing: bool) -> None:
        self._gpu = gpu
        self._timing = enable_timing
        self.time_s: float | None = None

    def record(self, stream: Any = None) -> None:
        del stream  # there is one
        self.time_s = self._gpu.enqueue(self._gpu.event_s, launch_s=self._gpu.record_s)

    def elapsed_time(self, end: ScriptedEvent) -> float:
        """Milliseconds. Like the real one it refuses events that are not recorded, not timed, or not reached yet."""
        for event in (self, end):
            if not event._timing or event.time_s is None:
                raise ValueError("Both events must be created with argument 'enable_timing=True' and be recorded")
            if event.time_s > self._gpu.host_s:
                raise RuntimeError("CUDA error: device not ready")
        ticks = round((end.time_s - self.time_s) / self._gpu.resolution_s)
        return ticks * self._gpu.resolution_s * 1e3


class Block:
    """Memory on the GPU; given back when nothing refers to it any more, like a tensor's."""

    def __init__(self, gpu: ScriptedCuda, size_bytes: int, segment: _Segment, address: int) -> None:
        self._gpu, self.size_bytes, self._segment, self.address = gpu, size_bytes, segment, address

    def __del__(self) -> None:
        self._segment.used -= self.size_bytes
        self._gpu.allocated -= self.size_bytes


@dataclass
class _Segment:
    size: int
    small: bool
    used: int = 0


class ScriptedCuda:
    """What ``CudaDevice`` uses of ``torch.cuda``, and the controls of a test."""

    launch_s = 5e-6  # Python's cost of a launch
    latency_s = 3e-6  # from the launch until the GPU has it
    record_s = 1e-6  # Python's cost of recording an event
    event_s = 1e-6  # what an event costs the GPU
    resolution_s = 5e-7  # of events
    synchronize_s = 1e-5
    clock_s = 5e-8  # cost of reading the host clock
    memory_bytes = 8192 * MIB
    queue_limit = 1024  # launches that may wait; one more blocks Python until the GPU has finished one

    def __init__(self) -> None:
        self.host_s = 100.0
        self.sleep_hz = 1e9
        self.calls: list[str] = []
        self.allocated = self.peak_allocated = self.peak_reserved = self.allocations = 0
        self.busy_until_s = 0.0
        self._queue: list[float] = []
        self._segments: list[_Segment] = []
        self._next_address = 2**40

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the measuring code read this GPU's host clock instead of the real one."""
        clock = types.SimpleNamespace(perf_counter=self.perf_counter, time=self.perf_counter)
        monkeypatch.setattr("course_utils.measure.devices.time", clock)
        monkeypatch.setattr("course_utils.measure.rounds.time", clock)

    # What a case does.

    def kernel(self, seconds: float) -> None:
        """Launch work: Python goes on, the stream is busy for ``seconds`` once it gets to it."""
        self.enqueue(seconds)

    def host(self, seconds: float) -> None:
        """Work that Python does itself."""
        self.host_s += seconds

    def allocate(self, size_bytes: int) -> Block:
        """Take memory as the caching allocator does: multiples of 512 B, cut from segments that it keeps.

        Source:
            c10/core/CachingDeviceAllocator.h, get_allocation_size in c10/cuda/CUDACachingAllocator.cpp (torch 2.13.0).
        """
        needed = -(-max(size_bytes, 1) // 512) * 512
        small = needed <= MIB
        fitting = [s for s in self._segments if s.small == small and s.size - s.used >= needed]
        if fitting:
            segment = min(fitting, key=lambda s: s.size - s.used)
        else:
            if small:
                size = 2 * MIB
            elif needed < 10 * MIB:
                size = 20 * MIB
            else:
                size = -(-needed // (2 * MIB)) * 2 * MIB
            if self.memory_reserved() + size > self.memory_bytes:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / 2**30:.2f} GiB")
            segment = _Segment(size, small)
            self._segments.append(segment)
        segment.used += needed
        self.allocated += needed
        self.allocations += 1
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.memory_reserved())
        self._next_address += needed
        return Block(self, needed, segment, self._next_address - needed)

    # What stands in for torch.cuda.

    def Event(self, enable_timing: bool = False) -> ScriptedEvent:  # noqa: N802 - torch's name
        return ScriptedEvent(self, enable_timing)

    def _set_stream_by_id(self, stream_id: int, device_index: int, device_type: int) -> None:
        """There is one stream."""

    def synchronize(self) -> None:
        self.calls.append("synchronize")
        self.host_s = max(self.host_s, self.busy_until_s) + self.synchronize_s
        self._queue.clear()

    def _sleep(self, cycles: int) -> None:
        self.enqueue(cycles / self.sleep_hz)

    def memory_stats(self) -> dict[str, int]:
        return {"allocation.all.allocated": self.allocations}

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")
        self._segments = [segment for segment in self._segments if segment.used]

    def memory_allocated(self) -> int:
        return self.allocated

    def memory_reserved(self) -> int:
        return sum(segment.size for segment in self._segments)

    def max_memory_allocated(self) -> int:
        return self.peak_allocated

    def max_memory_reserved(self) -> int:
        return self.peak_reserved

    def reset_peak_memory_stats(self) -> None:
        self.calls.append("reset_peak_memory_stats")
        self.peak_allocated, self.peak_reserved = self.allocated, self.memory_reserved()

    # The machinery.

    def perf_counter(self) -> float:
        self.host_s += self.clock_s
        return self.host_s

    def enqueue(self, seconds: float, launch_s: float | None = None) -> float:
        """Put work behind what the stream has already; return when it will be done."""
        self.host_s += self.launch_s if launch_s is None else launch_s
        while self._queue and self._queue[0] <= self.host_s:
            heapq.heappop(self._queue)
        while len(self._queue) >= self.queue_limit:
            self.host_s = max(self.host_s, heapq.heappop(self._queue))
        self.busy_until_s = max(self.busy_until_s, self.host_s + self.latency_s) + seconds
        heapq.heappush(self._queue, self.busy_until_s)
        return self.busy_until_s
