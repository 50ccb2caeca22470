"""The lanes of training steps, from a profiler's traces: when a GPU computed, when it communicated, and when both.

``python -m authoring.trace_lanes BEFORE AFTER`` writes the steps in ``course_utils/materials/h100_step.json`` anew,
from the two traces that its ``source`` names; where to get them, and what is known of them, stands there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course_utils.materials.h100_step import PATH
from course_utils.records.files import write_whole
from course_utils.traces.events import RawTrace, TraceError
from course_utils.traces.intervals import Spans, between, common, length, union

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m authoring.trace_lanes", description=__doc__)
    parser.add_argument("before", type=Path, help="the trace before communication was overlapped")
    parser.add_argument("after", type=Path, help="the trace after")
    options = parser.parse_args(arguments)
    stored = json.loads(PATH.read_text(encoding="utf-8"))
    try:
        for name, of in stored["source"]["files"].items():
            path = getattr(options, name)
            if hashlib.sha256(path.read_bytes()).hexdigest() != of["sha256"]:
                raise TraceError(f"{path} is not {of['path']}: its SHA-256 is another one.")
            stored[name] = step_lanes(read_trace(path), stored["merged_below_us"])
    except (TraceError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    write_whole(PATH, as_text(stored))
    return 0


def as_text(stored: dict[str, Any]) -> str:
    """The file's text: an entry in a line, and so does each step."""
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in stored.items()]
    return "{\n" + ",\n".join(lines).replace('{"number"', '\n  {"number"') + "\n}\n"


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a trace in Chrome's format, compressed or not.

    Raises:
        TraceError: if it is none.
    """
    raw = RawTrace(path)
    events = [event for event in raw if event.get("ph") == "X"]
    if raw.flaws or not events:
        raise TraceError(f"{path} is no trace of PyTorch's profiler, or a damaged one. {' '.join(raw.flaws)}".rstrip())
    return events


def step_lanes(events: Sequence[dict[str, Any]], merged_below_us: float) -> list[dict[str, Any]]:
    """What the device did in each step that the trace covers, in microseconds from the step's first device event.

    A device event belongs to the step that launched it (its correlation id says which), whenever it ran: the device
    lags behind. A step lasts until the next one's first device event; the last, until its own end.
    Totals are worked out from all events. For the lanes, neighbours closer than ``merged_below_us`` become one.

    Raises:
        TraceError: if there are no steps, or nothing ran or communicated on the device in one.
    """
    marks = [event for event in events if event.get("cat") == "user_annotation"]
    steps = sorted((mark["ts"], mark["ts"] + mark["dur"], mark["name"]) for mark in marks if _number(mark["name"]))
    if not steps:
        raise TraceError("The trace has no step: profile with a schedule, and call step() after each.")
    optimizers = sorted(mark["ts"] for mark in marks if mark["name"].startswith("Optimizer.step#"))
    launched = {_correlation(event): event["ts"] for event in events if event.get("cat") in _LAUNCHES}
    device = [event for event in events if event.get("cat") in _DEVICE]
    communicates = {event["args"]["stream"] for event in device if event["name"].startswith("nccl")}
    computing: Spans = []
    own: dict[str, dict[bool, list[tuple[float, float, float]]]] = defaultdict(lambda: {True: [], False: []})
    for event in device:
        span, sends = (event["ts"], event["ts"] + event["dur"]), event["args"]["stream"] in communicates
        if not sends:
            computing.append(span)
        at = launched.get(_correlation(event), -1.0)
        place = bisect_right(steps, at, key=lambda step: step[0]) - 1
        if place >= 0 and at < steps[place][1]:
            own[steps[place][2]][sends].append((*span, at))
    for _, _, name in steps:
        if not all(own[name].values()):
            raise TraceError(f"{name} launched no {'computation' if own[name][True] else 'NCCL kernel'} in this trace.")
    computing = union(computing)
    firsts = [min(start for of in own[name].values() for start, *_ in of) for *_, name in steps]
    lanes = []
    for index, (begins, _, name) in enumerate(steps):
        compute, nccl = (union((start, end) for start, end, _ in own[name][sends]) for sends in (False, True))
        first = firsts[index]
        end = firsts[index + 1] if index + 1 < len(steps) else max(compute[-1][1], nccl[-1][1])
        hidden, exposed = common(nccl, computing), common(nccl, between(computing))
        lane = union(hidden, merged_below_us)
        update = next((start for start in optimizers if start >= begins), end)
        totals = {
            "span": end - first,
            "busy": length(union([*compute, *nccl])),
            "compute": length(compute),
            "nccl": length(nccl),
            "overlapped": length(hidden),
            "exposed": length(exposed),
        }
        lanes.append(
            {
                "number": _number(name),
                "totals_us": {what: round(length, 1) for what, length in totals.items()},
                "backward_ends_us": round(max(end for _, end, at in own[name][False] if at < update) - first, 1),
                "compute_us": _since(first, union(compute, merged_below_us)),
                "hidden_us": _since(first, lane),
                "exposed_us": _since(first, common(union(nccl, merged_below_us), between(lane))),
            }
        )
    return lanes


def _number(name: str) -> int:
    word, _, number = name.partition("#")
    return int(number) if word == "ProfilerStep" else 0


def _correlation(event: dict[str, Any]) -> Any:
    return event.get("args", {}).get("correlation")


def _since(first: float, spans: Spans) -> list[list[float]]:
    return [[round(start - first, 1), round(end - first, 1)] for start, end in spans]


if __name__ == "__main__":
    sys.exit(main())
