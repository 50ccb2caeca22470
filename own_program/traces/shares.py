"""Where the time of a device's step goes: every microsecond has one place, and all of them add up to the step."""

from __future__ import annotations

import functools
import re
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from course_utils.show.formats import short_name
from own_program.traces.anomaly import AnomalyMode
from own_program.traces.events import CALL, COPY, DEVICE, KERNEL, MARK, OP, OVERHEAD, PYTHON, SET, Event, Trace
from own_program.traces.intervals import Span, Spans, clip, common, gaps, length, union, without
from own_program.traces.names import is_communication, is_own_code
from own_program.traces.origin import Origin
from own_program.traces.steps import Steps, device_steps, marked_steps

# The places of a step's time, in the order of a card.
COMPUTE, SENDS = "computing", "communication, not hidden"
PAGEABLE, PINNED, TO_HOST, WITHIN = (
    "copies to the GPU, pageable",
    "copies to the GPU",
    "copies to the host",
    "copies on the GPU",
)
DATA, SYNC, LAUNCH, ALLOC = (
    "idle: waits for data",
    "idle: after a synchronisation",
    "idle: waits for the host",
    "idle: memory is allocated",
)
START, COMPILING, PROFILER, QUEUED, UNKNOWN = (
    "idle: start, or first use",
    "idle: code is compiled",
    "idle: the profiler works",
    "idle: between launched kernels",
    "idle: no call recorded",
)
BUSY = (COMPUTE, WITHIN, SENDS, PAGEABLE, PINNED, TO_HOST)
IDLE = (DATA, SYNC, LAUNCH, ALLOC, START, COMPILING, PROFILER, QUEUED, UNKNOWN)
PLACES = BUSY + IDLE
# What of a step is told beside: it lies in the places above.
HIDDEN = "communication hidden behind computing"
SHORT = "moments between kernels"
OWN_LAUNCH = "waits for launches outside the model"
OPTIMIZER_LAUNCH = "waits for the optimizer's launches"
FP32, TF32, OTHERS = "fp32 matrix products", "TF32 matrix products", "other kernels that 16 bits could shorten"
DOUBLE, ATTENTION, OPTIMIZER = "computing in float64", "attention in single kernels", "the optimizer's kernels"
OWN_KERNELS = "kernels launched outside the model"
POINTWISE, OWN_POINTWISE = "runs of elementwise kernels", "runs of elementwise kernels outside the model"
CLASSES = (FP32, TF32, OTHERS, DOUBLE, POINTWISE, OWN_POINTWISE, OWN_KERNELS, ATTENTION, OPTIMIZER)
BESIDE = (HIDDEN, SHORT, OWN_LAUNCH, OPTIMIZER_LAUNCH, *CLASSES)
AFTER_SYNC = "the host's own work after a synchronisation"
ANOMALY = "anomaly mode"
CHECK = "a NaN check of anomaly mode"

