"""Checks of the lesson. None needs a compiler: the graphs are counted, and run as they were traced."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from course_utils.lessons.answers import NotRight, ask, exercise

_CALLS = 20


class _Counting:
    """A backend that compiles nothing: it counts graphs, and runs each as traced."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Dynamo's warnings are what the hints say; and nothing that was traced here is left for the notebook's cells."""
    before = logging.root.manager.disable
    torch.compiler.reset()
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
        torch.compiler.reset()


def _refusal(function: Callable[..., Any], *inputs: torch.Tensor) -> str | None:
    """What ``fullgraph=True`` says against a function, in a line, or None if it is one graph.

    ``explain`` does not see what ends a graph before its first operation, nor a function that Dynamo was told to skip.
    """
    with _quiet():
        try:
            torch.compile(function, backend="eager", fullgraph=True)(*inputs)
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            return next((line for line in lines if line.startswith("Explanation:")), lines[0])
    return None


def _score(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``score`` of exercise 1 has to return."""
    scores = x @ weight
    scores = torch.where(scores.abs().max() > 10, scores / 10, scores)
    return scores.softmax(dim=-1), scores.max()


@exercise
def check_one_graph(answer: Any) -> str | None:
    """Runs the answer on small and on large scores, then counts its graphs."""
    rng = torch.Generator().manual_seed(0)
    weight = torch.randn(8, 5, generator=rng)
    inputs = [torch.randn(4, 8, generator=rng) * size for size in (0.1, 50.0)]
    wrong = 0
    for x in inputs:
        expected, expected_largest = _score(x, weight)
        probabilities, largest = _pair(ask(answer, x.clone(), weight.clone()))
        if probabilities.shape != expected.shape:
            raise NotRight(
                f"The probabilities have shape {tuple(probabilities.shape)}, not {tuple(expected.shape)}. The results "
                "must stay as they were."
            )
        same = torch.allclose(probabilities.to(expected), expected, rtol=1e-4, atol=1e-6)
        wrong += not (same and math.isclose(largest, expected_largest.item(), rel_tol=1e-4))
    if wrong == 1:
        return "always"
    if wrong:
        raise NotRight("The probabilities or the largest score are not what they were before, for any input.")
    with _quiet():
        try:
            explained = torch._dynamo.explain(answer)(inputs[0].clone(), weight.clone())
        except Exception as error:
            raise NotRight(f"Dynamo could not trace your function: {type(error).__name__}: {error}") from error
    reasons = " ".join(reason.reason for reason in explained.break_reasons)
    if "item" in reasons:
        return "item"
    if "generic_jump" in reasons or "branching" in reasons:
        return "branch"
    if reasons:
        first = explained.break_reasons[0].reason.splitlines()[0]
        raise NotRight(f"The graph ends before your function does. Dynamo says: {first}")
    if explained.graph_count == 0:
        return "not_traced"
    if refusal := _refusal(answer, inputs[0].clone(), weight.clone()):
        raise NotRight(f"With `fullgraph=True` your function does not compile. Dynamo says: {refusal}")
    return None


def _pair(given: Any) -> tuple[torch.Tensor, float]:
    """The two results of ``score``, the second as a number."""
    try:
        probabilities, largest = given
        largest = float(largest)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise NotRight("Return two things, as before: the probabilities, and the largest score.") from None
    if not isinstance(probabilities, torch.Tensor):
        raise NotRight(f"The probabilities must be a tensor, and are {type(probabilities).__name__}.")
    return probabilities, largest


@exercise
def check_counter(answer: Any) -> str | None:
    """Calls the compiled module twenty times, and counts graphs."""
    module = ask(answer)
    if not isinstance(module, nn.Module):
        raise NotRight(f"Pass the class itself; calling it must make a module, and it makes {type(module).__name__}.")
    counting = _Counting()
    factors = []
    x = torch.full((3,), 2.0)
    with _quiet():
        compiled = torch.compile(module, backend=counting)
        for _ in range(_CALLS):
            result = ask(compiled, x.clone())
            if not isinstance(result, torch.Tensor) or result.shape != x.shape:
                raise NotRight("The module must return a tensor of the shape of its input.")
            factors.append((result / x).mean().item())
    expected = [min(1.0, call / 10) for call in range(1, _CALLS + 1)]
    if not all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(factors, expected, strict=True)):
        if max(factors) - min(factors) < 1e-6:
            return "frozen"
        raise NotRight(
            f"At call 1, 2 and 3 the factor must be 0.1, 0.2 and 0.3; yours is "
            f"{', '.join(f'{factor:.3g}' for factor in factors[:3])}."
        )
    if counting.graphs == 0:
        return "not_traced"
    with _quiet():
        explained = torch._dynamo.explain(ask(answer))(x)
    if explained.graph_count != 1 or explained.break_reasons:
        return "breaks"
    if counting.graphs > 2:
        return "recompiles"
    if refusal := _refusal(ask(answer), x):
        raise NotRight(f"With `fullgraph=True` your module does not compile. Dynamo says: {refusal}")
    return None
