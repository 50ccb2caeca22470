"""Where the time of a GPU's step goes: every microsecond has one place, and all of them add up to the step."""

from __future__ import annotations

import functools
import re
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from own_program.traces.anomaly import AnomalyMode
from own_program.traces.events import CALL, COPY, DEVICE, KERNEL, MARK, OP, OVERHEAD, PYTHON, SET, Event, Trace
from own_program.traces.intervals import Span, Spans, clip, common, gaps, length, union, without
from own_program.traces.names import LOADS, is_own_code
from own_program.traces.profiled_steps import ProfiledSteps, device_steps, marked_steps

# The places of a step's time, in the order of a card.
COMPUTE, WITHIN, SENDS = "computing", "copies on the GPU", "communication, not hidden"
PAGEABLE, PINNED, TO_HOST = "copies to the GPU, pageable", "copies to the GPU", "copies to the host"
DATA, SYNC, LAUNCH = "idle: waits for data", "idle: after a synchronisation", "idle: waits for the host"
ALLOC, START, COMPILING = "idle: memory is allocated", "idle: start, or first use", "idle: code is compiled"
PROFILER, QUEUED, UNKNOWN = "idle: the profiler works", "idle: between launched kernels", "idle: no call recorded"
BUSY = (COMPUTE, WITHIN, SENDS, PAGEABLE, PINNED, TO_HOST)
IDLE = (DATA, SYNC, LAUNCH, ALLOC, START, COMPILING, PROFILER, QUEUED, UNKNOWN)
GPU_PLACES = BUSY + IDLE
# What of a step is told beside: it lies in the places above.
HIDDEN = "communication hidden behind computing"
FP32, TF32, OTHERS = "fp32 matrix products", "TF32 matrix products", "elementwise kernels that 16 bits could shorten"
DOUBLE = "computing in float64"
ANOMALY = "anomaly mode"

_COLLECTIVES = {
    "all_reduce": re.compile(r"all_?reduce|cross_device_reduce|_shot_", re.IGNORECASE),
    "all_gather": re.compile(r"all_?gather", re.IGNORECASE),
    "reduce_scatter": re.compile(r"reduce_?scatter", re.IGNORECASE),
    "all_to_all": re.compile(r"all_?to_?all", re.IGNORECASE),
    "gather": re.compile(r"gather", re.IGNORECASE),
    "scatter": re.compile(r"scatter", re.IGNORECASE),
    "broadcast": re.compile(r"broadcast", re.IGNORECASE),
    "send and receive": re.compile(r"send|recv", re.IGNORECASE),
}
_SENDS = re.compile(
    r"nccl|rccl|oneccl|hcom_|nvshmem|cross_device_reduce|(one|two)_shot_|multimem_"
    r"|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    re.IGNORECASE,
)
_SENDER = re.compile(r"(nccl|rccl|xccl|hccl|ucc):|c10d::|_c10d_functional::")
_GEMM = re.compile(r"gemm|gemv|nvjet|wgrad|dgrad|fprop|scudnn|convolve|conv2d|winograd|cijk_|xmma", re.IGNORECASE)
_TF32 = re.compile(r"tf32|xf32|_XS_|_S_MX_B_", re.IGNORECASE)
_MAYBE_TF32 = re.compile(r"s1688", re.IGNORECASE)  # TF32 where the name has no other type: fp16 on Turing, say
_HALF = re.compile(
    r"bf16|float16|fp?16|h884|h1688|16816|hgemm|hcudnn|half|fp8|e[45]m[23]|cijk_a\w{3}_b\w{3}_[hbfi]|i8|int8|f64|dgemm"
    r"|double",
    re.IGNORECASE,
)
_SINGLE = re.compile(
    r"sgemm|scudnn|f32f32_f32f32|_SB_|_S_B_|gemv\w*<\w*,?\s*float|simt_s|convolve_s|winograd.*float", re.IGNORECASE
)
_DOUBLE = re.compile(r"(?<![a-z])dgemm|(?<![a-z\d])d884|<double\b|_f64(?!\d)|fp64|cijk_\w*_DB_", re.IGNORECASE)
_POINTWISE = re.compile(
    r"elementwise_kernel|CatArrayBatchedCopy|fused_dropout|dropout_kernel|GeluCUDAKernel|masked_fill|triu_tril",
    re.IGNORECASE,
)
_SYNCS = re.compile(
    r"(cuda|hip|xpu|mtia)?(StreamSynchronize|DeviceSynchronize|EventSynchronize|Memcpy(2D|WithStream)?|CtxSynchronize)(_v\d+)?$"
    r"|cu(Stream|Event|Ctx)Synchronize|(ze|ur)\w*(Synchronize|Wait|Finish)",
    re.IGNORECASE,
)
_ALLOCS = re.compile(
    r"(cuda|hip)(Malloc|Free|HostAlloc|MallocHost|HostRegister)|cuMem(Create|Map|Unmap|Release|SetAccess)|hipMemCreate"
)
_LOADS_CODE = re.compile(
    r"Module(?!Launch)|Library|GetStreamPriorityRange|FuncGetAttributes|GetFunction|Init|DeviceReset|SetDevice"
)
COMPILES = re.compile(
    r".*\(dynamo_timed\)$|entire_(frame|backward)_compile$|.*triton[\\/]compiler[\\/]compiler\.py\(\d+\): compile$"
)
_LAUNCHES = re.compile(r"launch|enqueue", re.IGNORECASE)
_FIRST_USE_US, _FIRST_USE, _SIBLINGS = 1000.0, 20.0, 5  # at least; times as long as the median; of so many others
_LATE_US = 1.0  # clocks of CPU and GPU agree to about that


