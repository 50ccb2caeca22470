"""`torch_compile` on graphs in loops and past the limit, and its own cases; facts about torch are in its lesson.yml."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from course_utils.lessons.torch_compile.cases import Llama, counted, pays_at, with_own_code

SETTINGS = {"factor": 1}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch.compiler.reset()
    torch._logging.set_logs(dynamo=logging.ERROR)
    # `flash_attention` raises the limit for the whole process, which other tests of this one may have done.
    with torch._dynamo.config.patch(recompile_limit=8):
        yield
    torch._logging.set_logs()
    torch.compiler.reset()


class Counting:
    """A backend that compiles nothing and keeps its graphs."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward


def test_a_break_in_a_loop_spoils_the_code_object_and_no_other() -> None:
    class Layer(nn.Module):
        def forward(self, x: torch.Tensor, read_now: bool) -> Any:
            return (x * 2).max().item() if read_now else (x * 2).max()

    class Watched(nn.ModuleList):
        def forward(self, x: torch.Tensor, read_now: bool) -> list[Any]:
            peaks = []
            for layer in self:
                peaks.append(layer(x, read_now))
            return peaks

    layers, x = [Layer() for _ in range(5)], torch.ones(3)
    after = counted(Watched(layers), [(x, True), (x, False)])
    assert after["graphs run by the last call"] == 5
    torch.compiler.reset()
    counting = Counting()
    torch.compile(Watched(layers), backend="eager")(x, True)
    torch.compile(Watched(layers), backend=counting, fullgraph=True)(x, False)  # silent: the loop is skipped
    torch.compile(with_own_code(Watched)(layers), backend=counting, fullgraph=True)(x, False)
    torch.compiler.reset()  # the loop is no longer skipped
    torch.compile(Watched(layers), backend=counting, fullgraph=True)(x, False)
    assert [sum(node.target == "max" for node in graph.graph.nodes) for graph in counting.graphs] == [1, 5, 5]


def test_what_a_skipped_function_calls_is_compiled_and_past_the_limit_it_is_not() -> None:
    def calls(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    def in_a_loop(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = calls(x)
            torch._dynamo.graph_break()
        return x

    def recompiles(x: torch.Tensor) -> torch.Tensor:
        return calls(x) * SETTINGS["factor"]

    x = torch.ones(3)
    assert counted(in_a_loop, [(x,)]) == {"graphs": 1, "graphs run by the last call": 3}
    values = [*range(2, 14), 3]  # the last one has a graph, those past the limit have none
    each = [((x,) for SETTINGS["factor"] in values[:count]) for count in (12, 13)]
    assert [counted(recompiles, calls) for calls in each] == [
        {"graphs": 8, "graphs run by the last call": 0},
        {"graphs": 8, "graphs run by the last call": 1},
    ]


def test_a_workload_pays_at_a_call_only_if_it_is_shown_to_save() -> None:
    def case(verdict: str, ratio: float, low: float, high: float) -> Any:
        eager = {"eager": SimpleNamespace(median_s=0.01)}
        interval = SimpleNamespace(ends=(low, high))
        return SimpleNamespace(comparison=eager, verdict=verdict, ratio=ratio, interval=interval)

    assert pays_at(1.0, case("FASTER", 0.5, 0.4, 0.6)) == {"pays at call": 199, "by the interval": "166 to 249"}
    for calls in (199, 198):
        assert (1.0 + (calls - 1) * 0.005 <= calls * 0.01) == (calls == 199)
    assert pays_at(1.0, case("UNCLEAR", 0.9, 0.7, 1.1)) == {"pays at call": None, "by the interval": None}


def test_the_small_llama_is_one_graph_and_learns() -> None:
    torch.manual_seed(0)
    model, tokens = Llama(16, 8, layers=1, heads=2), torch.randint(256, (2, 8))
    assert counted(model, [(tokens,)], fullgraph=True)["graphs"] == 1
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 256
    torch.testing.assert_close(model(tokens)[:, :-1], model(changed)[:, :-1])  # a token sees earlier ones alone
    model(tokens).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
