"""Anomaly mode in a trace: told by its checks, named first, and what it adds is no reason to change anything else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from own_program.traces.report import TraceReport, read_trace
from tests.own_program.traces.made_up import GEMM, NODE, POINTWISE, MadeUp

ACCUMULATES = "torch::autograd::AccumulateGrad"
OFF = "switch anomaly mode off"


def read(made: MadeUp) -> TraceReport:
    report = read_trace(made.json())
    assert isinstance(report, TraceReport)
    repr(report)
    return report


def check(made: MadeUp, start: float, lasts: float = 30, any_: str = "aten::_is_any_true", tid: int = 1) -> None:
    """A NaN check as torch 2.13 makes it; `any_` as earlier versions do."""
    made.op("aten::isnan", start, lasts * 0.3, tid)
    made.op("aten::ne", start + 1, lasts * 0.2, tid)
    made.op(any_, start + lasts * 0.3, lasts * 0.4, tid)
    made.op("aten::item", start + lasts * 0.7, lasts * 0.3, tid)
    made.op("aten::_local_scalar_dense", start + lasts * 0.7 + 1, 1, tid)


def backward(checked: Callable[[int], bool], nodes: int = 10, inside: bool = False, **how: str) -> MadeUp:
    """Steps of 10 ms: a forward pass of 5 ms, and nodes of 400 us with a check after their work, or inside of it."""
    made = MadeUp()
    for number in range(4):
        made.step(number, 10_000 * number, 10_000)
        made.op("aten::addmm", 10_000 * number, 5000)
        for node in range(nodes):
            start = 10_000 * number + 5000 + 400 * node
            made.op(NODE + "MmBackward0", start, 400)
            made.op("MmBackward0", start + 1, 350 if inside else 300)
            made.op("aten::mm", start + 2, 290)
            if checked(node):
                check(made, start + 310, **how)
            made.op(NODE + ACCUMULATES, start + 400 * nodes, 10)
            made.op(ACCUMULATES, start + 400 * nodes + 1, 8)
    return made


@pytest.mark.parametrize("any_", ["aten::_is_any_true", "aten::any"])
def test_anomaly_mode_is_told_by_its_checks_and_bounded_by_them_alone(any_: str):
    advice = read(backward(lambda node: True, any_=any_)).plan[0]
    assert (advice.change, advice.lesson) == (OFF, "your_own_program")
    assert advice.saving == "at most 3% of a step, its checks alone"
    assert advice.because.startswith("10 NaN checks a step ran in the backward pass: 300 µs a step.")
    assert "torch.is_anomaly_enabled()" in advice.because
    assert "with_stack=True" in advice.because


def test_stacks_that_the_trace_shows_are_counted():
    made = backward(lambda node: True)
    for number in range(4):
        made.event("python_function", "torch/fx/traceback.py(497): format_stack", 10_000 * number + 10, 4000)
        made.event("python_function", "mine/traceback.py(7): helper", 10_000 * number + 4100, 500)
    advice = read(made).plan[0]
    assert advice.saving == "at most 43% of a step, its checks and stacks alone"
    assert "with_stack" not in advice.because


@pytest.mark.parametrize(
    "made",
    [
        backward(lambda node: False),
        backward(lambda node: node == 0),  # a gradient scaler's, or a loss's
        backward(lambda node: node % 3 == 0),  # a hook on each module, which is several nodes
        backward(lambda node: True, inside=True),  # a function of the program's own checks in its backward pass
    ],
)
def test_checks_of_the_program_are_no_anomaly_mode(made: MadeUp):
    assert read(made).plan == ()


def test_checks_outside_the_backward_pass_are_no_anomaly_mode():
    made = backward(lambda node: False)
    for number in range(4):
        for parameter in range(20):
            check(made, 10_000 * number + 9200 + 35 * parameter)
    assert OFF not in [advice.change for advice in read(made).plan]
    made = backward(lambda node: True)
    for number in range(4):
        check(made, 10_000 * number + 9200)
    assert read(made).plan[0].because.startswith("10 NaN checks")


def test_pythons_own_time_does_not_come_before_anomaly_mode():
    made = backward(lambda node: True)
    for event in made.events:
        if event["name"] == "aten::addmm":
            event["dur"] = 3000
    report = read(made)
    assert "In 30% of the time nothing was recorded" in " ".join(report.card().notes)
    assert report.card().words.endswith(f"). To change first: {OFF}.")


# On a GPU


def gpu(mode: bool) -> MadeUp:
    """Steps of 10 ms: kernels launched ahead; then nodes, each with a kernel, and a check that waits for it."""
    made = MadeUp()
    for number in range(4):
        zero = 10_000 * number
        made.step(number, zero, 10_000)
        for place in range(10):
            made.work(GEMM, zero + 10 + 500 * place, 500, launched=zero + 3 + 5 * place)
        made.op("aten::item", zero + 100, 4950)  # the program reads its loss
        made.event("cuda_runtime", "cudaStreamSynchronize", zero + 105, 4920)
        for node in range(10):
            start = zero + 5050 + 490 * node
            made.op(NODE + "MmBackward0", start, 490, tid=2)
            made.op("MmBackward0", start + 1, 20, tid=2)
            made.work(GEMM, start + 10, 300 if mode else 475, launched=start + 5, tid=2)
            if mode:
                check(made, start + 30, 450, tid=2)
                made.work(POINTWISE, start + 310, 65, launched=start + 40, tid=2)
                made.work(POINTWISE, start + 375, 65, launched=start + 60, tid=2)
                copy = "Memcpy DtoH (Device -> Pageable)"
                made.copy(copy, start + 442, 2, launched=start + 440, tid=2)
                made.event("cuda_runtime", "cudaStreamSynchronize", start + 443, 10, tid=2)
    return made


def test_on_a_gpu_the_waits_of_the_checks_are_theirs():
    report = read(gpu(mode=True))
    assert [advice.change for advice in report.plan] == [OFF]
    assert read(gpu(mode=False)).plan == ()
    # Of a node's 490 us, 300 compute. The rest is the check's work, or idle because of it.
    assert report.plan[0].saves == pytest.approx(10 * 190 / 10_000, abs=0.005)
    assert report.plan[0].because.startswith("10 NaN checks a step")


def test_the_hosts_own_work_after_the_last_check_is_none_of_it():
    made, own = MadeUp(), 3000
    for event in gpu(mode=True).events:
        if "ts" in event:
            number, within = divmod(event["ts"] - made.zero, 10_000)
            event = event | {"ts": made.zero + number * (10_000 + own) + within}
            event |= {"dur": 10_000 + own} if event["name"].startswith("ProfilerStep") else {}
        made.events.append(event)
    (advice,) = read(made).plan
    assert (advice.saves or 0) * (10_000 + own) == pytest.approx(1900, abs=150)