@dataclass
class GpuTime:
    """One GPU's steps, with where their time went; what is counted is of all steps together, in microseconds."""

    device: int
    steps: ProfiledSteps
    collectives: Counter[str] = field(default_factory=Counter)  # that no computing hides
    waits: Counter[str] = field(default_factory=Counter)  # idle after waits, by who waited, in words
    launches: int = 0  # calls that started kernels of the steps
    in_operators: float = 0.0  # that the device waited for the host and the CPU was inside an operator
    first_uses: list[Event] = field(default_factory=list)


def gpu_time(trace: Trace, device: int, anomaly: AnomalyMode) -> GpuTime:
    """Work out where the time of each step of a device went."""
    work = sorted((e for kind in DEVICE for e in trace.events[kind] if e.device == device), key=attrgetter("start"))
    found = GpuTime(device, device_steps(trace, work))
    host = _Host(trace, work, found)
    spans: dict[str, list[Span]] = defaultdict(list)
    for event in work:
        spans[_place(event)].append(event.span)
    lanes = {place: union(spans[place]) for place in BUSY}
    # A copy on the GPU is work as a kernel is: communication beside it costs nothing.
    own_work = union([*lanes[COMPUTE], *lanes[WITHIN]])
    classes = {HIDDEN: common(lanes[SENDS], own_work), **_classes(work)}
    if anomaly.checks:  # meanwhile a node's own kernels may still run
        others = union(event.span for event in work if not anomaly.covers(host.call(event)))
        classes[ANOMALY] = without(union(span for spans in anomaly.spans.values() for span in spans), others)
    for step in found.steps.all:
        step.places = dict.fromkeys(GPU_PLACES, 0.0)
        step.beside = {what: length(clip(each, step.span)) for what, each in classes.items()}
        taken: Spans = []
        for place in BUSY:
            lane = clip(lanes[place], step.span)
            step.places[place] = length(without(lane, taken))
            taken = union([*taken, *lane])
        for gap in gaps(host.busy, step.span):
            for place, lasts in host.causes(gap).items():
                step.places[place] += lasts
    _count(found, work, host, own_work)
    return found


def _place(event: Event) -> str:
    name = event.name.lower()
    if event.kind == KERNEL:
        return SENDS if _sends(event.name) else COMPUTE
    if event.kind == SET or re.search(r"dtod|ptop|devicetodevice|peer", name):
        return WITHIN
    if re.search(r"htod|hosttodevice|m2d", name):
        # A ROCm trace names no kind of memory: what is not said to be pageable is not called so.
        return PAGEABLE if "pageable" in name else PINNED
    return TO_HOST if re.search(r"dtoh|devicetohost|d2m", name) else WITHIN


@functools.lru_cache(4096)
def _sends(name: str) -> bool:
    return bool(_SENDS.search(name)) and "triton_" not in name


