"""Autograd's anomaly mode in a trace: after each node of the backward pass it looks for NaN in what the node gave."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from own_program.traces.events import OP, Event, Trace
from own_program.traces.intervals import Span, Spans, covers, union

NODE = "autograd::engine::evaluate_function: "
_GIVES_NOTHING = f"{NODE}torch::autograd::AccumulateGrad"
_LEAST_CHECKED = 0.8  # of the nodes: a hook of the program's own checks fewer
_LATE_US = 0.5  # old traces round their times to that


@dataclass
class AnomalyMode:
    """What anomaly mode did, if it was on."""

    checks: int = 0  # for NaN
    spans: dict[object, Spans] = field(default_factory=dict)  # of each thread those of its checks

    def covers(self, call: Event | None) -> bool:
        """Whether a call is a part of its checks."""
        return call is not None and covers(self.spans.get(call.tid, []), call.start)


def anomaly_mode(trace: Trace) -> AnomalyMode:
    """Tell anomaly mode by its checks: ``isnan`` after nearly every node of the backward pass, read by ``item``.

    Source: https://github.com/pytorch/pytorch/blob/main/torch/csrc/autograd/engine.cpp, ``call_function``.
    """
    spans: dict[object, list[Span]] = defaultdict(list)
    node: dict[object, Event] = {}  # that a thread is in
    ran: dict[object, float] = {}  # since when its own work is done, and it is only checked
    begun: dict[object, float] = {}  # when its check began
    nodes, checked = 0, set()
    for event in trace.events[OP]:
        tid = event.tid
        if event.name.startswith(NODE):
            node[tid] = event
            ran.pop(tid, None)
            begun.pop(tid, None)
            nodes += event.name != _GIVES_NOTHING
        elif tid not in node or event.start > node[tid].end:
            continue
        elif NODE + event.name == node[tid].name:
            ran.setdefault(tid, event.end - _LATE_US)
        elif event.start < ran.get(tid, event.end):  # the node's own work, which may look for NaN itself
            continue
        elif event.name == "aten::isnan":
            begun[tid] = event.start
        elif event.name == "aten::item" and tid in begun:
            spans[tid].append((begun.pop(tid), event.end))
            checked.add(id(node[tid]))
    if not checked or len(checked) < _LEAST_CHECKED * nodes:
        return AnomalyMode()
    return AnomalyMode(sum(map(len, spans.values())), {tid: union(each) for tid, each in spans.items()})
