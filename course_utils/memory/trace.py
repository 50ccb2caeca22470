"""Trace the memory of one call: every allocation and release, what it was for, and which line asked for it.

On a CPU the tensors' storages are followed (``live_storages.py``). On CUDA the sizes and times are those of PyTorch's
own history of its allocator (``cuda_history.py``), and the storages tell what each block is for.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from course_utils.measure.devices import profiled_peak
from course_utils.measure.fresh import Fresh, RandomState, Switches
from course_utils.measure.machine import environment
from course_utils.memory.cuda_history import Allocation, History, read_history
from course_utils.memory.live_storages import NOWHERE, Block, LiveStorages, Phase, Place, written_by_the_user
from course_utils.results.memory_trace import MemoryBlock, MemoryPhase, MemoryTrace, totals_of
from course_utils.results.store import keep
from course_utils.show.formats import format_bytes

# Seconds for all pairs of a plain and a traced call, and how many pairs there are at most and at least.
_OVERHEAD_BUDGET_S = 2.0
_MOST_PAIRS, _LEAST_PAIRS = 9, 3
# Entries of the CUDA history: some hundred bytes each. More would be a call that nobody can look at.
_MOST_ENTRIES = 2_000_000
_METADATA = "course-op "


class TraceError(RuntimeError):
    """The traced call failed; ``trace`` is what happened until then."""

    def __init__(self, message: str, trace: MemoryTrace) -> None:
        super().__init__(message)
        self.trace = trace


@dataclass
class _TracedCall:
    times_us: list[int]
    blocks: list[MemoryBlock]
    phases: list[MemoryPhase]
    seconds: float
    error: Exception | None
    notes: list[str]
    more: dict[str, Any] = field(default_factory=dict)  # fields of the result that the device adds

    @property
    def above_start(self) -> int:
        totals = totals_of(self.blocks, len(self.times_us))
        return max(totals) - totals[0]


class _CpuTracer:
    meter = "torch's profiler"
    device = torch.device("cpu")

    def __init__(self, model: torch.nn.Module | None) -> None:
        self._model = model

    def synchronize(self) -> None:
        """A CPU is idle once the call is back."""

    def run(self, fn: Callable[[], Any]) -> _TracedCall:
        storages = LiveStorages(self.device, self._model)
        seconds, error = _followed(fn, storages, self.synchronize)
        start = storages.times_ns[0]
        events = len(storages.times_ns)
        blocks = [
            _shown(block, block.size_bytes, block.born, block.died or events, storages)
            for block in storages.blocks
            if block.counted and block.size_bytes
        ]
        phases = [_phase(phase, *phase.events, events) for phase in storages.phases]
        times_us = [(moment - start) // 1000 for moment in storages.times_ns]
        return _TracedCall(times_us, blocks, phases, seconds, error, list(storages.notes))

    def metered(self, fn: Callable[[], Any]) -> tuple[int, int, list[str]]:
        """The most memory above the start in one traced call, by the profiler and by the trace; and notes on that."""
        profiled_peak(fn)  # what this call leaves behind, the profiler knows when the next call releases it
        peaks: list[int] = []
        run = self.run(lambda: peaks.append(profiled_peak(fn)))
        if run.error is not None:
            raise run.error
        traced, plain = peaks[0], profiled_peak(fn)
        notes = []
        # Code that changes from call to call has no plain peak to compare with.
        if not math.isclose(traced, plain, rel_tol=0.01) and math.isclose(plain, profiled_peak(fn), rel_tol=0.01):
            notes.append(
                f"Tracing changes the peak of this code: torch's profiler saw {format_bytes(plain)} above the start in "
                f"a plain call, and {format_bytes(traced)} in a traced one. Under a trace autograd adds up the "
                "gradients of a tensor that is used several times out of place."
            )
        return traced, run.above_start, notes


class _CudaTracer:
    """Follows the caching allocator's history, and storages to say what its blocks are for."""

    meter = "max_memory_allocated"

    def __init__(self, model: torch.nn.Module | None, device: torch.device, api: Any = torch.cuda) -> None:
        self._model, self.device, self._api = model, device, api

    def synchronize(self) -> None:
        """Wait until the GPU is idle."""
        self._api.synchronize(self.device)

    def run(self, fn: Callable[[], Any]) -> _TracedCall:
        memory = self._api.memory
        if self._api.is_initialized() and _history_is_on():
            raise RuntimeError(
                "the history of CUDA memory is being recorded already, and a trace would end that recording: call "
                "torch.cuda.memory._record_memory_history(None) first"
            )
        storages = LiveStorages(self.device, self._model, on_op=self._mark)
        memory._record_memory_history(
            "all", context="alloc", stacks="python", max_entries=_MOST_ENTRIES, clear_history=True
        )
        try:
            index = self.device.index or 0
            self.synchronize()
            before = memory._snapshot()
            statistics = memory.memory_stats(self.device)
            memory.reset_peak_memory_stats(self.device)
            seconds, error = _followed(fn, storages, self.synchronize)
            statistics_after = memory.memory_stats(self.device)
            entries = memory._snapshot()["device_traces"][index]
        finally:
            memory._set_memory_metadata("")
            memory._record_memory_history(None)
        if len(entries) >= _MOST_ENTRIES:
            raise RuntimeError(
                f"the call made over {_MOST_ENTRIES:,} entries in the history of CUDA memory: trace fewer steps"
            )
        history = read_history(before, entries[len(before["device_traces"][index]) :], index)
        run = _run_of(history, storages, seconds, error)
        run.more = {"reserved_bytes": history.reserved_bytes}
        for name, key in (("device_allocs", "num_device_alloc"), ("alloc_retries", "num_alloc_retries")):
            run.more[name] = statistics_after[key] - statistics[key]
        start, peak = "allocated_bytes.all.current", "allocated_bytes.all.peak"
        run.more |= {"meter_bytes": statistics_after[peak] - statistics[start], "metered_bytes": run.above_start}
        return run

    def _mark(self, op: int) -> None:
        """Tell the allocator which operation asks for what it gives out next."""
        self._api.memory._set_memory_metadata(f"{_METADATA}{op}" if op >= 0 else "")