COLLECTIVES = {
    "all_reduce": re.compile(r"all_?reduce|cross_device_reduce|_shot_", re.IGNORECASE),
    "all_gather": re.compile(r"all_?gather", re.IGNORECASE),
    "reduce_scatter": re.compile(r"reduce_?scatter", re.IGNORECASE),
    "all_to_all": re.compile(r"all_?to_?all", re.IGNORECASE),
    "gather": re.compile(r"gather", re.IGNORECASE),
    "scatter": re.compile(r"scatter", re.IGNORECASE),
    "broadcast": re.compile(r"broadcast", re.IGNORECASE),
    "send and receive": re.compile(r"send|recv", re.IGNORECASE),
}
_UNSURE = "send and receive, or all_to_all"  # which NCCL builds of the same kernel
_SENDER = re.compile(r"(nccl|rccl|xccl|hccl|ucc):|c10d::|_c10d_functional::")
_GEMM = re.compile(r"gemm|gemv|nvjet|_wgrad|_dgrad|_fprop|scudnn|convolve|conv2d|winograd|cijk_|xmma", re.IGNORECASE)
_TF32 = re.compile(r"tf32|s1688|_XS_|xf32", re.IGNORECASE)
_HALF = re.compile(
    r"bf16|float16|f16|h884|h1688|16816|hgemm|hcudnn|half|fp8|e[45]m[23]|_HB_|_HHS_|_BBS_|_BB_|_HH_|i8|int8|f64|dgemm|double",
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
_MANY_TENSORS = re.compile(r"multi_tensor_apply")
_FUSED = re.compile(r"Fused(Adam|SGD|Adagrad)|fused_?(adam|sgd|lamb)|(Adam|SGD|LAMB)Functor", re.IGNORECASE)
_SOFTMAX = re.compile(r"softmax", re.IGNORECASE)
_LOG = re.compile(r"log_?softmax|_warp_(?:forward|backward)<[^<>]*\d+,\s*true\b", re.IGNORECASE)
_FLASH = re.compile(r"flash|fmha|mha_|attn|attention|triton", re.IGNORECASE)
_NEAR = 6  # kernels between a softmax and the matrix products of its attention, at most
_SYNCS = re.compile(
    r"(cuda|hip|xpu|mtia)?(StreamSynchronize|DeviceSynchronize|EventSynchronize|Memcpy(2D|WithStream)?|CtxSynchronize)(_v\d+)?$"
    r"|cu(Stream|Event|Ctx)Synchronize|(ze|ur)\w*(Synchronize|Wait|Finish)",
    re.IGNORECASE,
)
_ALLOCS = re.compile(
    r"(cuda|hip)(Malloc|Free|HostAlloc|MallocHost|HostRegister)|cuMem(Create|Map|Unmap|Release|SetAccess)|hipMemCreate"
)
_LOADS = re.compile(
    r"Module(?!Launch)|Library|GetStreamPriorityRange|FuncGetAttributes|GetFunction|Init|DeviceReset|SetDevice"
)
COMPILES = re.compile(
    r".*\(dynamo_timed\)$|entire_(frame|backward)_compile$|.*triton[\\/]compiler[\\/]compiler\.py\(\d+\): compile$"
)
_LOADING = re.compile(r"enumerate\(DataLoader")
_LAUNCHES = re.compile(r"launch|enqueue", re.IGNORECASE)
_FIRST_USE_US, _FIRST_USE, _SIBLINGS = 1000.0, 20.0, 5  # at least; times as long as the median; of so many others
_LATE_US = 1.0  # clocks of CPU and GPU agree to about that
_SHORT_US = 5.0  # a GPU takes that long at most from one kernel to the next that waits for it


@dataclass
class StepShares:
    """Where one step's time went, in microseconds.

    Attributes:
        lasts: how long it lasted.
        places: the time in each of `PLACES`; their sum is the step.
        beside: what lies in these places and is told as well, each of `BESIDE`.
        ran: what ran, by its place and name: how often, and for how long by itself.
        anomaly: what of the places anomaly mode took.
    """

    lasts: float
    places: dict[str, float]
    beside: dict[str, float]
    ran: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(lambda: [0, 0.0]))
    anomaly: dict[str, float] = field(default_factory=dict)

    def get(self, what: str) -> float:
        """The time of a place, or of what is told beside."""
        return self.places.get(what, self.beside.get(what, 0.0))


def by_name(steps: Sequence[StepShares], *places: str) -> dict[str, tuple[float, float]]:
    """What ran, by its short name: how often a step, and for how many microseconds a step; what took most comes first.

    Args:
        steps: those to average over.
        places: which places count; all, if none is named.

    Example:
        >>> step = StepShares(10.0, {}, {})
        >>> step.ran["computing", "void gemm<float>()"] = [2, 8.0]
        >>> by_name([step, step])
        {'gemm': (2.0, 8.0)}
    """
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for step in steps:
        for (place, name), (count, lasts) in step.ran.items():
            if not places or place in places:
                found[short_name(name)][0] += count
                found[short_name(name)][1] += lasts
    ranked = sorted(found.items(), key=lambda each: -each[1][1])
    return {name: (count / len(steps), lasts / len(steps)) for name, (count, lasts) in ranked}


