"""The events of a trace: what ran when, of what kind, and what ties them.

HolisticTraceAnalysis and Perfetto's processor need pandas or a native program, so neither runs inside a page.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from own_program.traces.trace_file import HOW, TraceFileError, load

# What an event is to us, by the category that a version of torch gave it.
KERNEL, COPY, SET, OP, MARK, GPU_MARK, PYTHON, CALL, OVERHEAD = range(9)
DEVICE = (KERNEL, COPY, SET)
_ON_DEVICE = (*DEVICE, GPU_MARK)
_KINDS = {
    "cpu_op": OP, "operator": OP, "user_annotation": MARK, "gpu_user_annotation": GPU_MARK,
    "python_function": PYTHON, "runtime": CALL, "overhead": OVERHEAD,
}  # fmt: skip
_ENDINGS = (("kernel", KERNEL), ("memcpy", COPY), ("memset", SET), ("_runtime", CALL), ("_driver", CALL))
_MARKS = re.compile(
    r"ProfilerStep|Optimizer\.|enumerate\(DataLoader|(nccl|gloo|mpi|ucc|xccl|hccl):|c10d::|DistributedDataParallel"
)
_STARTS = re.compile(r"launch|memcpy|memset|invoke|enqueue", re.IGNORECASE)
_COLLECTIVE_OF_GPUS = re.compile(
    r"(nccl|xccl|hccl):_?(all|reduce|broadcast|gather|scatter|send|recv|coalesced)[a-z_]*$"
)
_BEFORE_AMPERE = re.compile(r"V100|\bT4\b|RTX 20")  # for traces that do not say what the device can


@dataclass(slots=True)
class Event:
    """Something with a beginning and an end, in microseconds since the trace's first event."""

    kind: int
    name: str
    start: float
    end: float
    tid: Any
    program: Any = None  # which marked a step
    correlation: Any = None  # ties a call on the CPU to what it started on the device
    operator: Any = None  # ties what ran to the operator that called for it: the "External id"
    device: int = 0
    collective: str = ""
    elements: int | None = None  # of all tensors that an operator was given; only known with record_shapes
    sequence: int | None = None  # ties an operator to the node of the backward pass that it left behind

    @property
    def span(self) -> tuple[float, float]:
        """Its beginning and its end."""
        return self.start, self.end


@dataclass(frozen=True)
class Gpu:
    """A device: its name, and NVIDIA's compute capability; empty and None where the trace does not say."""

    name: str = ""
    capability: tuple[int, int] | None = None


@dataclass
class Trace:
    """What a trace holds.

    Attributes:
        name: the file's.
        events: those that were understood, by their kind and in the order of their time; outer ones come first.
        header: what stands beside the events, such as ``distributedInfo``.
    """

    name: str
    events: dict[int, list[Event]]
    header: dict[str, Any]

    @property
    def rank(self) -> str:
        """Which rank of how many it is, in words; empty where the trace does not say."""
        info = self.header.get("distributedInfo")
        rank, world = (info.get(key) if isinstance(info, dict) else None for key in ("rank", "world_size"))
        return f"rank {rank} of {world}" if isinstance(world, int) and world > 1 else ""

    @functools.cached_property
    def nvidia(self) -> bool:
        """Whether calls to CUDA were recorded: those of others have other names."""
        return any(call.name.startswith("cu") for call in self.events[CALL])

    @functools.cached_property
    def gpus(self) -> dict[int, Gpu]:
        """The devices that the file lists, and those that worked, by their number."""
        found = {event.device: Gpu() for kind in DEVICE for event in self.events[kind]}
        for place, told in enumerate(self.header.get("deviceProperties") or ()):
            name = str(told.get("name") or "")
            capability = told.get("computeMajor", told.get("major")), told.get("computeMinor", told.get("minor"))
            if None in capability:
                capability = (7, 0) if _BEFORE_AMPERE.search(name) else None
            found[told.get("id", place)] = Gpu(name, capability if self.nvidia else None)  # AMD's mean something else
        return found

    @functools.cached_property
    def has_gpu_side(self) -> bool:
        """Whether a device worked, or calls to one were made, or the machine has one and nobody looked what it did.

        A machine's device is listed whatever was recorded. Where calls were recorded, and none starts anything, the
        program left it alone. Names of operators and labels say nothing: CPU code asks ``aten::cudnn_is_acceptable``.
        """
        if any(self.events[kind] for kind in _ON_DEVICE):
            return True
        if any(_COLLECTIVE_OF_GPUS.match(mark.name) for kind in (MARK, OP) for mark in self.events[kind]):
            return True
        calls = self.events[CALL]
        return any(_STARTS.search(call.name) for call in calls) if calls else bool(self.gpus)