def _run_of(history: History, storages: LiveStorages, seconds: float, error: Exception | None) -> _TracedCall:
    """The allocator's history, with what the storages know of its blocks."""
    moments = len(history.times_us)
    # What no operation made may have been there before, though it was met during the call. The first one wins.
    unmade = sorted((block for block in storages.blocks if block.op == -1), key=lambda block: -block.born)
    existing = {block.address: block for block in unmade}
    by_operation = {(block.op, block.address): block for block in storages.blocks if block.born}
    blocks, births = [], []
    for allocation in history.allocations:
        op, born = _op_of(allocation), allocation.born
        block = by_operation.get((op, allocation.address)) if born else existing.get(allocation.address)
        if block is None:  # no storage was seen on it: scratch memory of an operation, if one was running
            block = Block(allocation.size_bytes, born, allocation.address, op, kind="" if born else "other")
            if op >= 0:
                block.module, block.place = storages.origins[op]
        died = moments if allocation.died is None else allocation.died
        blocks.append(_shown(block, allocation.size_bytes, born, died, storages, allocation.frames))
        if born:
            births.append((op, born))
    # From the first allocation of each phase to the last one before the next.
    phases = []
    for phase in storages.phases:
        inside = [born for op, born in births if phase.ops[0] <= op <= phase.ops[1]]
        if inside:
            phases.append(_phase(phase, min(inside), max(inside), moments))
    notes = list(storages.notes)
    if not history.exact:
        notes.append("The allocator's entries did not fit its state: some sizes are requests, rounded up.")
    return _TracedCall(history.times_us, blocks, phases, seconds, error, notes)


def _op_of(allocation: Allocation) -> int:
    """The operation during which it was made; -1 if there was none."""
    mark = allocation.metadata
    return int(mark.removeprefix(_METADATA)) if mark.startswith(_METADATA) else -1


def _history_is_on() -> bool:
    return bool(torch._C._cuda_isHistoryEnabled())


def _followed(
    fn: Callable[[], Any], storages: LiveStorages, synchronize: Callable[[], None]
) -> tuple[float, Exception | None]:
    """Call ``fn`` while storages are followed: its seconds, or its error."""
    error, seconds = None, 0.0
    with storages:
        started = time.perf_counter()
        try:
            output = fn()
            synchronize()
            seconds = time.perf_counter() - started
            storages.returned()
            del output
        except Exception as raised:
            error = raised
    return seconds, error


