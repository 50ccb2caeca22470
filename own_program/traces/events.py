"""The events of a trace: what ran when, of what kind, and what ties them.

HolisticTraceAnalysis and Perfetto's processor need pandas or a native program, so neither runs inside a page.
"""

from __future__ import annotations

import functools
import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from own_program.traces.gpus import Gpu, gpus_of
from own_program.traces.text import HOW, RawTrace, TraceError, printable

__all__ = ["HOW", "Event", "Trace", "TraceError", "read_events"]

_MOST_ELEMENTS, _MOST_DEVICES = 1 << 48, 1 << 32  # along one dimension of a tensor; more are damage
_LATEST_US = 1e18  # no clock counts that far: 30,000 years

# What an event is to us, by the category that a version of torch gave it.
KERNEL, COPY, SET, OP, MARK, GPU_MARK, PYTHON, CALL, OVERHEAD = range(9)
DEVICE = (KERNEL, COPY, SET)
_ON_DEVICE = (*DEVICE, GPU_MARK)
_KINDS = {
    "cpu_op": OP, "operator": OP, "user_annotation": MARK, "gpu_user_annotation": GPU_MARK,
    "python_function": PYTHON, "runtime": CALL, "overhead": OVERHEAD, "mtia_ccp_events": KERNEL,
}  # fmt: skip
_ENDINGS = (("kernel", KERNEL), ("memcpy", COPY), ("memset", SET), ("_runtime", CALL), ("_driver", CALL))
_TASKS = ((re.compile(r"AI_|MIX_"), KERNEL), (re.compile(r"SDMA|MEMCPY"), COPY))  # Ascend's, which have no category
_MARKS = re.compile(
    r"ProfilerStep|Optimizer\.|enumerate\(DataLoader|(nccl|gloo|mpi|ucc|xccl|hccl):|c10d::|DistributedDataParallel"
)
_STARTS = re.compile(r"launch|memcpy|memset|invoke|enqueue", re.IGNORECASE)
_COLLECTIVE_OF_GPUS = re.compile(
    r"(nccl|xccl|hccl):_?(all|reduce|broadcast|gather|scatter|send|recv|coalesced)[a-z_]*$"
)


@dataclass(slots=True)
class Event:
    """Something with a beginning and an end, in microseconds since the trace's first event."""

    kind: int
    name: str
    start: float
    end: float
    tid: Any
    correlation: Any = None  # ties a call on the CPU to what it started on the device
    operator: Any = None  # ties what ran to the operator that called for it: the "External id"
    device: int = 0
    stream: Any = None
    collective: str = ""
    double: bool = False  # an operator that was given a tensor in float64; only known with record_shapes
    shapes: tuple[Any, ...] | None = None  # of an operator: for each input its sizes; () for what is no tensor
    sequence: int | None = None  # ties an operator to the node of the backward pass that it left behind

    @property
    def span(self) -> tuple[float, float]:
        """Its beginning and its end."""
        return self.start, self.end


@dataclass
class Trace:
    """What a trace holds.

    Attributes:
        name: the file's.
        events: those that were understood, by their kind.
        header: what stands beside the events, such as ``distributedInfo``.
        flaws: what is wrong with the file, each a sentence.
        cut: whether it breaks off. Events do not stand in the order of their time, so what is missing may be of any.
    """

    name: str
    events: dict[int, list[Event]]
    header: dict[str, Any]
    flaws: list[str] = field(default_factory=list)
    cut: bool = False

    @property
    def rank(self) -> str:
        """Which rank of how many it is, in words; empty where the trace does not say."""
        info = self.header.get("distributedInfo")
        rank, world = (info.get(key) if isinstance(info, dict) else None for key in ("rank", "world_size"))
        known = isinstance(rank, int) and isinstance(world, int) and 1 < world < _MOST_DEVICES and abs(rank) < world
        return f"rank {rank} of {world}" if known else ""

    @functools.cached_property
    def gpus(self) -> dict[int, Gpu]:
        """The devices that the file lists, and those that worked, by their number."""
        working = {event.device for kind in DEVICE for event in self.events[kind]}
        return gpus_of(self.header, working, {call.name for call in self.events[CALL]})

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