@dataclass
class Wait:
    """A place where the program waited for the GPU, which then ran dry."""

    call: str
    operator: str
    line: str
    idle: float = 0.0
    times: int = 0


@dataclass
class DeviceShares:
    """One device's steps, and where their time went."""

    device: int
    steps: Steps
    of: dict[int, StepShares]  # by the step's identity
    collectives: Counter[str] = field(default_factory=Counter)  # microseconds that no computing hides
    waits: list[Wait] = field(default_factory=list)
    launches: int = 0  # calls that started kernels of the steps
    graphs: int = 0  # of these, launches of whole CUDA graphs
    in_operators: float = 0.0  # microseconds that the device waited for the host and the CPU was inside an operator
    silent: dict[object, Spans] = field(default_factory=dict)  # when it was in none, by the thread that launches next
    silent_after: dict[object, Spans] = field(default_factory=dict)  # the same, where it had waited for the device
    own_launches: Counter[str] = field(default_factory=Counter)  # launches outside the model, by operator
    copied: Counter[tuple[str, str]] = field(
        default_factory=Counter
    )  # microseconds within the device, by operator, line
    first_uses: list[Event] = field(default_factory=list)
    longest: float = 0.0  # microseconds that the device waited for one launch, at most

    def shares(self, steps: Iterable[object]) -> list[StepShares]:
        """Those of some steps."""
        return [self.of[id(step)] for step in steps]


def devices_of(trace: Trace) -> list[int]:
    """The devices that did something, in their order."""
    return sorted({event.device for kind in DEVICE for event in trace.events[kind] if event.end > event.start})


def device_shares(trace: Trace, device: int, anomaly: AnomalyMode, origin: Origin) -> DeviceShares:
    """Work out where the time of each step of a device went."""
    steps = device_steps(trace, device)
    work = sorted((e for kind in DEVICE for e in trace.events[kind] if e.device == device), key=attrgetter("start"))
    lanes = _lanes(work)
    busy = union(event.span for event in work)
    causes = _Causes(trace, work, busy, anomaly, origin, steps)
    calls = {call.correlation for call in trace.events[CALL] if anomaly.covers(call)} - {None}
    added = _lanes([event for event in work if event.correlation in calls])
    classes = _classes(trace, [event for event in work if event.correlation not in calls], origin)
    # A copy on the GPU is work as a kernel is: communication beside it costs nothing.
    own_work = union([*lanes[COMPUTE], *lanes[WITHIN]])
    hidden = common(lanes[SENDS], own_work)
    of = {}
    found = DeviceShares(device, steps, of)
    for step in steps.all:
        places = dict.fromkeys(PLACES, 0.0)
        causes.anomaly, causes.beside = Counter(), Counter()
        taken: Spans = []
        for place in BUSY:
            lane = clip(lanes[place], step.span)
            alone = without(lane, taken)
            places[place] = length(alone)
            causes.anomaly[place] = length(common(alone, added[place]))  # type: ignore[assignment]
            taken = union([*taken, *lane])
        moments = 0.0
        for gap in gaps(busy, step.span):
            for place, lasts in causes.of(gap).items():
                places[place] += lasts
                moments += lasts if place == QUEUED and gap[1] - gap[0] <= _SHORT_US else 0.0
        beside = {what: length(clip(spans, step.span)) for what, spans in classes.items()}
        beside[HIDDEN] = length(clip(hidden, step.span))
        beside[SHORT] = moments
        beside |= {ANOMALY: causes.anomaly.total(), **causes.beside}
        of[id(step)] = StepShares(step.lasts, places, beside, anomaly=causes.anomaly)
    found.in_operators, found.silent, found.silent_after = causes.in_operators, causes.silent, causes.silent_after
    found.waits = sorted(causes.waits.values(), key=lambda wait: -wait.idle)
    found.first_uses, found.longest = causes.first_uses, causes.longest
    _count(found, trace, work, own_work, calls, causes, origin)
    return found


def _lanes(work: Sequence[Event]) -> dict[str, Spans]:
    spans: dict[str, list[Span]] = defaultdict(list)
    for event in work:
        spans[_place(event)].append(event.span)
    return {place: union(spans[place]) for place in BUSY}


