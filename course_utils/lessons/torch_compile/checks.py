"""Checks of lesson 10. None needs a compiler: the graphs are counted, and run as they were traced."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from course_utils.lessons.answers import UNKNOWN, NotRight, ask, effect, exercise, listed, number, recognise

# (eager, compiled, first call) in seconds: soon paid back, late, with a cheap first call, and three that never are.
_TIMES = ((0.010, 0.004, 3.0), (0.020, 0.019, 8.0), (0.5, 0.1, 1.0))
_LOSSES = ((0.004, 0.005, 2.0), (0.004, 0.004, 2.0))
_LENGTHS = (7, 1, 3, 11, 2, 5, 4, 6, 8, 9, 10)
_CALLS = 20


class _Counting:
    """A backend that compiles nothing: it counts graphs and the rows that go into them, and runs each as traced."""

    def __init__(self) -> None:
        self.graphs = 0
        self.rows = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1

        def run(*given: Any) -> Any:
            self.rows += max(
                (len(value) for value in given if isinstance(value, torch.Tensor) and value.dim()), default=0
            )
            return graph.forward(*given)

        return run


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
def check_lengths(answer: Any) -> str | None:
    """Counts the graphs that eleven batches take."""
    rng = torch.Generator().manual_seed(0)
    batches = [torch.randn(length, 4, generator=rng) for length in _LENGTHS]

    def double_positive(rows: torch.Tensor) -> torch.Tensor:
        return torch.relu(rows) * 2

    counting = _Counting()
    with _quiet():
        given = listed(ask(answer, double_positive, [batch.clone() for batch in batches], counting))
    if other := [type(result).__name__ for result in given if not isinstance(result, torch.Tensor)]:
        raise NotRight(f"Return a list with one tensor for each batch; yours holds a value of type {other[0]}.")
    if len(given) != len(batches):
        raise NotRight(f"There are {len(batches)} batches, and you return {len(given)} results.")
    expected = [double_positive(batch) for batch in batches]
    if any(result.dim() != 2 or result.shape[1] != 4 for result in given):
        raise NotRight("Each result must have the columns of its batch: return `fn(batch)` for each.")
    if [len(result) for result in given] != [*_LENGTHS] and sorted(map(len, given)) == sorted(_LENGTHS):
        raise NotRight("The results are in another order than the batches.")
    if any(len(result) > len(right) for result, right in zip(given, expected, strict=True)):
        return "padding_left"
    for result, right in zip(given, expected, strict=True):
        if result.shape != right.shape or not torch.allclose(result.to(right), right):
            raise NotRight(f"For a batch of {len(right)} rows, the result is not `fn(batch)`.")
    if counting.graphs == 0:
        return "never_compiled"
    # A graph for each length; PyTorch gives up earlier unless somebody has raised its limit.
    if counting.graphs >= min(torch._dynamo.config.recompile_limit, len(_LENGTHS)):
        return "static"
    if counting.rows < sum(_LENGTHS):
        return "partly_compiled"
    return "length_one" if counting.graphs > 2 else None


@exercise
def check_break_even(answer: Any) -> str | None:
    """Compares with the formulas that people write, where they differ; then with cases that never pay."""
    given = [number(ask(answer, *times), "A number of calls") for times in _TIMES]
    not_rounded: dict[str | None, Callable[[float, float, float], float]] = {
        "not_whole": lambda e, c, first: (first - c) / (e - c),
        "one_off": lambda e, c, first: first / (e - c),
        "not_divided_by_saving": lambda e, c, first: first / e,
    }
    key = recognise(given, not_rounded, _TIMES, rel_tol=1e-9)
    if key != UNKNOWN:
        return key
    rounded = {way: lambda *times, way=way: _whole(not_rounded[way](*times)) for way in not_rounded}
    rounded[None] = rounded.pop("not_whole")
    key = recognise(given, rounded, _TIMES, rel_tol=1e-9)
    if key == UNKNOWN:
        e, c, first = _TIMES[0]
        raise NotRight(
            f"With {e} s for an eager call, {c} s for a compiled one and {first} s for the first one, you return "
            f"{given[0]:.6g}. After how many calls are the two totals equal?"
        )
    if key is not None:
        return key
    for times in _LOSSES:
        try:
            value = effect(answer, *times)
        except NotRight as problem:
            if isinstance(problem.__cause__, ZeroDivisionError):
                return "never"
            raise
        if value != math.inf:
            return "never"
    return None


def _whole(calls: float) -> int:
    """Rounded up, where a hair's breadth of floating point does not count."""
    return math.ceil(calls - 1e-9 * max(1.0, abs(calls)))


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