def _phase(phase: Phase, first: int, last: int, moments: int) -> MemoryPhase:
    first = min(first, moments - 1)
    return MemoryPhase(phase.name, first, max(first, min(last, moments - 1)))


def _shown(
    block: Block,
    size: int,
    born: int,
    died: int,
    storages: LiveStorages,
    frames: Sequence[Mapping[str, Any]] = (),
) -> MemoryBlock:
    line = ""
    if born:
        line = _line(block.place) if block.place != NOWHERE else _line_of_frames(frames)
    op = ""
    if block.op >= 0 and born:
        func = storages.ops[block.op]
        op = getattr(func, "__name__", str(func)).partition(".")[0]  # "addmm" for aten.addmm.default
    return MemoryBlock(size, born, died, block.kind or "temporaries", block.module, line, op)


def _line(place: Place) -> str:
    """``file:line function``, without any path of this machine."""
    code, number, backward = place
    if code is None:
        return ""
    function = code.co_qualname.rpartition("<locals>.")[2]
    return f"{_file(code.co_filename)}:{number} {function}{', backward' if backward else ''}"


def _line_of_frames(frames: Sequence[Mapping[str, Any]]) -> str:
    for frame in frames:
        if written_by_the_user(frame["filename"]):
            return f"{_file(frame['filename'])}:{frame['line']} {frame['name']}"
    return ""