def _place(event: Event) -> str:
    if event.kind == KERNEL:
        return SENDS if is_communication(event) else COMPUTE
    return _copy(event)


def _copy(event: Event) -> str:
    """The place of a copy. A memset counts as one on the GPU."""
    name = event.name.lower()
    if event.kind == SET or "dtod" in name or "ptop" in name or "devicetodevice" in name or "peer" in name:
        return WITHIN
    if "htod" in name or "hosttodevice" in name or "m2d" in name:
        # A ROCm trace names no kind of memory: what is not said to be pageable is not called so.
        return PAGEABLE if "pageable" in name else PINNED
    return TO_HOST if "dtoh" in name or "devicetohost" in name or "d2m" in name else WITHIN


class _Causes:
    def __init__(
        self, trace: Trace, work: Sequence[Event], busy: Spans, anomaly: AnomalyMode, origin: Origin, steps: Steps
    ) -> None:
        self._busy = busy
        self._starts = [event.start for event in work]
        self._work = work
        calls = trace.events[CALL]
        self._calls = {call.correlation: call for call in calls if call.correlation is not None}
        self._data = union(e.span for e in [*trace.events[MARK], *trace.events[OP]] if _LOADING.match(e.name))
        self._profiler = union(event.span for event in trace.events[OVERHEAD])
        self._allocs = union(call.span for call in calls if _ALLOCS.match(call.name))
        self.first_uses = _first_uses(trace, steps)
        loads = [call for call in calls if _LOADS.search(call.name)]
        self._loads = union(event.span for event in (*loads, *self.first_uses))
        self._compiles = union(e.span for k in (OP, MARK, PYTHON) for e in trace.events[k] if _is(COMPILES, e.name))
        self._updates = union(mark.span for mark in trace.events[MARK] if mark.name.startswith("Optimizer.step"))
        self._origin = origin
        self.longest = 0.0
        pageable = {e.correlation for e in work if e.kind == COPY and _copy(e) == PAGEABLE}
        self._staging = union(
            call.span for call in calls if call.correlation in pageable and call.correlation is not None
        )
        to_host = {
            e.correlation for e in work if e.kind == COPY and _copy(e) == TO_HOST and "pinned" not in e.name.lower()
        }
        blocking = [
            c for c in calls if _SYNCS.match(c.name) or (c.correlation is not None and c.correlation in to_host)
        ]
        self._syncs = sorted(blocking, key=attrgetter("start"))
        self._sync_starts = [call.start for call in self._syncs]
        self._first: set[int] = set()
        if not steps.marked:  # without steps, a kernel's first run may load its code, and the program with it
            seen: set[str] = set()
            for event in work:
                if event.name not in seen:
                    seen.add(event.name)
                    self._first.add(id(event))
        self.operators = _Within(trace.events[OP])
        self.frames = _Within(event for event in trace.events[PYTHON] if is_own_code(event.name))
        self.waits: dict[tuple[str, str, str], Wait] = {}
        self._inside = union(event.span for event in trace.events[OP])
        self.in_operators = 0.0
        self._mode = anomaly
        self._added = union(span for spans in anomaly.spans.values() for span in spans)
        self.anomaly: Counter[str] = Counter()  # microseconds of it, by their place
        self.silent: dict[object, Spans] = defaultdict(list)
        self.silent_after: dict[object, Spans] = defaultdict(list)
        self.beside: Counter[str] = Counter()

    def of(self, gap: Span) -> dict[str, float]:
        """The places of a stretch in which the device did nothing: all between two pieces of work, or a step's part."""
        place = bisect_left(self._starts, gap[1] - 1e-6)
        after = self._work[place] if place < len(self._work) else None
        call = self._calls.get(after.correlation) if after is not None and after.correlation is not None else None
        if call is None and (after is not None or not self._calls):
            return {UNKNOWN if not self._calls else QUEUED: gap[1] - gap[0]}
        # A step may begin in the middle of an idle stretch, whose cause lies where the device ran dry.
        last = bisect_left(self._busy, (gap[0],)) - 1
        dry = self._busy[last][1] if last >= 0 else gap[0]
        if call is not None and call.start <= dry + _LATE_US:
            return {QUEUED: gap[1] - gap[0]}
        places: dict[str, float] = {}
        left: Spans = [gap]
        for name, spans in (
            (COMPILING, self._compiles),
            (DATA, self._data),
            (PROFILER, self._profiler),
            (PAGEABLE, self._staging),
        ):
            left = self._take(places, name, left, spans)
        if after is not None and id(after) in self._first:
            places[START] = length(left)
            return places
        left = self._take(places, ALLOC, left, self._allocs)
        left = self._take(places, START, left, self._loads)
        rest = length(left)
        inside = clip(self._inside, (left[0][0], left[-1][1])) if left else []
        silent = without(left, inside)
        wait = self._wait(dry)
        if wait and wait.operator == CHECK:  # operators are late because of it; what else the host does is not
            rest -= length(silent)
            places[LAUNCH] = length(silent)
            self.anomaly[SYNC] += rest  # type: ignore[assignment]
        else:
            of_anomaly = length(common(left, clip(self._added, gap)))
            self.anomaly[SYNC if wait else LAUNCH] += of_anomaly  # type: ignore[assignment]
            self.beside[AFTER_SYNC] += length(silent) if wait else 0.0  # type: ignore[assignment]
        if wait and rest:
            wait.idle += rest
            wait.times += dry == gap[0]
        if not wait:
            self.in_operators += length(common(left, inside))
            self.longest = max(self.longest, rest)
            updating = length(common(left, clip(self._updates, gap)))
            self.beside[OPTIMIZER_LAUNCH] += updating  # type: ignore[assignment]
            if call is not None and not updating and self._origin.is_own(call):
                self.beside[OWN_LAUNCH] += rest  # type: ignore[assignment]
        if call is not None:
            after = wait and wait.operator != CHECK
            (self.silent_after if after else self.silent)[call.tid] += silent
        places[SYNC if wait else LAUNCH] = rest
        return places

    def _take(self, places: dict[str, float], name: str, left: Spans, spans: Spans) -> Spans:
        taken = common(left, clip(spans, (left[0][0], left[-1][1]))) if left else []
        if taken:
            places[name] = length(taken)
            left = without(left, taken)
        return left

    def _wait(self, dry: float) -> Wait | None:
        """Where the CPU stood and waited when the device ran dry, if it did."""
        last = bisect_right(self._sync_starts, dry + _LATE_US)
        for call in reversed(self._syncs[max(0, last - 8) : last]):
            if call.end >= dry - _LATE_US:
                key = (call.name, self.operators.outermost(call, "aten::"), self.frames.innermost(call))
                if self._mode.covers(call):
                    key = (call.name, CHECK, "")
                return self.waits.setdefault(key, Wait(*key))
        return None


