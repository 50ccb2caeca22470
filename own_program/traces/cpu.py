"""Where the time of the CPU's steps goes, for a trace in which no device ran."""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from own_program.traces.anomaly import AnomalyMode, begins_in
from own_program.traces.events import HOW, MARK, OP, PYTHON, Event, Trace, TraceError
from own_program.traces.intervals import Span, Spans, clip, common, length, union, without
from own_program.traces.names import LOADS, is_own_code
from own_program.traces.origin import Origin
from own_program.traces.shares import ANOMALY, COMPILES, DOUBLE, HIDDEN, StepShares
from own_program.traces.steps import Steps, cpu_steps, marked_steps

OPERATORS, COMMUNICATION, LOADING = "operators", "communication", "loading data"
OPTIMIZING, COMPILING, ELSEWHERE = "the optimizer", "compiling", "operators of other threads"
PYTHON_CODE = "Python, or nothing recorded"
CPU_PLACES = (OPERATORS, COMMUNICATION, LOADING, OPTIMIZING, COMPILING, ELSEWHERE, PYTHON_CODE)
# What of a step is told beside: it lies in the places above.
SMALL = "small operators"
OF_MODEL, OF_OWN = "small operators of the model, and Python between", "operators outside the model, and Python around"
_SMALL_US = 20.0
_SPECIAL = (
    (COMPILING, COMPILES),
    (LOADING, LOADS),
    (OPTIMIZING, re.compile(r"Optimizer\.(step|zero_grad)")),
    (COMMUNICATION, re.compile(r"(nccl|gloo|mpi|ucc|xccl|hccl):|c10d::|_c10d_functional")),
)
_KEPT = {place for place, _ in _SPECIAL}  # whatever runs inside them
_BACKWARD = re.compile(r"\w+Backward\w*$")

_Piece = tuple[float, float, str, Event]  # from when to when one event was the innermost of its thread, and its place


@dataclass
class CpuShares:
    """The CPU's steps, and where their time went; what is counted is of all steps together."""

    steps: Steps
    of: dict[int, StepShares]
    functions: Counter[str]  # Python's, in microseconds in which nothing else was recorded
    collectives: Counter[str] = field(default_factory=Counter)
    small: int = 0  # operators of the model that take next to nothing each
    own_small: int = 0  # and those outside the model
    updates: int = 0  # operators inside the optimizer
    fused: bool = False  # whether one call updates all parameters already
    unseen: bool = False  # whether an optimizer is in the file, and no backward pass
    for_gpu: bool = False  # whether there was a device, which the recording left out


def cpu_shares(trace: Trace, anomaly: AnomalyMode, origin: Origin) -> CpuShares:
    """Work out where the time of each step on the CPU went: each moment belongs to the innermost event of its thread.

    Where the step's own thread records nothing, what another thread does counts: the program waits for it.
    """
    events = [*trace.events[OP], *trace.events[MARK]]
    if not any(event.end > event.start for event in events if not marked_steps([event])):
        if trace.cut:
            raise TraceError(f"{trace.name} ends in the middle, before anything that takes time: copy it again.")
        raise TraceError(
            f"{trace.name} holds no operator and no work of a GPU that took any time. A later cycle of the "
            f"schedule may have written over what was recorded: repeat=1 forbids it. {HOW}."
        )
    steps = cpu_steps(trace)
    threads: dict[object, list[Event]] = defaultdict(list)
    for event in events:
        threads[event.tid].append(event)
    main = next((event.tid for event in trace.events[MARK] if marked_steps([event])), None)
    if main is None:
        main = max(threads, key=lambda tid: length(union(event.span for event in threads[tid])))
    pieces = {tid: _pieces(sorted(own, key=lambda event: (event.start, -event.end))) for tid, own in threads.items()}
    own, everything = pieces[main], [piece for each in pieces.values() for piece in each]
    of_main, of_others = _by_place(own), _by_place(p for tid, each in pieces.items() if tid != main for p in each)
    lanes = [(place, union(of_main[place])) for place in CPU_PLACES[:5]]
    # What computes comes first: communication beside it costs nothing.
    lanes.append((ELSEWHERE, union(of_others[OPERATORS] + of_others[OPTIMIZING])))
    lanes.append((COMMUNICATION, union(of_others[COMMUNICATION])))
    alone: dict[int, float] = defaultdict(float)
    for start, end, place, event in own:
        if place == OPERATORS:
            alone[id(event)] += end - start
    small = {event for event, lasts in alone.items() if lasts < _SMALL_US}
    of_model, of_own = origin.model.get(main, []), origin.own.get(main, [])
    sends = union(of_main[COMMUNICATION] + of_others[COMMUNICATION])
    classes = {
        SMALL: union((start, end) for start, end, _, event in own if id(event) in small),
        DOUBLE: union((start, end) for start, end, _, event in everything if event.double),
        OF_OWN: of_own,
        ANOMALY: union(span for spans in anomaly.spans.values() for span in spans),
    }
    found = CpuShares(steps, {}, Counter())
    silent: Spans = []
    for step in steps.all:
        places = dict.fromkeys(CPU_PLACES, 0.0)
        left: Spans = [step.span]
        for place, spans in lanes:
            taken = common(left, clip(spans, step.span))
            places[place] += length(taken)
            left = without(left, taken)
        places[PYTHON_CODE] = length(left)
        silent += left
        beside = {what: length(clip(spans, step.span)) for what, spans in classes.items()}
        beside[OF_MODEL] = length(common(union([*clip(classes[SMALL], step.span), *left]), of_model))
        beside[HIDDEN] = max(0.0, round(length(clip(sends, step.span)) - places[COMMUNICATION], 3))
        found.of[id(step)] = StepShares(step.lasts, places, beside)
    found.functions = own_functions(trace, main, silent)
    _count(found, everything, small, origin)
    names = {event.name for event in events}
    found.fused = any("_fused_" in name for name in names)
    updates = any(name.startswith("Optimizer.step") for name in names)
    found.unseen = updates and not any(_BACKWARD.search(name) for name in names)
    found.for_gpu = trace.has_gpu_side and not trace.cut  # whose missing part may hold it
    return found


