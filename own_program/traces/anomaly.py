"""Autograd's anomaly mode in a trace: after each node of the backward pass it looks for NaN in what the node gave."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from math import inf

from own_program.traces.events import OP, PYTHON, Event, Trace
from own_program.traces.intervals import Span, Spans, union

_NODE = "autograd::engine::evaluate_function: "
_GIVES_NOTHING = "torch::autograd::AccumulateGrad"
_LEAST_CHECKED = 0.8  # of the nodes: a hook of the program's own checks fewer
_LATE_US = 0.5  # old traces round their times to that
_NOTES_A_STACK = re.compile(r"traceback\.py\(\d+\): format_stack$")


def begins_in(spans: Spans, event: Event) -> bool:
    """Whether an event begins in one of some sorted, disjoint spans."""
    place = bisect_right(spans, (event.start, inf)) - 1
    return place >= 0 and event.start < spans[place][1]


@dataclass
class AnomalyMode:
    """What anomaly mode did, if it was on."""

    checks: int = 0  # for NaN
    spans: dict[object, Spans] = field(default_factory=dict)  # of each thread: its checks, and noting stacks
    stacks: bool = False  # whether stacks are seen to be noted, as a trace with Python's functions shows

    def covers(self, event: Event) -> bool:
        """Whether an event is a part of it."""
        return begins_in(self.spans.get(event.tid, []), event)


def anomaly_mode(trace: Trace) -> AnomalyMode:
    """Tell anomaly mode by its checks: ``isnan`` after nearly every node of the backward pass, read by ``item``.

    Source: https://github.com/pytorch/pytorch/blob/main/torch/csrc/autograd/engine.cpp, ``call_function``.
    """
    threads: dict[object, list[Event]] = defaultdict(list)
    for event in trace.events[OP]:
        threads[event.tid].append(event)
    spans: dict[object, list[Span]] = defaultdict(list)
    nodes = checked = checks = 0
    for tid, events in threads.items():
        name, end, ran, begun, counted = "", -inf, inf, None, False
        for event in events:
            if event.name.startswith(_NODE):
                name, end, ran, begun, counted = event.name.removeprefix(_NODE), event.end, inf, None, False
                nodes += name != _GIVES_NOTHING
            elif event.start > end:
                continue
            elif event.name == name and ran == inf:
                ran = event.end - _LATE_US
            elif event.start < ran:  # the node's own work, which may look for NaN itself
                continue
            elif event.name == "aten::isnan":
                begun = event.start
            elif event.name == "aten::item" and begun is not None:
                spans[tid].append((begun, event.end))
                checks += 1
                checked += not counted
                begun, counted = None, True
    if not checked or checked < _LEAST_CHECKED * nodes:
        return AnomalyMode()
    noted = [event for event in trace.events[PYTHON] if _NOTES_A_STACK.search(event.name)]
    for event in noted:
        spans[event.tid].append(event.span)
    return AnomalyMode(checks, {tid: union(each) for tid, each in spans.items()}, bool(noted))