def _file(filename: str) -> str:
    """A file's name for people: the number of a notebook's cell, or the path from where Python was started or looks."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    cells = getattr(getattr(shell, "compile", None), "_filename_map", {})
    if filename in cells:
        return f"cell [{cells[filename]}]"
    if "ipykernel_" in filename or filename.startswith("<"):
        return "cell" if "ipy" in filename else filename
    bases = [os.getcwd(), *(path for path in sys.path if path)]
    for base in sorted({os.path.abspath(base) for base in bases}, key=len, reverse=True):
        if filename.startswith(base + os.sep):
            return Path(filename).relative_to(base).as_posix()
    return Path(filename).name


_running = threading.Lock()


def trace_memory(
    fn: Callable[[], Any] | Fresh,
    label: str = "code",
    *,
    name: str | None = None,
    model: torch.nn.Module | None = None,
    parameters: Mapping[str, Any] | None = None,
    device: str | torch.device | None = None,
    verify: bool = True,
    overhead: bool = True,
) -> MemoryTrace:
    """Trace every allocation and release of a call: how much, when, what for, in which module, by which line.

    The first call is the one that is shown. Further calls hold the peak against an independent meter and find out what
    tracing costs; with :func:`course_utils.fresh` those get a state of their own.

    What counts: memory of the device's tensors. Modules, parameters, gradients and optimizer states are recognised by
    themselves as soon as the code uses them; what exists and is not used by the code is not counted on a CPU. On CUDA
    everything that PyTorch's allocator has given out counts.

    Kinds: ``weights`` (parameters and buffers), ``gradients`` (what is or becomes ``.grad``), ``optimizer state``,
    ``activations`` (made while autograd records, and still there when the backward pass or the end of the call comes),
    ``other`` (there before: input data, for example) and ``temporaries`` (all else). Memory that a backward pass
    allocates is named by the line and module of the forward operation that it belongs to.

    Not seen are scratch memory inside of kernels on a CPU (the profiler's check says how much that is at the peak),
    sparse tensors, and memory of NumPy or a loaded file. Code under ``torch.compile`` runs as it is written.

    Tracing costs some ten or twenty microseconds for each operation; the result's ``overhead`` says what it was.

    Args:
        fn: a function without arguments, or :func:`course_utils.fresh`.
        label: what to call it.
        name: ``lesson/experiment``, to keep it in a record.
        model: whose weights and gradients count though the code may not use them.
        parameters: problem sizes and settings, for the record.
        device: ``cpu`` or ``cuda``; by default CUDA where there is one.
        verify: whether to hold the peak against torch's profiler on a CPU. On CUDA the allocator's own statistics are
            read in the traced call itself, always.
        overhead: whether to measure what tracing costs.

    Raises:
        ValueError: if an argument makes no sense.
        TraceError: if the code raises; its ``trace`` attribute holds what happened until then.
        RuntimeError: if there is no such device, the history of CUDA memory is being recorded, or a trace is running.

    Source:
        https://docs.pytorch.org/docs/2.13/torch_cuda_memory.html; torch/cuda/memory.py (2.13.0).

    Example:
        >>> x = torch.ones(1024)
        >>> trace = trace_memory(lambda: (x + 1).sum(), "sum", device="cpu", overhead=False)
        >>> trace.extra_peak_bytes
        4100
    """
    if not (callable(fn) or isinstance(fn, Fresh)):
        raise ValueError(f"trace_memory() takes a function without arguments, got {type(fn).__name__}")
    if not (model is None or isinstance(model, torch.nn.Module)):
        raise ValueError(f"model= is one torch.nn.Module, got {type(model).__name__}")
    tracer = _tracer(device, model)
    fields = {"label": label, "name": name, "parameters": dict(parameters or {}), "environment": environment()}
    fields["worked_by"] = "cpu" if tracer.device.type == "cpu" else "gpu"
    if not _running.acquire(blocking=False):
        raise RuntimeError("a trace of memory is running, and only one can at a time: call trace_memory() after it")
    switches = Switches.now()
    try:
        return _trace(tracer, fn, verify and tracer.device.type == "cpu", overhead, fields)
    finally:
        _running.release()
        switches.restore()


def _trace(
    tracer: _CpuTracer | _CudaTracer, fn: Callable[[], Any] | Fresh, verify: bool, overhead: bool, fields: dict
) -> MemoryTrace:
    before = RandomState.now()

    def build() -> Callable[[], Any]:
        if not isinstance(fn, Fresh):
            return fn
        before.restore()
        return fn.build()

    run = tracer.run(build())
    notes, more = run.notes, dict(run.more)
    after = RandomState.now()
    if run.error is None and verify:
        try:
            more["meter_bytes"], more["metered_bytes"], changes = tracer.metered(build())
            notes += changes
        except Exception as error:
            notes.append(f"The peak was not verified: {type(error).__name__}: {error}")
    if run.error is None and overhead:
        try:
            more["plain_s"], more["traced_s"] = _overhead(tracer, build())
        except Exception as error:
            notes.append(f"The trace's overhead was not measured: {type(error).__name__}: {error}")
    if "meter_bytes" in more:
        more["meter"] = tracer.meter
    after.restore()
    times = {"times_us": run.times_us, "blocks": run.blocks, "phases": run.phases}
    trace = MemoryTrace.from_blocks(**times, device=str(tracer.device), notes=tuple(notes), **more, **fields)
    if run.error is not None:
        advice = "Its memory until then is in the `trace` attribute of this error."
        raise TraceError(f"{trace.label!r} failed: {type(run.error).__name__}: {run.error}. {advice}", trace) from (
            run.error
        )
    return keep(trace)


def _overhead(tracer: _CpuTracer | _CudaTracer, fn: Callable[[], Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of plain and of traced calls, in pairs, now one first and now the other."""

    def plain() -> float:
        tracer.synchronize()
        started = time.perf_counter()
        fn()
        tracer.synchronize()
        return time.perf_counter() - started

    def traced() -> float:
        run = tracer.run(fn)
        if run.error is not None:
            raise run.error
        return run.seconds

    started = time.perf_counter()
    call_s = plain() + traced()  # caches of both are warm now
    pair_s = time.perf_counter() - started  # with what comes before and after a traced call
    least = _LEAST_PAIRS if call_s < _OVERHEAD_BUDGET_S else 1  # of long calls one pair says enough
    pairs = max(least, min(_MOST_PAIRS, int(_OVERHEAD_BUDGET_S / max(pair_s, 1e-9))))
    seconds: dict[Callable[[], float], list[float]] = {plain: [], traced: []}
    for i in range(pairs):
        for call in (plain, traced) if i % 2 else (traced, plain):
            seconds[call].append(call())
    return tuple(seconds[plain]), tuple(seconds[traced])


def _tracer(device: str | torch.device | None, model: torch.nn.Module | None) -> _CpuTracer | _CudaTracer:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if str(device).partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"device is 'cpu' or 'cuda', got {str(device)!r}")
    chosen = torch.device(device)
    if chosen.type == "cpu":
        return _CpuTracer(model)
    if not torch.cuda.is_available():
        raise RuntimeError("there is no CUDA device here: pass device='cpu', or leave device out")
    index = torch.cuda.current_device() if chosen.index is None else chosen.index
    return _CudaTracer(model, torch.device("cuda", index))
