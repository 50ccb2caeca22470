"""Anomaly mode in a trace: told by its checks, named first, and what it adds is no reason to change anything else."""

from __future__ import annotations

from collections.abc import Callable

from own_program.traces.trace_report import read_trace
from tests.own_program.traces.made_up import NODE, MadeUp

OFF = "switch anomaly mode off"


def check(made: MadeUp, start: float) -> None:
    """A NaN check of anomaly mode, of 30 us."""
    made.op("aten::isnan", start, 9)
    made.op("aten::ne", start + 1, 6)
    made.op("aten::item", start + 21, 9)


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
        made.op(f"{NODE}torch::autograd::AccumulateGrad", start + 9000, 10)
    return made


def test_anomaly_mode_is_told_by_its_checks_and_bounded_by_them_alone():
    advice = read_trace(backward(lambda node: True).json()).plan[0]
    assert (advice.change, advice.lesson) == (OFF, "your_own_program")
    assert advice.saving == "at most 3% of a step, its checks alone"
    assert advice.because.startswith("10 NaN checks a step ran in the backward pass: 300 µs a step.")


def test_checks_of_the_program_are_no_anomaly_mode():
    made = backward(lambda node: node % 3 == 0)  # a gradient scaler's, a loss's, or a hook's on each module
    for number in range(4):
        check(made, 10_000 * number + 9200)  # nor is one after the backward pass
    assert OFF not in [advice.change for advice in read_trace(made.json()).plan]
