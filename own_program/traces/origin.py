"""Whose an operator is: the model's, which a compiler can take as a whole, or the program's own around it."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf

from own_program.traces.anomaly import NODE
from own_program.traces.events import MARK, OP, Event, Trace
from own_program.traces.intervals import Span, Spans, covers, union

_STEP = "ProfilerStep"
_NEITHER = re.compile(rf"{_STEP}|Optimizer\.|enumerate\(DataLoader")
_LAYER = re.compile(  # of a part that is frozen, say: the program's own code around a model calls these hardly ever
    r"aten::(linear|(add|b)?mm|matmul|\w*conv\w*|\w*_norm|embedding|scaled_dot_product\w*|lstm|gru|rnn_\w+)$"
)
_NONE, _MODEL, _OWN = "", "model", "own"


@dataclass
class Origin:
    """Stretches of operators with nothing but Python between them, by their thread: no optimizer, no DataLoader."""

    model: dict[object, Spans] = field(default_factory=dict)  # what a backward pass goes through
    own: dict[object, Spans] = field(default_factory=dict)  # the program's own code around the model
    known: bool = False  # whether the trace tells the two apart; else all are the model's
    calls: Counter[str] = field(default_factory=Counter)  # of operators by the program's own code

    def is_own(self, event: Event) -> bool:
        """Whether an event begins in code around the model."""
        return covers(self.own.get(event.tid, []), event.start)


def origin_of(trace: Trace) -> Origin:
    """Tell the model's operators by the node of the backward pass that each left behind.

    What stands between two of the model's is the model's, too, such as a mask that needs no gradient.
    """
    backward = [event for event in trace.events[OP] if event.name.startswith(NODE)]
    nodes, node_starts = {event.sequence for event in backward} - {None}, [event.start for event in backward]
    threads: dict[object, list[Event]] = defaultdict(list)
    for event in sorted((*trace.events[OP], *trace.events[MARK]), key=lambda event: (event.start, -event.end)):
        if event.kind == OP or _NEITHER.match(event.name):
            threads[event.tid].append(event)
    found = Origin(known=bool(nodes))
    for tid, events in threads.items():
        outer, left_node = _outermost(events, nodes)

        def whose(event: Event, left_node: set[int] = left_node) -> str:
            if event.kind != OP:
                return _NONE
            models = not found.known or event.name.startswith(NODE) or id(event) in left_node
            return _MODEL if models or _LAYER.match(event.name) else _OWN

        runs = [(key, list(run)) for key, run in groupby(outer, whose)]
        spans: dict[str, list[Span]] = {_NONE: [], _MODEL: [], _OWN: []}
        for place, (key, run) in enumerate(runs):
            begin, end = run[0].start, run[-1].end
            if key == _OWN and 0 < place < len(runs) - 1:
                (before, (*_, earlier)), (after, (later, *_)) = runs[place - 1], runs[place + 1]
                nodes_between = bisect_right(node_starts, later.start) - bisect_left(node_starts, earlier.start)
                # Python around the calls is theirs as well, unless it takes longer than they do.
                starts, lasts = earlier.start if earlier.name.startswith(_STEP) else earlier.end, end - begin
                if before == after == _MODEL and not nodes_between:
                    key, lasts = _MODEL, inf
                begin, end = max(starts, begin - lasts), min(later.start, end + lasts)
            found.calls.update(event.name for event in run if key == _OWN)
            spans[key].append((begin, end))
        found.model[tid], found.own[tid] = union(spans[_MODEL]), union(spans[_OWN])
    return found


def _outermost(events: Sequence[Event], nodes: set[int | None]) -> tuple[list[Event], set[int]]:
    """A thread's events that are in no other, and which of them left a node behind: the last with its number."""
    outer: list[Event] = []
    last: dict[int | None, int] = {}
    until = 0.0
    for event in events:
        if event.start >= until or not outer:
            outer.append(event)
            until = event.end if not event.name.startswith(_STEP) else until
        if event.sequence in nodes and not outer[-1].name.startswith(NODE):
            last[event.sequence] = id(outer[-1])
    return outer, set(last.values())
