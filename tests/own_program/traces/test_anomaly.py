"""Anomaly mode in a trace: told by its checks, named first, and what it adds is no reason to change anything else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from own_program.traces.trace_report import TraceReport, read_trace
from tests.own_program.traces.made_up import GEMM, NODE, MadeUp

ACCUMULATES = "torch::autograd::AccumulateGrad"
OFF = "switch anomaly mode off"


def read(made: MadeUp) -> TraceReport:
    report = read_trace(made.json())
    assert isinstance(report, TraceReport)
    repr(report)
    return report


def check(made: MadeUp, start: float, lasts: float = 30, tid: int = 1) -> None:
    """A NaN check of anomaly mode."""
    made.op("aten::isnan", start, lasts * 0.3, tid)
    made.op("aten::ne", start + 1, lasts * 0.2, tid)
    made.op("aten::item", start + lasts * 0.7, lasts * 0.3, tid)


def backward(checked: Callable[[int], bool]) -> MadeUp:
    """Steps of 10 ms: a forward pass of 5 ms, ten nodes of 400 us, and a check after their work."""
    made = MadeUp()
    for start in made.steps(4, 10_000):
        made.op("aten::addmm", start, 5000)
        for node in range(10):
            at = start + 5000 + 400 * node
            made.op(NODE + "MmBackward0", at, 400)
            made.op("MmBackward0", at + 1, 300)
            made.op("aten::mm", at + 2, 290)
            if checked(node):
                check(made, at + 310)
        made.op(NODE + ACCUMULATES, start + 9000, 10)
    return made


def test_anomaly_mode_is_told_by_its_checks_and_bounded_by_them_alone():
    advice = read(backward(lambda node: True)).plan[0]
    assert (advice.change, advice.lesson) == (OFF, "your_own_program")
    assert advice.saving == "at most 3% of a step, its checks alone"
    assert advice.because.startswith("10 NaN checks a step ran in the backward pass: 300 µs a step.")


@pytest.mark.parametrize(
    "made",
    [
        backward(lambda node: False),
        backward(lambda node: node % 3 == 0),  # a gradient scaler's, a loss's, or a hook's on each module
    ],
)
def test_checks_of_the_program_are_no_anomaly_mode(made: MadeUp):
    for number in range(4):
        check(made, 10_000 * number + 9200)  # nor is one after the backward pass
    assert OFF not in [advice.change for advice in read(made).plan]


def test_on_a_gpu_the_checks_are_told_without_the_nodes_own_kernels():
    made = MadeUp()
    for number in range(4):
        zero = 10_000 * number
        made.step(number, zero, 10_000)
        made.work(GEMM, zero + 10, 5000, launched=zero + 3)
        for node in range(10):
            start = zero + 5050 + 490 * node
            made.op(NODE + "MmBackward0", start, 490, tid=2)
            made.op("MmBackward0", start + 1, 20, tid=2)
            made.work(GEMM, start + 10, 300, launched=start + 5, tid=2)
            check(made, start + 30, 450, tid=2)
            made.event("cuda_runtime", "cudaStreamSynchronize", start + 443, 10, tid=2)
    (advice,) = read(made).plan
    assert advice.change == OFF
    assert advice.saves == pytest.approx(10 * 170 / 10_000, abs=0.005)