class _Host:
    """What the host did, and so why the device had nothing to do."""

    def __init__(self, trace: Trace, work: Sequence[Event], found: GpuTime) -> None:
        self.busy = union(event.span for event in work)
        self.found = found
        calls = trace.events[CALL]
        self._calls = {call.correlation: call for call in calls if call.correlation is not None}
        senders = [mark for mark in trace.events[MARK] if _SENDER.match(mark.name)]
        self._operators = _Enclosing(sorted([*trace.events[OP], *senders], key=lambda event: (event.start, -event.end)))
        self._by_id = {event.operator: event.name for event in trace.events[OP] if event.operator is not None}
        self.frames = _Enclosing(event for event in trace.events[PYTHON] if is_own_code(event.name))
        self._starts = [event.start for event in work]
        self._work = work
        slow = _first_uses(trace)
        found.first_uses = [e for e in slow if 2 * length(gaps(self.busy, e.span)) > e.end - e.start]
        copies = {e.correlation: _place(e) for e in work if e.kind == COPY and "pinned" not in e.name.lower()}
        loads = [call for call in calls if _LOADS_CODE.search(call.name)]
        named = [event for kind in (MARK, OP, PYTHON) for event in trace.events[kind]]
        self._whys = [
            (COMPILING, union(event.span for event in named if _compiles(event.name))),
            (DATA, union(event.span for event in named if LOADS.match(event.name))),
            (PROFILER, union(event.span for event in trace.events[OVERHEAD])),
            (PAGEABLE, union(call.span for call in calls if copies.get(call.correlation) == PAGEABLE)),
            (ALLOC, union(call.span for call in calls if _ALLOCS.match(call.name))),
            (START, union(event.span for event in (*loads, *found.first_uses))),
        ]
        self._lead = 0.0  # by how much earlier the next launches would come if the CPU had not waited
        self._waited: tuple[Event, str] | None = None  # the last wait, and who waited
        self._first = {id(event) for event in {event.name: event for event in reversed(work)}.values()}
        self._syncs = [c for c in calls if _SYNCS.match(c.name) or copies.get(c.correlation) == TO_HOST]
        self._sync_starts = [call.start for call in self._syncs]
        self._inside = union(event.span for event in trace.events[OP])

    def call(self, event: Event) -> Event | None:
        """The call that started something, if it was recorded."""
        return self._calls.get(event.correlation) if event.correlation is not None else None

    def asked(self, event: Event) -> list[str]:
        """The operators that asked for something on the device, the outermost first."""
        call = self.call(event)
        names = [each.name for each in self._operators.of(call)] if call else []
        return [*names, self._by_id.get(event.operator, "")]

    def causes(self, gap: Span) -> dict[str, float]:
        """The places of a stretch in which the device did nothing: all between two pieces of work, or a step's part."""
        place = bisect_left(self._starts, gap[1] - 1e-6)
        after = self._work[place] if place < len(self._work) else None
        call, lasts = self.call(after) if after else None, gap[1] - gap[0]
        # A step may begin in the middle of an idle stretch, whose cause lies where the device ran dry.
        last = bisect_left(self.busy, (gap[0],)) - 1
        dry = self.busy[last][1] if last >= 0 else gap[0]
        if not self._calls:
            return {UNKNOWN: lasts}
        if (call is None and after is not None) or (call is not None and call.start <= dry + _LATE_US):
            return {QUEUED: lasts}
        places: dict[str, float] = {}
        left: Spans = [gap]
        for why, spans in self._whys:
            if why == ALLOC and not self.found.steps.marked and id(after) in self._first:
                return places | {START: length(left)}  # it may load its code, and the program with it
            taken = common(left, clip(spans, gap))
            places[why] = length(taken)
            left = without(left, taken)
        rest = length(left)
        wait, waited = self._wait(dry)
        if wait and (self._waited is None or self._waited[0] is not wait):
            self._lead, self._waited = waited, (wait, self._who_waits(wait))
        late = rest if wait else max(0.0, rest - self._lead)
        self._lead = max(0.0, self._lead - lasts)
        if self._waited:
            self.found.waits[self._waited[1]] += rest if wait else rest - late  # type: ignore[assignment]
        if wait:
            return places | {SYNC: rest}
        # The launches that a wait made late are late until the CPU is ahead of the device by as much again.
        self.found.in_operators += min(late, length(common(left, clip(self._inside, gap))))
        return places | {SYNC: rest - late, LAUNCH: late}

    def _wait(self, dry: float) -> tuple[Event | None, float]:
        """The call in which the CPU waited when the device ran dry, if it did, and how long it had waited by then."""
        last = bisect_right(self._sync_starts, dry + _LATE_US)
        waits = [call for call in self._syncs[max(0, last - 8) : last] if call.end >= dry - _LATE_US]
        return (waits[-1], max(0.0, dry - waits[0].start)) if waits else (None, 0.0)

    def _who_waits(self, wait: Event) -> str:
        names = [event.name for event in self._operators.of(wait)]
        called = next((name for name in names if name.startswith("aten::")), "")
        inner = next((name for name in reversed(names) if name.startswith("aten::") and name[6:7] != "_"), called)
        words = f"{inner} ({wait.name})" if inner else wait.name
        words += f", called by {called}" if called != inner else ""
        line = self.frames.innermost(wait)
        return f"{words}, {line}" if line else words


