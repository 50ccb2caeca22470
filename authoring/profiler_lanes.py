"""The lanes that `profiler` reads: a step of a real training on eight H100s, threads and streams, from its trace.

``python -m authoring.profiler_lanes TRACE`` writes ``course_utils/lessons/profiler/h100_lanes.json`` anew, from the
trace that ``course_utils/materials/h100_step.json`` names as the one after the change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from authoring.trace_lanes import TraceError, read_trace
from course_utils.lessons.profiler.h100_lanes import PATH
from course_utils.materials.h100_step import PATH as STEPS
from course_utils.records.files import write_whole

_STEP = "ProfilerStep#11"  # an odd step: it runs both optimizers
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_CLOSED_BELOW_US = 150  # gaps in the lanes that are shorter are closed: they would not be seen
_LONG_US = 500


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m authoring.profiler_lanes", description=__doc__)
    parser.add_argument("trace", type=Path)
    options = parser.parse_args(arguments)
    wanted = json.loads(STEPS.read_text(encoding="utf-8"))["source"]["files"]["after"]["sha256"]
    try:
        if hashlib.sha256(options.trace.read_bytes()).hexdigest() != wanted:
            raise TraceError(f"{options.trace} is another trace: its SHA-256 is not the one of the source.")
        stored = one_step(read_trace(options.trace))
    except (TraceError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    lanes = ",\n".join(f"  {json.dumps(lane)}: {json.dumps(spans)}" for lane, spans in stored["lanes_us"].items())
    write_whole(PATH, f'{{\n "numbers": {json.dumps(stored["numbers"])},\n "lanes_us": {{\n{lanes}\n }}\n}}\n')
    return 0


def one_step(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers, and spans by lane: ``[start, end, kind, text]``, in microseconds since the step began on the CPU."""
    marks = {event["cat"]: event for event in events if event["name"] == _STEP}
    label, on_gpu = marks["user_annotation"], marks["gpu_user_annotation"]
    zero, end, python = label["ts"], label["ts"] + label["dur"], label["tid"]
    launches = {_correlation(event): event for event in events if event.get("cat") in _LAUNCHES}
    device = [event for event in events if event.get("cat") in _DEVICE]
    # What was launched before the trace began has no launch in it.
    launched_at = {id(event): launches.get(_correlation(event), {"ts": -inf})["ts"] for event in device}
    own = [event for event in device if zero <= launched_at[id(event)] < end]
    first, last = min(event["ts"] for event in own), max(event["ts"] + event["dur"] for event in own)
    backward = next(event for event in events if event["name"] == "CompiledFunctionBackward" and zero < event["ts"])
    calls = [event for event in events if zero <= event["ts"] < end and event.get("tid") == python]
    forward = next(event for event in calls if event["name"].startswith("Torch-Compiled Region"))
    optimizers = [event for event in calls if event["name"].startswith("Optimizer.step")]
    lanes: dict[str, list[list[Any]]] = {
        "Python's thread": [_bar(label, zero, "label", _STEP), _bar(forward, zero, "call", "forward")],
        "thread pt_autograd_0": [_bar(backward, zero, "call", "backward")],
        "label on the GPU": [_bar(on_gpu, zero, "label", _STEP)],
        "stream 7": [],
        "stream 23": [],
    }
    lanes["Python's thread"] += [_bar(event, zero, "call", "") for event in optimizers]
    before = [event for event in device if zero < event["ts"] + event["dur"] and event["ts"] < first]
    for event in sorted({id(event): event for event in (*before, *own)}.values(), key=lambda event: event["ts"]):
        kind = "kernel of the step before"
        if launched_at[id(event)] >= zero:
            by = "Python's" if launches[_correlation(event)]["tid"] == python else "the autograd"
            kind = f"kernel from {by} thread"
        _add(lanes[f"stream {event['args']['stream']}"], _bar(event, zero, kind, ""))
    stalls = [event for event in events if event["name"] == "Command Buffer Full"]
    started = [launches[_correlation(event)]["dur"] for event in own]
    numbers = {
        "cpu_step_ms": label["dur"] / 1e3,
        "gpu_label_ms": on_gpu["dur"] / 1e3,
        "gpu_step_ms": (last - first) / 1e3,
        "behind_ms": (first - zero) / 1e3,
        "busy_ms": _busy(own) / 1e3,
        "launch_us": statistics.median(started),
        "longest_launch_us": max(started),
        "long_launches": sum(each > _LONG_US for each in started),
        "launches": len(started),
        "buffer_full": len(stalls),
        "events": len(events),
    }
    return {"numbers": {name: round(number, 3) for name, number in numbers.items()}, "lanes_us": lanes}


def _correlation(event: Mapping[str, Any]) -> Any:
    return event.get("args", {}).get("correlation")


def _bar(event: Mapping[str, Any], zero: float, kind: str, text: str) -> list[Any]:
    start = max(0.0, event["ts"] - zero)
    return [round(start, 1), round(event["ts"] + event["dur"] - zero, 1), kind, text]


def _add(lane: list[list[Any]], bar: list[Any]) -> None:
    """Append a bar, or make the last one longer."""
    if lane and lane[-1][2] == bar[2] and bar[0] <= lane[-1][1] + _CLOSED_BELOW_US:
        lane[-1][1] = max(lane[-1][1], bar[1])
    else:
        lane.append(bar)


def _busy(events: Sequence[Mapping[str, Any]]) -> float:
    """Microseconds in which at least one of the events ran."""
    total, until = 0.0, 0.0
    for start, end in sorted((event["ts"], event["ts"] + event["dur"]) for event in events):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


if __name__ == "__main__":
    sys.exit(main())
