"""Where the time of the CPU's steps goes, for a trace in which no device ran."""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from own_program.traces.anomaly import AnomalyMode
from own_program.traces.events import HOW, MARK, OP, PYTHON, Event, Trace, TraceFileError
from own_program.traces.gpu_time import ANOMALY, COMPILES, HIDDEN, collective_of
from own_program.traces.intervals import Span, Spans, clip, common, covers, length, union, without
from own_program.traces.names import LOADS, is_own_code
from own_program.traces.origin import Origin
from own_program.traces.profiled_steps import ProfiledSteps, cpu_steps, marked_steps

OPERATORS, COMMUNICATION, LOADING = "operators", "communication", "loading data"
OPTIMIZING, COMPILING, ELSEWHERE = "the optimizer", "compiling", "operators of other threads"
PYTHON_CODE = "Python, or nothing recorded"
CPU_PLACES = (OPERATORS, COMMUNICATION, LOADING, OPTIMIZING, COMPILING, ELSEWHERE, PYTHON_CODE)
# What of a step is told beside: it lies in the places above.
SMALL = "small operators"
OF_MODEL, OF_OWN = "small operators of the model, and Python between", "operators outside the model, and Python around"
_SMALL_US = 20.0
_SPECIAL = (  # whatever runs inside them
    (COMPILING, COMPILES),
    (LOADING, LOADS),
    (OPTIMIZING, re.compile(r"Optimizer\.(step|zero_grad)")),
    (COMMUNICATION, re.compile(r"(nccl|gloo|mpi|ucc|xccl|hccl):|c10d::|_c10d_functional")),
)
_KEPT = {place for place, _ in _SPECIAL}

_Piece = tuple[float, float, str, Event]  # from when to when one event was the innermost of its thread, and its place


@dataclass
class CpuTime:
    """The CPU's steps, with where their time went; what is counted is of all steps together."""

    steps: ProfiledSteps
    functions: Counter[str]  # Python's, in microseconds in which nothing else was recorded
    for_gpu: bool  # whether there was a device, which the recording left out
    collectives: Counter[str] = field(default_factory=Counter)
    small: int = 0  # operators of the model that take next to nothing each
    own_small: int = 0  # and those outside the model


def cpu_time(trace: Trace, anomaly: AnomalyMode, origin: Origin) -> CpuTime:
    """Work out where the time of each step on the CPU went: each moment belongs to the innermost event of its thread.

    Where the step's own thread records nothing, what another thread does counts: the program waits for it.

    Raises:
        TraceFileError: nothing in the trace took any time.
    """
    threads: dict[object, list[Event]] = defaultdict(list)
    for event in (*trace.events[OP], *trace.events[MARK]):
        threads[event.tid].append(event)
    steps_of = {tid: marked_steps(events) for tid, events in threads.items()}
    if not any(event.end > event.start and not marked_steps([event]) for each in threads.values() for event in each):
        raise TraceFileError(
            f"{trace.name} holds no operator and no work of a GPU that took any time. A later cycle of the "
            f"schedule may have written over what was recorded: repeat=1 forbids it. {HOW}."
        )
    # Without steps, the thread that did most.
    main = max(threads, key=lambda tid: (len(steps_of[tid]), length(union(event.span for event in threads[tid]))))
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
    sends = union(of_main[COMMUNICATION] + of_others[COMMUNICATION])
    classes = {
        SMALL: union((start, end) for start, end, _, event in own if id(event) in small),
        OF_OWN: origin.own.get(main, []),
        ANOMALY: union(span for spans in anomaly.spans.values() for span in spans),
    }
    steps, silent = cpu_steps(trace), []
    for step in steps.all:
        step.places = dict.fromkeys(CPU_PLACES, 0.0)
        left: Spans = [step.span]
        for place, spans in lanes:
            taken = common(left, clip(spans, step.span))
            step.places[place] += length(taken)
            left = without(left, taken)
        step.places[PYTHON_CODE] = length(left)
        silent += left
        step.beside = {what: length(clip(spans, step.span)) for what, spans in classes.items()}
        between = union([*clip(classes[SMALL], step.span), *left])
        step.beside[OF_MODEL] = length(common(between, origin.model.get(main, [])))
        step.beside[HIDDEN] = max(0.0, round(length(clip(sends, step.span)) - step.places[COMMUNICATION], 3))
    found = CpuTime(steps, own_functions(trace, main, silent), trace.has_gpu_side)
    _count(found, everything, small, origin)
    return found


def own_functions(trace: Trace, tid: object, spans: Spans, begun_inside: bool = False) -> Counter[str]:
    """Which of the program's own functions a thread was in: microseconds of some spans, by the innermost of them."""
    found: Counter[str] = Counter()
    own = [event for event in trace.events[PYTHON] if event.tid == tid and is_own_code(event.name)]
    if begun_inside:
        own = [event for event in own if covers(spans, event.start)]
    for start, end, _, event in _pieces(own):  # by themselves: they begin and end across annotations
        found[event.name] += length(clip(spans, (start, end)))  # type: ignore[assignment]
    return +found


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


def _count(found: CpuTime, pieces: Sequence[_Piece], small: set[int], origin: Origin) -> None:
    steps = found.steps.all
    starts = [step.span[0] for step in steps]
    seen: set[int] = set()
    for start, end, place, event in pieces:
        at = bisect_left(starts, end) - 1
        while at >= 0 and (lasts := min(end, steps[at].span[1]) - max(start, starts[at])) > 0:
            first = id(event) not in seen
            seen.add(id(event))
            if place == COMMUNICATION:
                found.collectives[collective_of(event.name) or event.name] += lasts  # type: ignore[assignment]
            if event.kind == OP:
                ran = steps[at].ran[place, event.name]
                ran[0] += first
                ran[1] += lasts
                if first and id(event) in small:
                    own = origin.is_own(event)
                    found.small += not own
                    found.own_small += own
            at -= 1
