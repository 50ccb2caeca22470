"""`torch_compile`: its cases and its picture; facts about torch are in its lesson.yml."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from course_utils import recorded
from course_utils.lessons.torch_compile import pictures
from course_utils.lessons.torch_compile.cases import copies, modes, near, pays_at


class Layer(nn.Module):
    def forward(self, x: torch.Tensor, read_now: bool) -> Any:
        return (x * 2).max().item() if read_now else (x * 2).max()


class Watched(nn.ModuleList):
    def forward(self, x: torch.Tensor, read_now: bool) -> list[Any]:
        peaks = []
        for layer in self:
            peaks.append(layer(x, read_now))
        return peaks


def test_a_copy_is_compiled_whole_although_the_loop_of_the_other_is_given_up():
    torch.compiler.reset()
    model, x, graphs = Watched(Layer() for _ in range(5)), torch.ones(3), []
    stops, once = copies(model, 2)
    torch.compile(stops, backend="eager")(x, True)
    compiled = torch.compile(once, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True)
    assert compiled(x, False) == model(x, False) == [2] * 5
    assert [sum(node.target == "max" for node in graph.graph.nodes) for graph in graphs] == [5]


def test_a_workload_pays_at_a_call_only_if_it_is_shown_to_save():
    def case(verdict: str, ratio: float) -> Any:
        eager = {"eager": SimpleNamespace(median_s=0.01)}
        interval = SimpleNamespace(ends=(ratio - 0.1, ratio + 0.1))
        return SimpleNamespace(comparison=eager, verdict=verdict, ratio=ratio, interval=interval)

    assert pays_at(1.0, case("FASTER", 0.5)) == {"pays at call": 199, "by the interval": "166 to 249"}
    for calls in (199, 198):
        assert (1.0 + (calls - 1) * 0.005 <= calls * 0.01) == (calls == 199)
    assert set(pays_at(1.0, case("UNCLEAR", 0.9)).values()) == {None}


def test_the_picture_says_when_a_training_is_even_by_what_came_before_it():
    start, pays = (recorded(f"torch_compile/{name}", machine="nvidia-h200") for name in ("start", "break_even"))
    case = recorded("torch_compile/workloads", machine="nvidia-h200")["training step"]["compiled"]
    rows = pictures.even(case, pays).rows
    saved_s = case.comparison["eager"].median_s - case.median_s
    first_s = start["empty"]["torch.compile()"] + pays["training step"]["first of all calls"]
    assert rows[0].bar.high == pytest.approx(first_s / saved_s, rel=0.01)
    filled_s = start["filled"]["torch.compile()"] + case.measurement.first_call_s
    assert rows[1].bar.high == pytest.approx(filled_s / saved_s, rel=0.01)
    assert rows[2].bar.high == pays["training step"]["pays at call"]


def test_the_check_of_the_modes_finds_another_step():
    cases = modes("cpu")
    first = cases["eager"].build()()
    assert near(first, cases["eager"].build()())
    assert not near(first, [1.2 * part for part in first])
