"""`profiler`: its measurements, lanes and checks; facts about torch are in its lesson.yml."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from torch.profiler import profile, record_function, schedule

from course_utils.lessons.profiler import cases
from course_utils.lessons.profiler.checks import check_bottlenecks, check_gpu_idle, check_self_time
from course_utils.lessons.profiler.profiled import lanes_of, timeline_of
from course_utils.records.lessons import find_lessons
from course_utils.records.notebook_files import read_notebook

STEP = cases.training_step(8, layers=1, rows=2)


@pytest.fixture(scope="module")
def trace() -> profile:
    with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=1)) as recorded:
        for _ in range(5):
            with record_function("part"):
                STEP()
            recorded.step()
    return recorded


# The measurements


def test_each_option_is_on_where_the_clock_runs():
    seen = []
    for label, options in cases.OPTIONS.items():
        case = cases.Profiled(lambda: seen.append(torch.autograd.profiler._is_profiler_enabled), options)
        cases.InsideProfile().sample(case, 1, "warm")
        assert seen[-1] is (options is not None), label


def test_a_table_of_a_profile_has_the_most_self_time_first(trace: profile):
    rows = cases.table_rows(trace, most=5)
    assert [row["self CPU"] for row in rows] == sorted((row["self CPU"] for row in rows), reverse=True)
    assert all(0 < row["self CPU"] <= row["CPU total"] for row in rows)


def pasted(name: str) -> dict:
    """The functions of the lesson's cell to paste that defines ``name``."""
    (lesson,) = (each for each in find_lessons() if each.slug == "profiler")
    sources = [cell["source"] for cell in read_notebook(lesson.path)["cells"] if f"def {name}(" in cell["source"]]
    scope: dict = {}
    exec("".join(sources), scope)
    return scope


def event(cat: str, name: str, ts: float, dur: float) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": 1, "args": {}}


def test_the_busy_share_to_paste_counts_overlaps_once_and_sets_communication_apart(tmp_path: Path):
    times = [("gemm", 0, 40), ("ncclDevKernel_AllReduce", 30, 30), ("gemm", 80, 20), ("relu", 85, 5)]
    some = [
        {"ph": "X", "cat": cat, "name": name, "ts": at, "dur": dur, "tid": 1, "args": {}}
        for cat, name, at, dur in [*(("kernel", *each) for each in times), ("cpu_op", "aten::mm", 0, 500)]
    ]
    for name, opened, events in (("some.json.gz", gzip.open, some), ("some.json", open, some), ("none.json", open, [])):
        with opened(tmp_path / name, "wt") as file:
            json.dump({"traceEvents": events}, file)
    busy = pasted("gpu_busy")["gpu_busy"]
    for some in (tmp_path / "some.json.gz", tmp_path / "some.json"):
        assert (busy(some), busy(some, "nccl")) == (0.8, 0.6)
    assert busy(tmp_path / "none.json") == 0.0


def test_a_trace_grows_with_what_is_recorded_and_numpy_is_in_no_operator():
    rows = {row["options"]: row for row in cases.trace_sizes(STEP)}
    assert rows["with stacks"]["events"] > rows["profiler"]["events"] == rows["with shapes"]["events"] > 0
    assert rows["profiler"]["bytes"] < rows["with shapes"]["bytes"] < rows["all four"]["bytes"]
    shares = {row["the step is"]: row["in no operator"] for row in cases.unnamed_shares(seconds=0.005)}
    assert shares["PyTorch"] < 0.5 < 0.95 < min(shares["NumPy"], shares["time.sleep"])


# Lanes


def test_the_lanes_of_a_profile_lie_inside_its_step(trace: profile):
    lanes = lanes_of(trace, "ProfilerStep#3")
    (spans,) = lanes.values()
    step = next(span for span in spans if span.text == "ProfilerStep#3")
    assert step.start_s == 0
    assert {"part", "linear"} <= {span.text for span in spans}
    assert {"label", "operator", "backward"} == {span.what for span in spans}
    assert all(0 <= span.start_s <= span.end_s <= step.end_s for span in spans)
    assert ">ProfilerStep#3</div>" in timeline_of(trace, "ProfilerStep#3", "A step").html()
    with pytest.raises(ValueError, match="No event of the profile is called 'ProfilerStep#9'"):
        lanes_of(trace, "ProfilerStep#9")


# Right answers of another form


def self_time_by_microseconds(events):
    """Each microsecond belongs to the call that began last of those that are open."""
    times = {name: 0 for name, _, _ in events}
    for at in range(max(end for _, _, end in events)):
        names = [name for name, start, end in events if start <= at < end]
        if names:
            times[names[-1]] += 1
    return times


def idle_by_microseconds(kernels, start, end):
    return sum(not any(a <= at < b for a, b in kernels) for at in range(start, end))


def test_right_answers_of_another_form():
    assert check_self_time(self_time_by_microseconds).outcome == "right"
    assert check_gpu_idle(idle_by_microseconds).outcome == "right"
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert check_bottlenecks(("clip_gradients", loader, "print")).outcome == "right"


def both_of_a_span_lose_it(events):
    """What the lesson's first solution did: of two calls with the same span, each lies inside the other."""
    inside = {i: [j for j, (_, a, b) in enumerate(events) if j != i and events[i][1] <= a and b <= events[i][2]]
              for i in range(len(events))}  # fmt: skip
    times = {}
    for i, (name, start, end) in enumerate(events):
        own = [j for j in inside[i] if not any(j in inside[k] for k in inside[i])]
        times[name] = times.get(name, 0) + end - start - sum(events[j][2] - events[j][1] for j in own)
    return times


def starts_are_not_clipped(kernels, start, end):
    idle, until = 0, start
    for first, last in sorted(kernels):
        idle += max(0, first - until)
        until = max(until, last)
    return idle + max(0, end - until)


@pytest.mark.parametrize(
    ("check", "answer", "hint"),
    [
        (check_self_time, both_of_a_span_lose_it, "same_span"),
        (check_gpu_idle, starts_are_not_clipped, "not_clipped"),
        (check_bottlenecks, ["cudaStreamSynchronize", "print", "clip_gradients"], "before_the_gap"),
    ],
)
def test_wrong_answers_that_once_passed(check, answer, hint: str):
    assert check(answer).hint == hint


@pytest.mark.parametrize(
    ("check", "answer", "words"),
    [
        (check_self_time, lambda events: [], "A dictionary is asked for"),
        (check_self_time, lambda events: {}, "has no 'step'"),
        (check_gpu_idle, lambda kernels, start, end: 0, "the GPU idles"),
        (check_bottlenecks, ["the loader"], "'the loader' is not in the list"),
        (check_bottlenecks, ["print"], "2 of the three are missing"),
        (check_bottlenecks, "print", "One text is no list"),
    ],
)
def test_wrong_answers_that_have_no_hint(check, answer, words: str):
    assert words in check(answer).words