class _Within:
    def __init__(self, events: Iterable[Event]) -> None:
        self._by_thread: dict[object, list[Event]] = defaultdict(list)
        for event in events:
            self._by_thread[event.tid].append(event)
        self._starts = {tid: [event.start for event in events] for tid, events in self._by_thread.items()}
        self._outer = {tid: _outer(events) for tid, events in self._by_thread.items()}

    def _enclosing(self, call: Event) -> list[Event]:
        place = bisect_right(self._starts.get(call.tid, []), call.start) - 1
        found: list[Event] = []
        while place >= 0:
            event = self._by_thread[call.tid][place]
            if event.end >= call.start:
                found.append(event)
            place = self._outer[call.tid][place]
        return found[::-1]

    def outermost(self, call: Event, prefix: str) -> str:
        return next((event.name for event in self._enclosing(call) if event.name.startswith(prefix)), "")

    def innermost(self, call: Event) -> str:
        enclosing = self._enclosing(call)
        return enclosing[-1].name if enclosing else ""


def _outer(events: Sequence[Event]) -> list[int]:
    """For each of a thread's events the place of the one that was open when it began; -1 where none was."""
    outer: list[int] = []
    open_: list[int] = []
    for place, event in enumerate(events):
        while open_ and events[open_[-1]].end < event.start:
            open_.pop()
        outer.append(open_[-1] if open_ else -1)
        open_.append(place)
    return outer