def read_events(source: str | Path | bytes) -> Trace:
    """Read a trace in Chrome's format, as torch.profiler exports it, compressed with gzip or not.

    Raises:
        TraceFileError: if it is none, or too large.

    Example:
        >>> step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 5, "tid": 1}
        >>> len(read_events(str([step]).replace("'", '"').encode()).events[MARK])
        1
    """
    name, header = load(source, _event)
    listed = header.pop("traceEvents")
    kept: dict[int, list[Event]] = {kind: [] for kind in range(9)}
    for event in listed:
        if type(event) is Event:
            kept[event.kind].append(event)
    if not any(kept[kind] for kind in range(OVERHEAD)):
        raise TraceFileError(f"{name} has no event of torch.profiler that takes time. {HOW}.")
    programs = {mark.program for mark in kept[MARK] if mark.name.startswith("ProfilerStep")}
    if len(programs) > 1:  # the ids that tie a call to its kernel are each program's own
        raise TraceFileError(f"{name} holds the steps of {len(programs)} programs, merged: read one rank's own file.")
    tied = [event for kind in (*DEVICE, CALL) for event in kept[kind]]
    if not any(event.correlation is not None for event in tied):  # ROCm's traces have the "External id" for that
        for event in tied:
            event.correlation, event.operator = event.operator, None
    zero = min(event.start for events in kept.values() for event in events)
    for events in kept.values():
        for event in events:
            event.start -= zero
            event.end -= zero
        events.sort(key=attrgetter("end"), reverse=True)
        events.sort(key=attrgetter("start"))
    return Trace(name, kept, header)


def _event(made: dict[str, Any]) -> Any:
    category, name, args = made.get("cat"), made.get("name"), made.get("args") or {}
    if made["ph"] != "X" or not isinstance(category, str) or not isinstance(name, str):
        return None
    kind = _kind(category, name)
    if kind is None:
        return None
    start, lasts = made.get("ts"), made.get("dur", 0)
    if not (_is_number(start) and _is_number(lasts) and lasts >= 0):
        return None
    found = Event(kind, sys.intern(name), start, start + lasts, made.get("tid"))
    if kind == PYTHON:
        return found
    found.program = made.get("pid") if kind == MARK else None
    found.correlation, found.operator = args.get("correlation"), args.get("External id", args.get("external id"))
    if kind == OP:
        _add_inputs(found, args)
    elif kind in _ON_DEVICE:
        found.device = args.get("device", made.get("pid"))
        found.collective = sys.intern(str(args.get("Collective name") or ""))
    return found


@functools.lru_cache(1 << 16)
def _kind(category: str, name: str) -> int | None:
    category = category.lower()
    kind = _KINDS.get(category)
    if kind == OP and _MARKS.match(name):  # how versions before 1.11 wrote them
        return MARK
    return kind if kind is not None else next((kind for end, kind in _ENDINGS if category.endswith(end)), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _add_inputs(found: Event, args: dict[str, Any]) -> None:
    found.sequence = args.get("Sequence number")
    sizes = args.get("Input Dims", args.get("Input dims"))
    if sizes:
        found.elements = sum(map(_elements, sizes))


def _elements(size: Any) -> int:
    """Of a tensor with its size, or of a list of tensors."""
    if not size or not isinstance(size, list):
        return 0
    return sum(map(_elements, size)) if isinstance(size[0], list) else math.prod(size)
