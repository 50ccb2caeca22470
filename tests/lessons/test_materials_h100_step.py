"""The lanes of published training steps: worked out from a trace, stored, and drawn."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from authoring import trace_lanes
from authoring.lesson_files import load_lessons
from authoring.trace_lanes import TraceError, as_text, main, read_trace, step_lanes
from course_utils.materials.h100_step import PATH, Step, h100_steps
from course_utils.show.canvas import WIDTH_IN
from tests.figure_checks import problems_of_texts

STEPS = h100_steps()
EVERY = {f"{step.number} {when}": step for when in ("before", "after") for step in getattr(STEPS, when)}


def mark(name: str, start: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": start, "dur": end - start}


def ran(correlation: int, launched: float | None, start: float, end: float, nccl: bool = False) -> list[dict[str, Any]]:
    """A launch on the CPU, if the trace has it, and the kernel that it launched."""
    args = {"correlation": correlation, "stream": 23 if nccl else 7}
    name = "ncclDevKernel_AllGather" if nccl else "gemm"
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": launched, "dur": 1, "args": args}
    kernel = {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": end - start, "args": args}
    return [kernel] if launched is None else [launch, kernel]


# Two steps of a CPU that is far ahead of its device.
MADE_UP = [
    {"ph": "M", "name": "process_name"},
    mark("ProfilerStep#10", 0, 100),
    mark("ProfilerStep#11", 100, 200),
    mark("Optimizer.step#SGD.step", 60, 70),
    mark("Optimizer.step#SGD.step", 160, 170),
    *ran(1, None, 0, 90),  # launched before the trace began
    *ran(2, 10, 1000, 1100),
    *ran(3, 20, 1103, 1200),  # three microseconds later: one piece of the lane, two of the total
    *ran(4, 50, 1150, 1250, nccl=True),  # half of it beside the kernel before
    *ran(5, 65, 1260, 1300),  # the optimizer's
    *ran(6, 70, 1480, 1520, nccl=True),  # launched in step 10; half of it runs beside step 11, which hides it
    *ran(7, 110, 1500, 1600),
    *ran(8, 120, 1650, 1700, nccl=True),
]


def test_totals_and_lanes_of_a_made_up_trace():
    first, second = step_lanes(MADE_UP, merged_below_us=5)
    assert first == {
        "number": 10,
        "totals_us": {"span": 500, "busy": 327, "compute": 237, "nccl": 140, "overlapped": 70, "exposed": 70},
        "backward_ends_us": 200,
        "compute_us": [[0, 200], [260, 300]],
        "hidden_us": [[150, 200], [500, 520]],
        "exposed_us": [[200, 250], [480, 500]],
    }
    # Its span ends with its own last event: there is no next step.
    assert second["totals_us"] == {
        "span": 200, "busy": 150, "compute": 100, "nccl": 50, "overlapped": 0, "exposed": 50
    }  # fmt: skip
    assert step_lanes(MADE_UP, merged_below_us=0)[0]["compute_us"] == [[0, 100], [103, 200], [260, 300]]


def test_events_may_stand_in_any_order():
    assert step_lanes(MADE_UP[::-1], 5) == step_lanes(MADE_UP, 5)


def test_the_script_writes_the_file_that_the_figure_reads(tmp_path, monkeypatch, capsys):
    traces = [tmp_path / "before.json.gz", tmp_path / "after.json"]
    traces[0].write_bytes(gzip.compress(json.dumps({"traceEvents": MADE_UP}).encode()))
    traces[1].write_text(json.dumps({"traceEvents": MADE_UP}))
    stored = json.loads(PATH.read_text(encoding="utf-8"))
    for path, of in zip(traces, stored["source"]["files"].values(), strict=True):
        of["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    target = tmp_path / "steps.json"
    target.write_text(as_text(stored), encoding="utf-8")
    monkeypatch.setattr(trace_lanes, "PATH", target)
    assert main([*map(str, traces)]) == 0
    written = json.loads(target.read_text(encoding="utf-8"))
    assert written == stored | dict.fromkeys(("before", "after"), step_lanes(MADE_UP[1:], stored["merged_below_us"]))
    steps = h100_steps(target)
    assert [step.number for step in steps.after] == [10, 11]
    assert steps.before[0].exposed_s == pytest.approx(70e-6)

    before = target.read_bytes()
    assert main([*map(str, reversed(traces))]) == 1  # the two mixed up
    assert "its SHA-256 is another one" in capsys.readouterr().err
    assert target.read_bytes() == before


def test_the_stored_file_is_as_the_script_writes_it():
    text = PATH.read_text(encoding="utf-8")
    assert as_text(json.loads(text)) == text
    assert len(text) < 60_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x1f\x8b\x08 cut off", "no trace"),
        (b'{"traceEvents": [', "no trace"),
        (b"[1, 2]", "no trace"),
        (b'{"events": []}', "no trace"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(content: bytes, message: str, tmp_path: Path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "no step"),
        (MADE_UP[1:3], "#10 launched no"),
        ([event for event in MADE_UP if not event["name"].startswith("nccl")], "launched no NCCL kernel"),
    ],
)
def test_a_trace_without_what_is_asked_is_refused(events: list[dict[str, Any]], message: str):
    with pytest.raises(TraceError, match=message):
        step_lanes(events, 5)


@pytest.mark.parametrize("content", ["{", "[]", '{"before": [], "after": []}', '{"before": [{"number": 1}]}'])
def test_a_damaged_store_is_refused(content: str, tmp_path: Path):
    path = tmp_path / "steps.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"steps\.json does not hold the lanes of steps"):
        h100_steps(path)


@pytest.mark.parametrize("step", EVERY.values(), ids=EVERY)
def test_stored_totals_and_lanes_agree(step: Step):
    rounding = 0.3e-6
    assert step.overlapped_s + step.exposed_s == pytest.approx(step.nccl_s, abs=rounding)
    assert step.compute_s + step.exposed_s == pytest.approx(step.busy_s, abs=rounding)
    assert step.busy_s <= step.span_s
    assert 0 < step.backward_ends_s < step.span_s
    for lane in (step.compute, step.hidden, step.exposed):
        assert all(start < end for start, end in lane)
        assert all(end < start for (_, end), (start, _) in pairwise(lane))
    # Closed gaps between small kernels make the lane of what is hidden longer than its total, and the other shorter.
    hidden_s, exposed_s = (math.fsum(end - start for start, end in lane) for lane in (step.hidden, step.exposed))
    assert step.overlapped_s < hidden_s < 1.25 * step.overlapped_s
    assert exposed_s < step.exposed_s
    assert hidden_s + exposed_s == pytest.approx(step.nccl_s, rel=0.02)


def test_the_stored_steps_are_of_both_kinds_and_show_what_was_changed():
    assert {step.number % 2 for step in STEPS.before} == {0, 1}
    assert [step.number for step in STEPS.before] == [step.number for step in STEPS.after]
    hidden = STEPS.changes_s("overlapped_s")
    odd, even = ([change for number, change in hidden.items() if number % 2 == kind] for kind in (1, 0))
    assert min(odd) > 10 * max(map(abs, even))
    # In odd steps communication begins before the backward pass ends, and it never did before.
    assert all(step.hidden[0][0] < step.backward_ends_s for step in STEPS.after if step.number % 2)
    assert all(min(s.hidden[0][0], s.exposed[0][0]) > s.backward_ends_s for s in STEPS.before)


def test_the_published_row_has_the_numbers_of_the_lanes():
    (row,) = (row for lesson in load_lessons() for row in lesson.published if row.id == "nanogpt_hooks_h100")
    after = EVERY["11 after"]
    expected = {"early_ms": after.backward_ends_s - after.hidden[0][0]}
    for number, place in ((11, ""), (13, "_13")):
        for when in ("before", "after"):
            step = EVERY[f"{number} {when}"]
            expected[f"hidden_{when}{place}_ms"] = step.overlapped_s
            expected[f"exposed_{when}{place}_ms"] = step.exposed_s
    assert {name: value / 1e3 for name, value in row.values.items()} == pytest.approx(expected, abs=1e-7)
    assert (row.source.commit, row.date) == (STEPS.source["commit"], STEPS.source["measured"])


def test_what_runs_saved_has_an_interval_around_it():
    mean, low, high = STEPS.saved_in_runs_s()
    assert low < mean < high
    total_s = sum(STEPS.runs["before_s"]) / 4 - sum(STEPS.runs["after_s"]) / 10
    assert mean * STEPS.runs["steps"] == pytest.approx(total_s)


def test_the_numbers_of_the_text_are_those_of_the_data(tmp_path: Path):
    stored = json.loads(PATH.read_text(encoding="utf-8"))
    stored["after"][1]["totals_us"]["overlapped"] += 1000
    path = tmp_path / "steps.json"
    path.write_text(json.dumps(stored), encoding="utf-8")
    changed = h100_steps(path)
    assert "(+0.44 and +0.43 ms)" in STEPS.reading.replace("\n", " ")
    assert "(+1.44 and +0.43 ms)" in changed.reading.replace("\n", " ")
    assert "0.94 ms more" in changed.plot().texts[0].get_text().replace("\n", " ")
    assert "3.48 ms hidden" in changed.plot().alt


def test_the_figure_is_readable_described_and_shows_itself():
    figure = STEPS.plot()
    assert problems_of_texts(figure) == []
    assert figure.get_size_inches()[0] == WIDTH_IN
    assert any(patch.get_hatch() for patch in figure.legends[0].get_patches())  # not by colour alone
    for step in (*STEPS.before, *STEPS.after):
        assert (f"{1e3 * step.exposed_s:.2f} ms exposed" in figure.alt) == (step.number % 2 == 1)
    data, metadata = STEPS._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG")
    assert metadata["image/png"]["alt"] == data["text/plain"].removeprefix("Figure: ")
    assert f"step 13 after{1e3 * STEPS.after[-1].span_s:>14.2f}" in repr(STEPS)