@contextmanager
def without_collecting() -> Iterator[None]:
    """Looks for no garbage: among hundreds of thousands of events that stay, that takes longer than reading them."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@without_collecting()
def read_events(source: str | Path | bytes) -> Trace:
    """Read a trace in Chrome's format, as torch.profiler exports it, compressed with gzip or not.

    Memory stays at a few hundred bytes for each event that says where time goes. A file that breaks off in the middle
    is read up to there, and ``flaws`` says so.

    Raises:
        TraceError: if it is none, or too large.

    Example:
        >>> step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 5, "tid": 1}
        >>> len(read_events(str([step]).replace("'", '"').encode()).events[MARK])
        1
    """
    return _read(RawTrace(source))


def _read(raw: RawTrace) -> Trace:
    kept: dict[int, list[Event]] = {kind: [] for kind in range(9)}
    seen = timeless = 0
    programs: set[Any] = set()
    once: dict[Any, Any] = {}  # shapes repeat themselves from step to step
    for batch in raw:
        for event in batch:
            if type(event) is not dict or event.get("ph") != "X" or type(name := event.get("name")) is not str:
                continue
            seen += 1
            args = event.get("args")
            args = args if type(args) is dict else {}
            category = event.get("cat")
            kind = _kind(category, name) if type(category) is str else _of_task(args)
            if kind is None:
                continue
            start, lasts = event.get("ts"), event.get("dur", 0)
            if type(start) is not float or type(lasts) is not float:
                start, lasts = _number(start), _number(lasts)
            if not (abs(start) < _LATEST_US and 0 <= lasts < _LATEST_US):  # nor are these true of a NaN
                timeless += 1
                continue
            found = Event(
                kind,
                sys.intern(name if name.isascii() else printable(name)),
                start,
                start + lasts,
                _plain(event.get("tid")),
            )
            kept[kind].append(found)
            if kind == PYTHON:
                continue
            if kind == MARK and name.startswith("ProfilerStep"):
                programs.add(_plain(event.get("pid")))
            found.correlation = _plain(args.get("correlation"))
            found.operator = _plain(args.get("External id", args.get("external id")))
            if kind == OP:
                _add_inputs(found, args, once)
            elif kind in _ON_DEVICE:
                device = args.get("device", event.get("pid") if category else None)
                found.device = device if type(device) is int and abs(device) < _MOST_DEVICES else 0
                found.stream = _plain(args.get("stream", args.get("Stream Id", event.get("tid"))))
                found.collective = sys.intern(printable(str(args.get("Collective name") or "")))
    if not any(kept[kind] for kind in range(OVERHEAD)):
        raise TraceError(_nothing(raw, seen, timeless))
    if len(programs) > 1:  # the ids that tie a call to its kernel are each program's own
        raise TraceError(f"{raw.name} holds the steps of {len(programs)} programs, merged: read one rank's own file.")
    if timeless:
        many = f"{timeless:,} events were left out: their" if timeless > 1 else "One event was left out: its"
        raw.flaws.append(f"{many} time is missing, negative or no number.")
    _tie(kept)
    zero = min(event.start for events in kept.values() for event in events)
    for events in kept.values():
        for event in events:
            event.start -= zero
            event.end -= zero
        events.sort(key=attrgetter("end"), reverse=True)
        events.sort(key=attrgetter("start"))
    return Trace(raw.name, kept, raw.header, raw.flaws, raw.cut)


def _tie(kept: dict[int, list[Event]]) -> None:
    """Tie calls to what they started by their "External id", where no "correlation" is: so ROCm's traces write it."""
    tied = [event for kind in (*DEVICE, CALL) for event in kept[kind]]
    if not any(event.correlation is not None for event in tied):
        for event in tied:
            event.correlation, event.operator = event.operator, None


def _nothing(raw: RawTrace, seen: int, timeless: int) -> str:
    if timeless:
        return f"No event of {raw.name} has a time that can be read. {HOW}."
    if seen and "schemaVersion" not in raw.header:  # which Kineto writes
        return f"{raw.name} is a trace, but not one of torch.profiler: no event has a category of its. {HOW}."
    return raw.breaks_off() if raw.flaws else f"{raw.name} is a trace without events. {HOW}."


@functools.lru_cache(1 << 16)
def _kind(category: str, name: str) -> int | None:
    category = category.lower()
    kind = _KINDS.get(category)
    if kind == OP and _MARKS.match(name):  # how versions before 1.11 wrote them
        return MARK
    return kind if kind is not None else next((kind for end, kind in _ENDINGS if category.endswith(end)), None)


def _of_task(args: dict[str, Any]) -> int | None:
    task = args.get("Task Type")
    return next((kind for pattern, kind in _TASKS if pattern.match(task)), None) if isinstance(task, str) else None


def _number(value: Any) -> float:
    try:  # some writers put numbers into quotes
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _add_inputs(found: Event, args: dict[str, Any], once: dict[Any, Any]) -> None:
    sequence, types = args.get("Sequence number"), args.get("Input type")
    found.sequence = sequence if type(sequence) is int else None
    sizes = args.get("Input Dims", args.get("Input dims"))
    if not isinstance(sizes, list):
        return
    shapes = tuple(map(_frozen, sizes))
    found.shapes = once.setdefault(shapes, shapes)
    # Python's numbers are doubles without a size, whatever the tensor beside them is.
    double = isinstance(types, list) and "double" in types
    found.double = double and any(what == "double" and size for what, size in zip(types, sizes, strict=False))


def _frozen(value: Any, deep: int = 2) -> Any:
    if type(value) is list and deep:
        return tuple([_frozen(each, deep - 1) for each in value])
    return value if type(value) is int and 0 <= value < _MOST_ELEMENTS else ()


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | str) else None