class _Enclosing:
    """Which of some events, sorted by their start, enclose another of the same thread."""

    def __init__(self, events: Iterable[Event]) -> None:
        # Of each thread the starts, the events, and for each the place of the one that was open when it began.
        self._threads: dict[object, tuple[list[float], list[Event], list[int]]] = defaultdict(lambda: ([], [], []))
        for event in events:
            starts, known, outer = self._threads[event.tid]
            place = len(known) - 1
            while place >= 0 and known[place].end < event.start:
                place = outer[place]
            starts.append(event.start)
            known.append(event)
            outer.append(place)

    def of(self, event: Event) -> list[Event]:
        """Those that enclose an event's start, the outermost first."""
        starts, known, outer = self._threads.get(event.tid, ([], [], []))
        place = bisect_right(starts, event.start) - 1
        found: list[Event] = []
        while place >= 0:
            if known[place].end >= event.start:
                found.append(known[place])
            place = outer[place]
        return found[::-1]

    def innermost(self, event: Event | None) -> str:
        """The name of the innermost of them; empty if there is none."""
        found = self.of(event) if event else []
        return found[-1].name if found else ""


def _first_uses(trace: Trace) -> list[Event]:
    """Launches, and operators that launch, which took far longer than their like, and not in every step."""
    alike: dict[str, list[Event]] = defaultdict(list)
    starts: dict[object, list[float]] = defaultdict(list)
    for launch in trace.events[CALL]:
        if _LAUNCHES.search(launch.name):
            alike[launch.name].append(launch)
            starts[launch.tid].append(launch.start)
    for event in trace.events[OP]:
        place = bisect_left(starts[event.tid], event.start)
        if event.name.startswith("aten::") and starts[event.tid][place : place + 1] < [event.end]:
            alike[event.name].append(event)
    marks = [span for _, span in marked_steps(trace.events[MARK])]
    found = []
    for events in alike.values():
        usual = statistics.median(event.end - event.start for event in events)
        slow = [event for event in events if event.end - event.start >= max(_FIRST_USE_US, _FIRST_USE * usual)]
        hit = sum(any(low <= event.start <= high for event in slow) for low, high in marks)
        if len(events) > _SIBLINGS and (hit <= 1 or 2 * hit <= len(marks)):
            found += slow
    return found


def _classes(work: Sequence[Event]) -> dict[str, Spans]:
    """When kernels ran of which something can be said by their names."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for event in work:
        if _place(event) == COMPUTE and (precision := _precision(event.name)):
            spans[precision].append(event.span)
    return {what: union(spans[what]) for what in (FP32, TF32, OTHERS, DOUBLE)}


@functools.lru_cache(4096)
def _precision(name: str) -> str:
    """In which class of numbers a kernel computes, if a smaller one is advised; empty for other kernels."""
    if _GEMM.search(name) and not name.startswith("triton_"):
        if _TF32.search(name):
            return TF32
        if not _HALF.search(name) and (_MAYBE_TF32.search(name) or _SINGLE.search(name)):
            return TF32 if _MAYBE_TF32.search(name) else FP32
    if _DOUBLE.search(name):
        return DOUBLE
    return OTHERS if _POINTWISE.search(name) and not _HALF.search(name) else ""


@functools.lru_cache(8192)
def _compiles(name: str) -> bool:
    return bool(COMPILES.match(name))


def _count(found: GpuTime, work: Sequence[Event], host: _Host, own_work: Spans) -> None:
    started: set[object] = set()
    steps = found.steps.all
    starts = [step.span[0] for step in steps]
    for event in work:
        step = bisect_right(starts, event.start) - 1
        if step < 0 or event.start >= steps[step].span[1]:
            continue
        place, lasts = _place(event), event.end - event.start
        ran = steps[step].ran[place, event.name]
        ran[0] += 1
        ran[1] += lasts
        if event.kind == KERNEL:  # a graph's kernels have one call
            started.add(id(event) if event.correlation is None else event.correlation)
        if place == SENDS:
            asked = [event.collective, *(name for name in host.asked(event) if _SENDER.match(name))]
            # A kernel of NCCL's is built of the same parts for both.
            kernel = collective_of(event.name).replace("receive", "receive, or all_to_all")
            name = next(filter(None, map(collective_of, asked)), kernel) or "others"
            found.collectives[name] += length(without([event.span], clip(own_work, event.span)))  # type: ignore[assignment]
    found.launches = len(started)


def collective_of(words: str) -> str:
    """Which collective some words name; empty if none."""
    return next((name for name, pattern in _COLLECTIVES.items() if pattern.search(words)), "")