def _first_uses(trace: Trace, steps: Steps) -> list[Event]:
    """Launches, and operators that launch, which took far longer than their like, and not in every step."""
    launches = [call for call in trace.events[CALL] if _LAUNCHES.search(call.name)]
    alike: dict[str, list[Event]] = defaultdict(list)
    starts: dict[object, list[float]] = defaultdict(list)
    for launch in launches:
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
        least = max(_FIRST_USE_US, _FIRST_USE * usual)
        slow = [event for event in events if event.end - event.start >= least]
        hit = sum(any(low <= event.start <= high for event in slow) for low, high in marks)
        if len(events) > _SIBLINGS and (hit <= 1 or 2 * hit <= len(marks)):
            found += slow
    return found


def _classes(trace: Trace, work: Sequence[Event], origin: Origin) -> dict[str, Spans]:
    kernels = [event for event in work if event.kind == KERNEL and not is_communication(event)]
    spans: dict[str, list[Span]] = {what: [] for what in CLASSES}
    calls = {call.correlation: call for call in trace.events[CALL]}
    for event in kernels:
        if (call := calls.get(event.correlation)) and origin.is_own(call):
            spans[OWN_KERNELS].append(event.span)
        if precision := single_precision(event.name):
            spans[precision].append(event.span)
        if _is(_DOUBLE, event.name):
            spans[DOUBLE].append(event.span)
        elif not precision and not _is(_HALF, event.name) and not _is(_MANY_TENSORS, event.name):
            spans[OTHERS].append(event.span)
    operators = {event.operator: event.name for event in trace.events[OP] if event.operator is not None}
    by_stream: dict[object, list[Event]] = defaultdict(list)
    for event in kernels:
        by_stream[event.stream].append(event)
    for lane in by_stream.values():
        for run in _runs_of_pointwise(lane):
            call = calls.get(run[0].correlation)
            spans[OWN_POINTWISE if call and origin.is_own(call) else POINTWISE] += [event.span for event in run]
        spans[ATTENTION] += _attention(lane, operators)
    spans[OPTIMIZER] = _optimizer(trace, kernels)
    return {what: union(each) for what, each in spans.items()}


@functools.lru_cache(4096)
def single_precision(name: str) -> str:
    """`FP32` or `TF32` for the kernel of a matrix product or a convolution in single precision; empty for others.

    Example:
        >>> single_precision("ampere_sgemm_128x64_tn")
        'fp32 matrix products'
        >>> single_precision("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn")
        ''
    """
    if not _is(_GEMM, name) or name.startswith("triton_"):
        return ""
    if _TF32.search(name):
        return TF32
    return FP32 if _SINGLE.search(name) and not _HALF.search(name) else ""


@functools.lru_cache(8192)
def _is(pattern: re.Pattern[str], name: str) -> bool:
    return bool(pattern.search(name))


def _runs_of_pointwise(lane: Sequence[Event]) -> list[list[Event]]:
    """Kernels that a compiler could put into one: two and more of them, one after the other on a stream."""
    found: list[list[Event]] = []
    run: list[Event] = []
    for event in [*lane, None]:
        if event is not None and _is(_POINTWISE, event.name):
            run.append(event)
            continue
        found += [run] if len(run) > 1 else []
        run = []
    return found


def _attention(lane: Sequence[Event], operators: dict[object, str]) -> list[Span]:
    """From the matrix product before a softmax to the one after it, where both are near."""
    found: list[Span] = []
    for place, event in enumerate(lane):
        operator = operators.get(event.operator, "")
        if not _SOFTMAX.search(event.name) or _FLASH.search(event.name):
            continue
        if _LOG.search(event.name) or "log_softmax" in operator:
            continue
        before = next((i for i in range(place - 1, max(-1, place - 1 - _NEAR), -1) if _is(_GEMM, lane[i].name)), None)
        after = next((i for i in range(place + 1, min(len(lane), place + 1 + _NEAR)) if _is(_GEMM, lane[i].name)), None)
        if before is not None and after is not None:
            found += [each.span for each in lane[before : after + 1]]
    return found


