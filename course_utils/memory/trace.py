"""Trace the memory of one call: every allocation and release, what it was for, and which line asked for it.

On a CPU the tensors' storages are followed (``live_storages.py``). On CUDA the sizes and times are those of PyTorch's
own history of its allocator (``cuda_history.py``), and the storages tell what each block is for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from course_utils.measure.fresh import Fresh, Switches
from course_utils.measure.machine import environment
from course_utils.memory.cuda_history import Allocation, read_history
from course_utils.memory.live_storages import (
    NOWHERE,
    CodePlace,
    LiveStorages,
    TracedBlock,
    TracedPhase,
    written_by_the_user,
)
from course_utils.results.memory_trace import MemoryBlock, MemoryPhase, MemoryTrace, totals_of
from course_utils.results.store import keep

# Entries of the CUDA history: some hundred bytes each. More would be a call that nobody can look at.
_MOST_ENTRIES = 2_000_000
_METADATA = "course-op "


class MemoryTraceError(RuntimeError):
    """The traced call failed; ``trace`` is what happened until then."""

    def __init__(self, message: str, trace: MemoryTrace) -> None:
        super().__init__(message)
        self.trace = trace


def trace_memory(
    fn: Callable[[], Any] | Fresh,
    label: str = "code",
    *,
    name: str | None = None,
    model: torch.nn.Module | None = None,
    parameters: Mapping[str, Any] | None = None,
    device: str | torch.device | None = None,
) -> MemoryTrace:
    """Call code once, and trace every allocation and release: how much, when, what for, in which module and line.

    What counts: memory of the device's tensors. Modules, parameters, gradients and optimizer states are recognised by
    themselves as soon as the code uses them; what exists and is not used by the code is not counted on a CPU. On CUDA
    everything that PyTorch's allocator has given out counts, and its own statistics of the peak stand beside the trace.

    Kinds: ``weights`` (parameters and buffers), ``gradients`` (what is or becomes ``.grad``), ``optimizer state``,
    ``activations`` (made while autograd records, and still there when the backward pass or the end of the call comes),
    ``other`` (there before: input data, for example) and ``temporaries`` (all else). Memory that a backward pass
    allocates is named by the line and module of the forward operation that it belongs to.

    Not seen are scratch memory inside of kernels on a CPU, sparse tensors, and memory of NumPy or a loaded file. Code
    under ``torch.compile`` runs as it is written. Gradients of a tensor that is used several times are added up out of
    place, which may raise the peak by one of them.

    Args:
        fn: a function without arguments, or :func:`course_utils.fresh`.
        label: what to call it.
        name: ``lesson/experiment``, to keep it in a record.
        model: whose weights and gradients count though the code may not use them.
        parameters: problem sizes and settings, for the record.
        device: ``cpu`` or ``cuda``; by default CUDA where there is one.

    Raises:
        MemoryTraceError: if the code raises; its ``trace`` attribute holds what happened until then.
        RuntimeError: if there is no such device, or the history of CUDA memory is being recorded.

    Source:
        https://docs.pytorch.org/docs/2.13/torch_cuda_memory.html; torch/cuda/memory.py (2.13.0).

    Example:
        >>> x = torch.ones(1024)
        >>> trace_memory(lambda: (x + 1).sum(), "sum", device="cpu").extra_peak_bytes
        4100
    """
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type != "cpu" and not torch.cuda.is_available():
        raise RuntimeError("there is no CUDA device here: pass device='cpu', or leave device out")
    switches = Switches.now()
    try:
        call = fn.build() if isinstance(fn, Fresh) else fn
        if chosen.type == "cpu":
            found, error = on_cpu(call, model)
        else:
            index = torch.cuda.current_device() if chosen.index is None else chosen.index
            found, error = on_cuda(call, model, torch.device("cuda", index))
    finally:
        switches.restore()
    trace = MemoryTrace.from_blocks(
        **found,
        label=label,
        name=name,
        parameters=dict(parameters or {}),
        environment=environment(),
        worked_by="cpu" if chosen.type == "cpu" else "gpu",
    )
    if error is not None:
        advice = "Its memory until then is in the `trace` attribute of this error."
        message = f"{label!r} failed: {type(error).__name__}: {error}. {advice}"
        raise MemoryTraceError(message, trace) from error
    return keep(trace)


def on_cpu(fn: Callable[[], Any], model: torch.nn.Module | None) -> tuple[dict[str, Any], Exception | None]:
    """Fields of a trace of a call on the CPU, and the call's error."""
    storages = LiveStorages(torch.device("cpu"), model)
    error = _followed(fn, storages)
    start, events = storages.times_ns[0], len(storages.times_ns)
    blocks = [
        _shown(block, block.size_bytes, block.born, block.died or events, storages)
        for block in storages.blocks
        if block.counted and block.size_bytes
    ]
    return {
        "device": "cpu",
        "times_us": [(moment - start) // 1000 for moment in storages.times_ns],
        "blocks": blocks,
        "phases": [_phase(phase, *phase.events, events) for phase in storages.phases],
        "notes": tuple(storages.notes),
    }, error


def on_cuda(
    fn: Callable[[], Any], model: torch.nn.Module | None, device: torch.device, api: Any = torch.cuda
) -> tuple[dict[str, Any], Exception | None]:
    """The same on a GPU: the caching allocator's history, and storages to say what its blocks are for.

    ``api`` is ``torch.cuda`` or a test's stand-in.
    """
    memory = api.memory
    if api.is_initialized() and torch._C._cuda_isHistoryEnabled():
        raise RuntimeError(
            "the history of CUDA memory is being recorded already, and a trace would end that recording: call "
            "torch.cuda.memory._record_memory_history(None) first"
        )

    def mark(op: int) -> None:
        """Tell the allocator which operation asks for what it gives out next."""
        memory._set_memory_metadata(f"{_METADATA}{op}" if op >= 0 else "")

    storages, index = LiveStorages(device, model, on_op=mark), device.index or 0
    memory._record_memory_history(
        "all", context="alloc", stacks="python", max_entries=_MOST_ENTRIES, clear_history=True
    )
    try:
        api.synchronize(device)
        before = memory._snapshot()
        statistics = memory.memory_stats(device)
        memory.reset_peak_memory_stats(device)
        error = _followed(fn, storages, lambda: api.synchronize(device))
        after = memory.memory_stats(device)
        entries = memory._snapshot()["device_traces"][index]
    finally:
        mark(-1)
        memory._record_memory_history(None)
    if len(entries) >= _MOST_ENTRIES:
        raise RuntimeError(
            f"the call made over {_MOST_ENTRIES:,} entries in the history of CUDA memory: trace fewer steps"
        )
    history = read_history(before, entries[len(before["device_traces"][index]) :], index)
    moments, notes = len(history.times_us), list(storages.notes)
    if not history.exact:
        notes.append("The allocator's entries did not fit its state: some sizes are requests, rounded up.")
    blocks = _blocks_of(history.allocations, moments, storages)
    totals = totals_of(blocks, moments)
    return {
        "device": str(device),
        "times_us": history.times_us,
        "blocks": blocks,
        "phases": _phases_of(history.allocations, moments, storages),
        "notes": tuple(notes),
        "reserved_bytes": history.reserved_bytes,
        "device_allocs": after["num_device_alloc"] - statistics["num_device_alloc"],
        "alloc_retries": after["num_alloc_retries"] - statistics["num_alloc_retries"],
        "meter": "max_memory_allocated",
        "meter_bytes": after["allocated_bytes.all.peak"] - statistics["allocated_bytes.all.current"],
        "metered_bytes": max(totals) - totals[0],
    }, error


def _followed(
    fn: Callable[[], Any], storages: LiveStorages, synchronize: Callable[[], None] = lambda: None
) -> Exception | None:
    """Call ``fn`` while storages are followed; returns its error."""
    with storages:
        try:
            output = fn()
            synchronize()
            storages.returned()
            del output
        except Exception as raised:
            return raised
    return None


def _blocks_of(allocations: Sequence[Allocation], moments: int, storages: LiveStorages) -> list[MemoryBlock]:
    """The allocator's blocks, with what the storages know of them."""
    # What no operation made may have been there before, though it was met during the call. The first one wins.
    unmade = sorted((block for block in storages.blocks if block.op == -1), key=lambda block: -block.born)
    existing = {block.address: block for block in unmade}
    by_operation = {(block.op, block.address): block for block in storages.blocks if block.born}
    blocks = []
    for allocation in allocations:
        op, born = _op_of(allocation), allocation.born
        block = by_operation.get((op, allocation.address)) if born else existing.get(allocation.address)
        if block is None:  # no storage was seen on it: scratch memory of an operation, if one was running
            block = TracedBlock(allocation.size_bytes, born, allocation.address, op, kind="" if born else "other")
            if op >= 0:
                block.module, block.place = storages.origins[op]
        died = moments if allocation.died is None else allocation.died
        blocks.append(_shown(block, allocation.size_bytes, born, died, storages, allocation.frames))
    return blocks


def _phases_of(allocations: Sequence[Allocation], moments: int, storages: LiveStorages) -> list[MemoryPhase]:
    """Each phase from its first allocation to its last."""
    births = [(_op_of(allocation), allocation.born) for allocation in allocations if allocation.born]
    phases = []
    for phase in storages.phases:
        inside = [born for op, born in births if phase.ops[0] <= op <= phase.ops[1]]
        if inside:
            phases.append(_phase(phase, min(inside), max(inside), moments))
    return phases


def _op_of(allocation: Allocation) -> int:
    """The operation during which it was made; -1 if there was none."""
    mark = allocation.metadata
    return int(mark.removeprefix(_METADATA)) if mark.startswith(_METADATA) else -1


def _phase(phase: TracedPhase, first: int, last: int, moments: int) -> MemoryPhase:
    first = min(first, moments - 1)
    return MemoryPhase(phase.name, first, max(first, min(last, moments - 1)))


def _shown(
    block: TracedBlock,
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


def _line(place: CodePlace) -> str:
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
