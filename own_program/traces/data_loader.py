"""What a program does inside its DataLoader, as far as the main process shows it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from own_program.traces.cpu_time import own_functions
from own_program.traces.events import MARK, OP, Trace
from own_program.traces.intervals import Spans, covers, length, union
from own_program.traces.names import LOADS

_FETCHES = re.compile(r"aten::(select|index|slice|narrow|index_select|unbind)$")
_COLLATES = re.compile(r"aten::(stack|cat|item|detach|lift_fresh|resolve_conj|resolve_neg|empty\w*)$")
_LEAST_FETCHES = 8  # a batch
_MOST_PER_FETCH_US = 100.0  # with Python's part: a sample that is read or decoded takes longer
_MOST_OTHERS = 0.25  # operators for each fetch: more of them prepare the samples


@dataclass
class DataLoaderTime:
    """What was seen inside the DataLoader."""

    spans: Spans
    alone: bool  # whether it loads in the main process, so that the trace shows what
    fetches: int  # calls that picked a sample's part from tensors in memory, if the loader does no more; else 0
    operator: str  # which was called for that
    functions: Counter[str]  # the program's own inside it, in microseconds; empty without stacks


def data_loader_time(trace: Trace) -> DataLoaderTime:
    """Look into the DataLoader of a trace."""
    marks = [event for kind in (MARK, OP) for event in trace.events[kind] if LOADS.match(event.name)]
    spans = union(mark.span for mark in marks)
    threads, until = {mark.tid for mark in marks}, 0.0
    operators: Counter[str] = Counter()
    for event in trace.events[OP] if marks else ():
        if event.tid in threads and event.start >= until and not LOADS.match(event.name):
            until = event.end
            operators[event.name] += covers(spans, event.start)
    alone = any("_SingleProcess" in mark.name for mark in marks)
    fetched = {name: count for name, count in operators.items() if _FETCHES.match(name)}
    fetches = sum(fetched.values())
    others = operators.total() - fetches - sum(count for name, count in operators.items() if _COLLATES.match(name))
    cheap = length(spans) <= _MOST_PER_FETCH_US * fetches and others <= _MOST_OTHERS * fetches
    if not (alone and cheap and fetches >= _LEAST_FETCHES * len(marks)):
        fetches = 0
    functions = sum((own_functions(trace, tid, spans, begun_inside=True) for tid in threads), Counter[str]())
    return DataLoaderTime(spans, alone, fetches, max(fetched, key=fetched.__getitem__, default=""), functions)