def _optimizer(trace: Trace, kernels: Sequence[Event]) -> list[Span]:
    """What an optimizer's step started, where it is not fused already."""
    calls = {call.correlation: call for call in trace.events[CALL] if call.correlation is not None}
    steps: dict[object, list[Event]] = defaultdict(list)
    for mark in trace.events[MARK]:
        if mark.name.startswith("Optimizer.step"):
            steps[mark.tid].append(mark)
    starts = {tid: [mark.start for mark in marks] for tid, marks in steps.items()}
    of_step: dict[int, list[Event]] = defaultdict(list)
    for event in kernels:
        call = calls.get(event.correlation)
        if call is None or call.tid not in steps:
            continue
        place = bisect_right(starts[call.tid], call.start) - 1
        if place >= 0 and call.start <= steps[call.tid][place].end:
            of_step[id(steps[call.tid][place])].append(event)
    found = []
    for events in of_step.values():
        plain = [
            e for e in events if not _FUSED.search(e.name) and (_MANY_TENSORS.search(e.name) or _is(_POINTWISE, e.name))
        ]
        found += [event.span for event in plain] if len(plain) > 3 else []
    return found


def _count(
    found: DeviceShares,
    trace: Trace,
    work: Sequence[Event],
    own_work: Spans,
    of_anomaly: set[object],
    causes: _Causes,
    origin: Origin,
) -> None:
    graphs = {call.correlation for call in trace.events[CALL] if "GraphLaunch" in call.name}
    started: set[object] = set()
    steps = found.steps.all
    starts = [step.span[0] for step in steps]
    asked_by = _asked_by(trace, work)
    calls = {call.correlation: call for call in trace.events[CALL] if call.correlation is not None}
    operators = {event.operator: event.name for event in trace.events[OP] if event.operator is not None}
    for event in work:
        place = bisect_right(starts, event.start) - 1
        if place < 0 or event.start >= steps[place].span[1]:
            continue
        if event.kind == KERNEL and event.correlation not in of_anomaly:  # a graph's kernels have one call
            started.add(id(event) if event.correlation is None else event.correlation)
        call = calls.get(event.correlation)
        asked = causes.operators.outermost(call, "aten::") if call else ""
        if event.kind == KERNEL and call and origin.is_own(call):
            found.own_launches[asked] += 1
        if _place(event) == WITHIN:
            line = causes.frames.innermost(call) if call else ""
            found.copied[asked or operators.get(event.operator, ""), line] += event.end - event.start  # type: ignore[assignment]
        ran = found.of[id(steps[place])].ran[_place(event), event.name]
        ran[0] += 1
        ran[1] += event.end - event.start
        if is_communication(event):
            name = collective(event, asked_by.get(id(event), ""))
            found.collectives[name] += length(without([event.span], clip(own_work, event.span)))
    found.launches, found.graphs = len(started), len(started & graphs)


def _asked_by(trace: Trace, work: Sequence[Event]) -> dict[int, str]:
    """For kernels of communication the operator or annotation that started each and names a collective."""
    sent = [event for event in work if is_communication(event) and event.correlation is not None]
    if not sent:
        return {}
    calls = {call.correlation: call for call in trace.events[CALL]}
    named = [e for kind in (OP, MARK) for e in trace.events[kind] if _SENDER.match(e.name) and _named(e.name)]
    senders = _Within(sorted(named, key=lambda event: (event.start, -event.end)))
    return {id(event): senders.innermost(calls[event.correlation]) for event in sent if event.correlation in calls}


def _named(words: str) -> str:
    return next((name for name, pattern in COLLECTIVES.items() if pattern.search(words)), "")


def collective(event: Event, asked_by: str = "") -> str:
    """Which collective a kernel of communication is: ``all_reduce``; ``others`` where nothing says it.

    What asked for it says it more surely than its own name: older versions of NCCL start one kernel for several.
    """
    if name := _named(event.collective) or _named(asked_by):
        return name
    name = _named(event.name) or "others"
    return _UNSURE if name == "send and receive" else name