def own_functions(trace: Trace, tid: object, spans: Spans, begun_inside: bool = False) -> Counter[str]:
    """Which of the program's own functions a thread was in: microseconds of some spans, by the innermost of them."""
    found: Counter[str] = Counter()
    own = [event for event in trace.events[PYTHON] if event.tid == tid and is_own_code(event.name)]
    if begun_inside:
        own = [event for event in own if begins_in(spans, event)]
    first = 0  # of the spans that a piece can reach: both are sorted
    for start, end, _, event in _pieces(own):  # by themselves: they begin and end across annotations
        while first < len(spans) and spans[first][1] <= start:
            first += 1
        place = first
        while place < len(spans) and spans[place][0] < end:
            found[event.name] += min(end, spans[place][1]) - max(start, spans[place][0])  # type: ignore[assignment]
            place += 1
    return found


def _by_place(pieces: Iterable[_Piece]) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = defaultdict(list)
    for start, end, place, _ in pieces:
        found[place].append((start, end))
    return found


@functools.lru_cache(1 << 14)
def _place(kind: int, name: str) -> str:
    special = next((place for place, pattern in _SPECIAL if pattern.match(name)), "")
    return special or (OPERATORS if kind == OP else PYTHON_CODE)


def _pieces(events: Sequence[Event]) -> list[_Piece]:
    """A thread's time, each piece of it with the innermost event; the events are sorted, outer ones first."""
    found: list[_Piece] = []
    open_: list[tuple[float, str, Event]] = []  # end, place, event
    at = 0.0
    for event in (*events, None):
        start = inf if event is None else event.start
        while open_ and open_[-1][0] <= start:
            end, place, inner = open_.pop()
            if end > at:
                found.append((at, end, place, inner))
                at = end
        if event is None:
            break
        end, place = event.end, ""
        if open_:
            outer_end, place, outer = open_[-1]
            if start > at:
                found.append((at, start, place, outer))
            end = min(end, outer_end)
        at = max(at, start)
        open_.append((end, place if place in _KEPT else _place(event.kind, event.name), event))
    return found


def _count(found: CpuShares, pieces: Sequence[_Piece], small: set[int], origin: Origin) -> None:
    steps = found.steps.all
    starts, ends = [step.span[0] for step in steps], [step.span[1] for step in steps]
    rans = [found.of[id(step)].ran for step in steps]
    seen: set[int] = set()
    for start, end, place, event in pieces:
        step, name = bisect_left(starts, end) - 1, event.name
        if event.kind == OP and (place in (OPTIMIZING, LOADING)):
            name = f"{place}: {name}"
        while step >= 0 and (lasts := min(end, ends[step]) - max(start, starts[step])) > 0:
            first = id(event) not in seen
            seen.add(id(event))
            if place == COMMUNICATION:
                found.collectives[event.name] += lasts  # type: ignore[assignment]
            if event.kind == OP:
                ran = rans[step][place, name]
                ran[0] += first
                ran[1] += lasts
                found.updates += first and place == OPTIMIZING
                if first and id(event) in small:
                    own = origin.is_own(event)
                    found.small += not own
                    found.own_small += own
            step -= 1
